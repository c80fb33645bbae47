// A hash map from 64-bit keys to small values in one array: filled once, then only read.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::tokenizer {

/// A bijection of 64-bit numbers that spreads every bit over all (the finaliser of MurmurHash3).
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
  return x ^ x >> 33;
}

template <class Value>
class FlatMap {
 public:
  /// Keys may be anything but this one.
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  /// Room for up to `most` keys.
  explicit FlatMap(size_t most = 0)
      : slots_(std::bit_ceil(most * 2 + 1)), shift_(shift_of(slots_.size())) {}

  /// False when the key is there already; its value stays.
  bool insert(uint64_t key, const Value& value) {
    Slot& slot = slots_[find_slot(key)];
    if (slot.key == key) {
      return false;
    }
    slot = {key, value};
    return true;
  }

  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[find_slot(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    Value value{};
  };

  static int shift_of(size_t slots) { return 64 - std::countr_zero(slots); }

  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = shift_ < 64 ? static_cast<size_t>(mix(key) >> shift_) : 0;
    while (slots_[at].key != key && slots_[at].key != kNoKey) {
      at = (at + 1) & mask;
    }
    return at;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace weft::tokenizer
