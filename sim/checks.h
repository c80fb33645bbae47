// The sanitizer: what each wave has written, what it waits for, and who touched which word of LDS.
// Clocks: a wave's clock of another wave says up to which of its steps everything happened before.
// Barriers join all clocks of a workgroup; LDS atomics join those of the waves that meet at a word.
//
// Flags. Stores and loads of LDS that release and acquire are plain ds_write and ds_read, so what
// is a flag shows in how it is read: by a load that spins (sim/spin.h). Such a load never races,
// and orders what its wave does next after the store whose value it finds and all that the storing
// wave did before: every store of a wave is a step of its own where code spins. LDS operations of a
// wave are done in order, so data needs no wait before the flag that announces it, unless it comes
// straight from memory; loads and stores of memory are not ordered by LDS. A word that no load
// spins on is data.
//
// Equal values. A store of what a word or byte holds already is no race with those that put it
// there nor with reads of it, because no order of them changes what anyone reads. A wave may read
// the value once it is ordered after one of the stores, its own among them; a store of another
// value must be ordered after them all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/coherence.h"
#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

inline constexpr int kMaxWaves = 16;
using Clock = std::array<int32_t, kMaxWaves>;

/// Bits of LdsShadow::state.
enum LdsState : uint16_t {
  kAllWritten = 15,  ///< bit k: byte k was ever written
  kMet = 16,         ///< an atomic was done here: it orders waves and never races
  kCounted = 32,     ///< vmcnt, not lgkmcnt, tells of the last write
  kStraight = 64,    ///< it is a load straight to LDS
  kSplit = 128,      ///< it was touched in parts, and is looked at byte by byte
  kSame = 256,       ///< several waves wrote the same value, in no order
};

/// What was put in first comes out first. Its memory stays.
template <class T>
class Queue {
 public:
  bool empty() const { return first_ == items_.size(); }
  size_t size() const { return items_.size() - first_; }
  T* begin() { return items_.data() + first_; }
  T* end() { return items_.data() + items_.size(); }
  const T* begin() const { return items_.data() + first_; }
  const T* end() const { return items_.data() + items_.size(); }
  T& front() { return items_[first_]; }
  T& back() { return items_.back(); }
  void push_back(const T& item) { items_.push_back(item); }
  void pop_front() {
    constexpr size_t kMany = 64;
    ++first_;
    if (empty()) {
      clear();
    } else if (first_ >= kMany && first_ > items_.size() / 2) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  void clear() {
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
};

/// An operation that was issued and not yet waited for.
struct Outstanding {
  int first = -1;  ///< register that it writes; -1: none
  int words = 0;
  bool scalar = false;
  bool any_order = false;
  uint32_t ordinal = 0;
  uint32_t number = 0;   ///< among all that the wave issued, from 1 on
  int32_t lds_step = 0;  ///< the wave's step at which it wrote LDS; 0: it did not
  Ordering order;
};

/// What is known of a wave's registers. Nearly always all that an instruction touches is ready:
/// written in every lane and waited for. Then nothing is to be checked and nothing changes.
struct WaveChecks {
  std::array<uint64_t, kVectorRegisters> written{};  ///< lanes
  std::array<uint8_t, kVectorRegisters> pending{};   ///< outstanding operations that write it
  /// Bits: the wave used it. Until then it holds what another wave left there.
  std::array<uint64_t, kVectorRegisters / 64> used{};
  /// Bits that mean something. Masks of lanes are joined from parts, of which lanes that took
  /// another way have none.
  std::array<uint32_t, 128> scalar_written{};
  std::array<uint8_t, 128> scalar_pending{};
  Queue<Outstanding> vm;
  Queue<Outstanding> lgkm;
  uint32_t issued = 0;      ///< operations
  uint32_t vm_arrived = 0;  ///< number of the last of each counter that was waited for
  uint32_t lgkm_arrived = 0;
  int32_t lds_step = 0;  ///< Outstanding::lds_step of the instruction being executed
  uint64_t moved = 0;    ///< its result's lanes that mean something, where its operands say which
                         ///< lanes it reads: found before it writes them
  uint64_t decided = 0;  ///< bits of its result, of a bitwise scalar one
  /// Registers of which in some lanes only some bytes mean something, and the lanes of each byte.
  struct Parts {
    int index;
    std::array<uint64_t, 4> written;
  };
  std::vector<Parts> parts;
  Clock clock{};
  /// What the wave knew of the others, from which of its steps on, since the last barrier. Kept
  /// where LdsShadow::flags is set.
  struct View {
    int32_t step;
    Clock clock;
  };
  Queue<View> views;
  WaveOrder order;
  /// The one that it is on, or records. Meanwhile what is said of registers above is only true of
  /// who records.
  Path* path = nullptr;
  uint32_t step = 0;  ///< taken on it
  bool records = false;

  /// A new wave. It follows a path that another one began, or records it.
  void begin(int wave, Path& to_take);
  /// No register but those that a wave begins with was written.
  void begin_registers(const Path::Start& start);
  bool follows() const { return path != nullptr && !records; }
  /// Whether all registers of an instruction's operands are ready.
  bool ready(const Instruction& i) const {
    if (i.touched_words == kTouchesMuch) {
      return false;
    }
    uint64_t missing = 0;
    for (int k = 0; k < i.touched_words; ++k) {
      missing |= ~ready_[i.touched[k].word] & i.touched[k].mask;
    }
    return missing == 0;
  }
  /// Whether all that it reads is, and nothing else is about to write its results.
  bool sources_ready(const Instruction& i) const { return sources_ready(i, ~uint64_t{0}); }
  /// Likewise of what it reads in lanes of its own (`lanes`: in which it does something).
  bool sources_ready(const Instruction& i, uint64_t lanes) const;
  /// It was ready so, no load, and wrote its results in all lanes: now it is ready as a whole.
  void fill(const Instruction& i);
  /// A load was issued that writes these registers.
  void begin_pending(int first, int words, bool scalar);
  /// It was waited for.
  void end_pending(int first, int words, bool scalar);
  /// After written or pending changed.
  void update(int vector_register) {
    set(vector_register, written[static_cast<size_t>(vector_register)] == ~uint64_t{0} &&
                             pending[static_cast<size_t>(vector_register)] == 0);
  }
  void update_scalar(int index) {
    set(kVectorRegisters + index, scalar_written[static_cast<size_t>(index)] == ~0U &&
                                      scalar_pending[static_cast<size_t>(index)] == 0);
  }

 private:
  void set(int index, bool is_ready) {
    uint64_t& word = ready_[static_cast<size_t>(index / 64)];
    const uint64_t bit = uint64_t{1} << (index % 64);
    word = is_ready ? word | bit : word & ~bit;
  }
  std::array<uint64_t, kTouchedWords> ready_{};  ///< bits: vector registers, then scalar ones
};

/// Fills in what of an instruction the checks look at each time (Instruction::touched, reader).
void prepare_checks(Instruction& instruction);
/// Executes an instruction that is not ready: are its sources there, and what does it write?
void run_checked(Wave& wave, const Instruction& instruction);
/// Executes one that is recorded, or that leaves the path.
void run_beside_path(Wave& wave, const Instruction& instruction);
void run_first_use(Wave& wave, const Path::Change& change);
void finish_off_path(Wave& wave, const Path::Step& step);
/// Executes the next step of the path that a wave follows. False: it is not on it any more, or does
/// not run any more.
inline bool run_step(Wave& wave, const Path::Step& step) {
  WaveChecks& checks = *wave.checks;
  if (step.clears) [[unlikely]] {
    run_first_use(wave, checks.path->changes[static_cast<size_t>(step.change)]);
  }
  step.instruction->run(wave, *step.instruction);
  if (checks.path == nullptr) [[unlikely]] {
    finish_off_path(wave, step);
    return false;
  }
  ++checks.step;
  return wave.state == WaveState::running;
}
/// From now on, what is known of a wave's registers is kept. To be called before that is looked at
/// or changed other than by run_checked(), note_issue() and note_wait().
void leave_path(Wave& wave);
/// All waves of a workgroup met.
void note_barrier(Workgroup& group);
/// Nothing was written yet. `flags`: the code spins on LDS.
void clear(LdsShadow& shadow, uint32_t bytes, bool flags);

}  // namespace weft::sim
