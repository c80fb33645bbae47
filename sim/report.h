// What a launch on the simulator tells: what was wrong, and what was counted.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/instruction.h"
#include "sim/target.h"

namespace weft::sim {

enum class FindingKind : uint8_t {
  unknown_instruction,     ///< the simulator cannot execute it
  out_of_bounds,           ///< an address in no live allocation
  no_peer_access,          ///< an address in another device, access to which was not enabled
  lds_out_of_bounds,       ///< beyond what the workgroup was given
  misaligned,              ///< an address that the instruction does not take
  uninitialized_lds,       ///< read of LDS that nothing wrote
  uninitialized_register,  ///< read of a register that nothing wrote
  missing_wait,            ///< a loaded register used before the s_waitcnt that guarantees it
  missing_states,          ///< too few wait states between two instructions (sim/hazards.h)
  beyond_allocation,       ///< a register that the kernel's descriptor does not ask for
  lds_race,                ///< two waves at the same LDS, one writing, no barrier between
  global_race,             ///< two waves at the same global memory, one storing, in no order
  stale_read,              ///< a load that a cache may serve with what was there before
  unseen_store,            ///< a store that may stay in the L2 of its XCD
  narrow_scope,            ///< of its own device, where another one takes part
  hang,                    ///< no wave can go on
  trap,                    ///< the program asked for it
};
std::string_view name_of(FindingKind kind);

/// One thing that is wrong, at its first occurrence.
struct Finding {
  FindingKind kind = FindingKind::trap;
  std::string kernel;
  std::string instruction;  ///< as the assembler writes it
  uint64_t address = 0;     ///< of the instruction in the code object
  std::string source;       ///< "file:line", empty when the code object has no line table
  std::array<uint32_t, 3> workgroup{};
  int wave = 0;  ///< -1: whatever wave executes the instruction
  int lane = 0;
  std::string message;  ///< what was wrong, with values
  uint64_t times = 1;   ///< occurrences at this instruction
  /// Occurrences that end the launch.
  static constexpr uint64_t kMostTimes = 1'000'000;

  /// One sentence with all of it.
  std::string text() const;
};

/// Counts of a launch. Cycles are those of the instructions' documented rates, without any waiting.
struct Counters {
  std::array<uint64_t, kClasses> instructions{};  ///< of waves, by Class
  uint64_t waves = 0;
  uint64_t workgroups = 0;
  uint64_t barriers = 0;             ///< of workgroups
  uint64_t matrix_cycles = 0;        ///< of a SIMD's matrix unit
  uint64_t vector_cycles = 0;        ///< of a SIMD's vector unit
  uint64_t lds_cycles = 0;           ///< of a compute unit's LDS, conflicts among them
  uint64_t lds_conflict_cycles = 0;  ///< beyond what the bytes alone take
  uint64_t lds_bytes_read = 0;
  uint64_t lds_bytes_written = 0;
  uint64_t global_bytes_read = 0;  ///< asked for by lanes
  uint64_t global_bytes_written = 0;
  uint64_t global_requests = 0;        ///< 64-byte segments asked for, instruction by instruction
  uint64_t global_requests_least = 0;  ///< the fewest that the same bytes could take
  uint64_t hbm_bytes_read = 0;         ///< different 128-byte lines read in the whole launch
  uint64_t hbm_bytes_written = 0;      ///< different 128-byte lines written
  uint64_t scratch_bytes = 0;          ///< read and written

  void add(const Counters& other);
};

/// The least time the device's limits allow for a launch's counts: a bound, never a measurement.
struct Bound {
  double hbm_seconds = 0;
  double matrix_seconds = 0;
  double lds_seconds = 0;
  double issue_seconds = 0;  ///< vector, scalar and memory instructions

  double seconds() const;
  /// "HBM", "matrix", "LDS" or "issue": which of them is the largest.
  std::string_view limit() const;
};

struct LaunchReport {
  std::string kernel;
  Target target = Target::gfx942;
  std::vector<Finding> findings;
  Counters counters;
  int compute_units_used = 0;  ///< that had a workgroup
  double imbalance = 1;        ///< workgroups of the fullest compute unit over the average

  bool ok() const { return findings.empty(); }
  /// From the counters and the target's limits, with the work on the compute units that had any.
  Bound bound() const;
  /// A table for people.
  std::string text() const;
};

}  // namespace weft::sim
