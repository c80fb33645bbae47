// Caches that keep what they may for as long as they may: for launches whose waves are interleaved
// by a seed (LaunchOptions::seed). What a kernel gets wrong about order then becomes a wrong
// number, as on a busy device, where sim/coherence.h only says so.
//
// A compute unit's L1 keeps every line that its loads of data brought, until a buffer_inv; an XCD's
// L2 keeps them as well, and what its units stored, until a buffer_wbl2 writes it back. Loads of
// device scope pass both by, stores of device scope go through them, atomics work on memory.
// Nothing is ever evicted, and no cache sees what another holds. Memory of the host, and uncached
// memory, is in none; of another device's memory, only accesses of system scope pass the L2 by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "sim/coherence.h"
#include "sim/memory.h"

namespace weft::sim {

class Caches {
 public:
  explicit Caches(Memory& memory, int device) : memory_(memory), device_(device) {}
  ~Caches() { write_back_all(); }
  Caches(const Caches&) = delete;
  Caches& operator=(const Caches&) = delete;

  /// A unit of an XCD.
  struct Unit {
    int xcd = 0;
    int number = 0;
  };
  /// What a load of so many bytes returns, at most 16.
  void load(Unit unit, Scope scope, uint64_t address, size_t bytes, std::byte* to);
  void store(Unit unit, Scope scope, uint64_t address, size_t bytes, const std::byte* from);
  /// Memory is about to be changed by an atomic.
  void before_atomic(Unit unit, uint64_t address, size_t bytes);
  void invalidate(Unit unit, Scope scope);
  void write_back(Unit unit, Scope scope);
  void write_back_all();
  /// The byte as an XCD's units see it.
  const std::byte* latest(int xcd, uint64_t address) const;

 private:
  static constexpr size_t kLine = 128;
  struct Line {
    std::array<std::byte, kLine> bytes;
    std::array<bool, kLine> dirty{};

    explicit Line(uint64_t address);
    void refresh(uint64_t address);  ///< bytes that are not dirty, from memory
    void write_back(uint64_t address);
  };
  using L1 = std::unordered_map<uint64_t, std::array<std::byte, kLine>>;
  using L2 = std::unordered_map<uint64_t, Line>;

  enum class Kept : uint8_t { nowhere, everywhere, remote };
  Kept kept(uint64_t address);
  L1& l1(Unit unit) { return l1_[unit.xcd * 256 + unit.number]; }
  L2& l2(Unit unit) { return l2_[static_cast<size_t>(unit.xcd) % l2_.size()]; }

  Memory& memory_;
  int device_;
  Memory::Range last_;
  std::unordered_map<int, L1> l1_;
  std::array<L2, 8> l2_;
};

}  // namespace weft::sim
