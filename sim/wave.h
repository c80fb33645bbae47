// The state that instructions work on: a wave's registers, its workgroup, and what the launch
// keeps.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/caches.h"
#include "sim/instruction.h"
#include "sim/memory.h"
#include "sim/report.h"
#include "sim/target.h"

namespace weft::sim {

class Code;
struct Workgroup;
struct Launch;
struct WaveChecks;

/// Registers in the order of the scalar operand encoding.
inline constexpr int kVcc = 106;
inline constexpr int kM0 = 124;
inline constexpr int kExec = 126;
/// The vector registers of a wave: 256 VGPRs, then 256 AGPRs.
inline constexpr int kVectorRegisters = 512;

/// What lanes of registers and bytes of LDS hold that nobody wrote, on a GPU anything: in all runs
/// the same, NaN in every format, and the address of nothing.
inline constexpr uint8_t kUnwritten = 0xff;

/// Upper halves of the 64-bit addresses that flat instructions take for LDS and for scratch. No
/// host pointer looks like that.
inline constexpr uint64_t kSharedBase = 0x0001'0000'0000'0000;
inline constexpr uint64_t kPrivateBase = 0x0002'0000'0000'0000;

enum class WaveState : uint8_t {
  running,
  yielded,  ///< runs, but let others go first (s_sleep)
  barrier,  ///< waits for the rest of its workgroup
  parked,   ///< waits until something that it watches changes (sim/parking.h)
  ended,
};

/// Memory or LDS, up to 16 bytes of it, and what was there.
struct Watched {
  uint64_t address = 0;
  uint32_t bytes = 0;
  std::array<uint64_t, 2> value{};
};

struct alignas(64) Wave {
  uint32_t* v = nullptr;  ///< kVectorRegisters * 64 lanes
  alignas(8) std::array<uint32_t, 128> s{};
  uint32_t scc = 0;
  uint32_t mode = 0;
  /// The mode rounds or flushes in another way than the host does by itself.
  bool special_float = false;
  WaveState state = WaveState::running;
  const Instruction* pc = nullptr;
  Workgroup* group = nullptr;
  WaveChecks* checks = nullptr;  ///< null: the sanitizer is off
  uint64_t executed = 0;         ///< instructions
  int index = 0;                 ///< in its workgroup
  std::byte* scratch = nullptr;  ///< 64 times Launch::scratch_bytes
  uint32_t scratch_begin = ~0U;  ///< bytes of a lane's that it stored to
  uint32_t scratch_end = 0;
  uint32_t trap_status = 0;
  uint32_t idle_turns = 0;       ///< in a row, in which it changed nothing
  uint32_t patience = 1;         ///< such turns after which it may be parked
  std::vector<Watched> watched;  ///< all that it reads while it is parked

  uint64_t pair(int index_) const { return s[index_] | static_cast<uint64_t>(s[index_ + 1]) << 32; }
  void set_pair(int index_, uint64_t value) {
    s[index_] = static_cast<uint32_t>(value);
    s[index_ + 1] = static_cast<uint32_t>(value >> 32);
  }
  uint64_t exec() const { return pair(kExec); }
  uint64_t vcc() const { return pair(kVcc); }
  uint32_t* lanes(int index_) { return v + static_cast<size_t>(index_) * kLanes; }

  /// Value of a scalar, constant or special operand.
  uint64_t read64(const Operand& operand) const {
    return operand.kind == Operand::Kind::sgpr
               ? (operand.words >= 2 ? pair(operand.index) : s[operand.index])
           : operand.kind == Operand::Kind::constant ? operand.value
                                                     : read_special(operand);
  }
  uint32_t read32(const Operand& operand) const {
    return operand.kind == Operand::Kind::sgpr ? s[operand.index]
                                               : static_cast<uint32_t>(read64(operand));
  }
  void write32(const Operand& operand, uint32_t value) { s[operand.index] = value; }
  void write64(const Operand& operand, uint64_t value) { set_pair(operand.index, value); }

 private:
  uint64_t read_special(const Operand& operand) const;
};

/// The way that a wave took from its beginning, as long as all that it read of registers meant
/// something. What is known of registers then follows from the way alone, so for waves that go the
/// same one it is neither kept nor looked at (sim/checks.h).
struct Path {
  struct Step {
    const Instruction* instruction = nullptr;
    uint64_t exec = 0;
    int32_t change = -1;  ///< of `changes`; -1: all of its registers were ready
    bool clears = false;  ///< of the change: there are some
  };
  /// What an instruction wrote.
  struct Change {
    uint64_t lanes = 0;
    bool whole = false;             ///< all of its results
    std::vector<uint16_t> cleared;  ///< registers that it was the first to use, and not as a whole
  };
  /// What waves begin with.
  struct Start {
    int vgprs = 0;
    int agprs = 0;
    int scalars = 0;     ///< in the first registers
    uint64_t lanes = 0;  ///< active ones: their numbers are in v0
  };
  Start start;
  std::vector<Step> steps{1};  ///< behind the last one an empty one
  std::vector<Change> changes;
  bool begun = false;
};

/// What one host thread counts while it runs waves; added up when the launch ends.
struct ThreadCounts {
  std::vector<uint64_t> executed;  ///< by ordinal of the instruction
  Counters counters;
  struct Range : Memory::Range {
    Touched::Lines touched;
  };
  /// The allocation that an instruction last found its addresses in.
  std::array<Range, 64> ranges{};
  std::vector<Path> paths;     ///< by a wave's index in its workgroup
  uint64_t first_touches = 0;  ///< of lines of memory, in this launch
  uint32_t next_interval = 0;  ///< of those that are this thread's (Coherence::open())
  bool written = false;        ///< this launch stored in a line that the instruction reaches
};

/// Who touched each word of LDS last, to find reads of what was never written, races between waves,
/// and reads of what may not have arrived yet. Steps are the waves' clocks (sim/checks.h).
struct LdsByte {
  int32_t written = 0;  ///< as in LdsShadow
  int32_t read = 0;
  uint32_t writer = 0;
  uint32_t number = 0;
  uint16_t state = 0;  ///< LdsState::kCounted, kStraight and kSame
};
struct LdsShadow {
  std::vector<uint16_t> state;   ///< LdsState
  std::vector<int32_t> written;  ///< the last write: its step << 4 | wave
  /// The last read: its step << 5 | wave, and 16 where another wave read since the last barrier.
  std::vector<int32_t> read;
  std::vector<uint32_t> writer;  ///< ordinal of the instruction that wrote last
  std::vector<uint32_t> number;  ///< of that operation among its wave's; 0: it needs no wait
  /// Of words whose bytes go different ways (LdsState::kSplit), in place of what is above. Empty:
  /// there were none.
  std::vector<std::array<LdsByte, 4>> bytes;
  /// Of words where atomics were done: the clock of the waves that met there.
  std::unordered_map<uint32_t, std::array<int32_t, 16>> met;
  WaveOrder met_order;  ///< what they knew of global memory
  /// Of words and bytes, by their first byte, that several waves gave the same value
  /// (LdsState::kSame): the step of each; 0: not among them.
  std::unordered_map<uint32_t, std::array<int32_t, 16>> same;
  /// Likewise of those that several waves read: each one's last read. Kept where `flags` is set.
  std::unordered_map<uint32_t, std::array<int32_t, 16>> readers;
  int32_t ordered = 0;  ///< steps up to this one were before the last barrier
  int32_t settled = 0;  ///< and these writes had been waited for, too
  bool flags = false;   ///< waves wait for each other's stores (sim/spin.h)
};

struct Workgroup {
  std::array<uint32_t, 3> id{};
  uint64_t number = 0;  ///< in the grid
  int xcd = 0;
  int compute_unit = 0;
  std::byte* lds = nullptr;
  uint32_t lds_bytes = 0;
  std::vector<Wave> waves;
  int at_barrier = 0;
  int ended = 0;
  uint32_t epoch = 0;       ///< barriers passed
  bool shares = false;      ///< did something that other workgroups may wait for, or waits itself
  bool progressed = false;  ///< changed memory, passed a barrier or ended a wave since last asked
  std::vector<Watched>* watch = nullptr;  ///< collects what is read; null: nobody asks
  LdsShadow shadow;                       ///< empty: the sanitizer is off
  Launch* launch = nullptr;
  ThreadCounts* counts = nullptr;
};

/// One run of a kernel.
struct Launch {
  const Code* code = nullptr;
  Memory* memory = nullptr;
  int device = 0;  ///< of the node
  Touched touched;
  std::unique_ptr<Caches> caches;      ///< none: memory has no caches
  std::shared_ptr<LaunchOrder> order;  ///< none: the sanitizer is off
  Target target = Target::gfx942;
  std::string kernel;
  std::array<uint32_t, 3> grid{1, 1, 1};   ///< workgroups
  std::array<uint32_t, 3> block{1, 1, 1};  ///< threads of a workgroup
  uint32_t scratch_bytes = 0;              ///< of a lane
  bool dynamic_stack = false;              ///< how much of it the kernel takes shows as it runs
  int vgprs = 0;                           ///< registers of a lane
  int agprs = 0;
  uint64_t load_offset = 0;  ///< a code object's address 0 in memory
  bool sanitize = true;
  std::atomic<bool> abort{false};
  std::mutex mutex;
  std::vector<Finding> findings;
  std::function<std::string(uint64_t)> source_line;  ///< of a code object's address
};

Finding make_finding(const Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
                     std::string message);
/// Counts a finding of this kind at this instruction up, if there is one. True: nothing more is to
/// be said, also because a launch has enough findings.
bool count_again(Launch& launch, FindingKind kind, const Instruction& instruction);
/// Adds a finding, or counts up the one that there is.
void add_finding(Launch& launch, Finding finding);
/// Adds a finding (the same one at the same instruction counts up); the wave goes on.
void report(Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
            std::string message);
/// Adds a finding and ends the launch.
void stop(Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
          std::string message);

/// MODE's rounding and denormals changed: notes whether floats need special care.
void set_mode(Wave& wave, uint32_t mode);

// The rows of matrix and conversion instructions, made from their tables.
const Row* find_matrix_row(const MatrixOp& op);
const Row* find_convert_row(const ConvertOp& op);

/// Lane whose data each active lane receives in ds_permute_b32, ds_bpermute_b32 and ds_swizzle_b32;
/// -1: none, and it receives 0, as from inactive lanes. CDNA 3 manual, section 11.3.
void exchanged_lanes(Wave& wave, const Instruction& instruction, int* from);

/// Adds what lanes are about to read to Workgroup::watch.
void note_watched(Workgroup& group, const uint64_t* addresses, uint64_t mask, size_t bytes);
inline void watch_read(Wave& wave, const uint64_t* addresses, uint64_t mask, size_t bytes) {
  if (wave.group->watch != nullptr) [[unlikely]] {
    note_watched(*wave.group, addresses, mask, bytes);
  }
}

// What the sanitizer is told by instructions that reach memory; no-ops when it is off.
// `words`: registers from `first` that the load writes when it is waited for.
enum class Counter : uint8_t { vm, lgkm_in_order, lgkm_any_order };
void note_issue(Wave& wave, const Instruction& instruction, Counter counter, int first_register,
                int words, bool scalar);
/// A wait: at most so many operations may be outstanding.
void note_wait(Wave& wave, int vm, int lgkm);
/// What an instruction does with LDS. `arriving`: a load from memory straight to LDS.
enum class LdsUse : uint8_t { read, write, arriving, atomic };
/// What is about to be written: word k of lane l is `words[k * kLanes + l] >> shift`.
struct LdsValues {
  const uint32_t* words = nullptr;
  int shift = 0;
};
/// Lanes of `mask` are about to do it, each with so many bytes at its address, all in bounds.
void note_lds(Wave& wave, const Instruction& instruction, const uint32_t* addresses, uint64_t mask,
              int bytes, LdsUse use, LdsValues values = {});

}  // namespace weft::sim
