#include "sim/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft::sim {

std::string_view name_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::unknown_instruction:
      return "unknown instruction";
    case FindingKind::out_of_bounds:
      return "out of bounds";
    case FindingKind::no_peer_access:
      return "no peer access";
    case FindingKind::lds_out_of_bounds:
      return "LDS out of bounds";
    case FindingKind::misaligned:
      return "misaligned";
    case FindingKind::uninitialized_lds:
      return "uninitialised LDS";
    case FindingKind::uninitialized_register:
      return "uninitialised register";
    case FindingKind::missing_wait:
      return "missing wait";
    case FindingKind::missing_states:
      return "missing wait states";
    case FindingKind::beyond_allocation:
      return "register beyond the allocation";
    case FindingKind::lds_race:
      return "LDS race";
    case FindingKind::global_race:
      return "race in global memory";
    case FindingKind::stale_read:
      return "stale read";
    case FindingKind::unseen_store:
      return "unseen store";
    case FindingKind::narrow_scope:
      return "narrow scope";
    case FindingKind::hang:
      return "hang";
    case FindingKind::trap:
      return "trap";
  }
  return "?";
}

std::string Finding::text() const {
  const std::string place = wave < 0
                                ? "in every wave"
                                : fmt::format("workgroup {},{},{} wave {} lane {}", workgroup[0],
                                              workgroup[1], workgroup[2], wave, lane);
  return fmt::format("{}: in kernel {}, `{}` at {:#x}{}: {} ({}{}).", name_of(kind), kernel,
                     instruction, address, source.empty() ? "" : ", " + source, message, place,
                     times > 1 ? fmt::format("; {} times{}", times,
                                             times >= kMostTimes ? ", which ended the launch" : "")
                               : "");
}

void Counters::add(const Counters& other) {
  for (size_t k = 0; k < instructions.size(); ++k) {
    instructions[k] += other.instructions[k];
  }
  static constexpr uint64_t Counters::*kFields[] = {&Counters::waves,
                                                    &Counters::workgroups,
                                                    &Counters::barriers,
                                                    &Counters::matrix_cycles,
                                                    &Counters::vector_cycles,
                                                    &Counters::lds_cycles,
                                                    &Counters::lds_conflict_cycles,
                                                    &Counters::lds_bytes_read,
                                                    &Counters::lds_bytes_written,
                                                    &Counters::global_bytes_read,
                                                    &Counters::global_bytes_written,
                                                    &Counters::global_requests,
                                                    &Counters::global_requests_least,
                                                    &Counters::hbm_bytes_read,
                                                    &Counters::hbm_bytes_written,
                                                    &Counters::scratch_bytes};
  for (const auto field : kFields) {
    this->*field += other.*field;
  }
}

double Bound::seconds() const {
  return std::max({hbm_seconds, matrix_seconds, lds_seconds, issue_seconds});
}

std::string_view Bound::limit() const {
  const double most = seconds();
  return most == hbm_seconds      ? "HBM"
         : most == matrix_seconds ? "matrix"
         : most == lds_seconds    ? "LDS"
                                  : "issue";
}

Bound LaunchReport::bound() const {
  const cdna::Limits limits = cdna::limits_of(target);
  const auto count = [&](Class c) {
    return static_cast<double>(counters.instructions[static_cast<size_t>(c)]);
  };
  // Seconds of one compute unit's worth of cycles, spread over those in use, the fullest deciding.
  const double unit = imbalance / std::max(1, compute_units_used) / limits.clock;
  const double simd = unit / cdna::kSimds;
  Bound bound;
  bound.hbm_seconds = static_cast<double>(counters.hbm_bytes_read + counters.hbm_bytes_written) /
                      limits.memory_bandwidth;
  bound.matrix_seconds = static_cast<double>(counters.matrix_cycles) * simd;
  bound.lds_seconds = static_cast<double>(counters.lds_cycles) * unit;
  // A SIMD has a turn every four cycles, in which it issues at most one instruction of a kind, from
  // different waves; matrix instructions take the vector unit's turn.
  const double vector = static_cast<double>(counters.vector_cycles) + 4 * count(Class::mfma);
  const double memory =
      4 * (count(Class::vmem_load) + count(Class::vmem_store) + count(Class::vmem_atomic));
  const double scalar = 4 * (count(Class::salu) + count(Class::smem));
  bound.issue_seconds =
      std::max({vector, memory, scalar, 4 * count(Class::lds), 4 * count(Class::branch)}) * simd;
  return bound;
}

std::string LaunchReport::text() const {
  std::string out = fmt::format("{} on {}: {} workgroups, {} waves\n", kernel,
                                cdna::name_of(target), counters.workgroups, counters.waves);
  for (int k = 0; k < kClasses; ++k) {
    if (counters.instructions[static_cast<size_t>(k)] != 0) {
      out += fmt::format("  {:22} {:>14}\n", name_of(static_cast<Class>(k)),
                         counters.instructions[static_cast<size_t>(k)]);
    }
  }
  const auto line = [&](std::string_view name, uint64_t value, std::string_view unit) {
    out += fmt::format("  {:22} {:>14} {}\n", name, value, unit);
  };
  line("HBM read", counters.hbm_bytes_read, "bytes, each line once");
  line("HBM written", counters.hbm_bytes_written, "bytes, each line once");
  line("requests", counters.global_requests,
       fmt::format("of 64 bytes, {} at least", counters.global_requests_least));
  line("LDS read", counters.lds_bytes_read, "bytes");
  line("LDS written", counters.lds_bytes_written, "bytes");
  line("LDS cycles", counters.lds_cycles,
       fmt::format("of which {} by bank conflicts", counters.lds_conflict_cycles));
  line("matrix cycles", counters.matrix_cycles, "");
  line("vector cycles", counters.vector_cycles, "");
  line("barriers", counters.barriers, "");
  const Bound b = bound();
  out += fmt::format(
      "  bound from counts: {:.3f} us by {} (HBM {:.3f}, matrix {:.3f}, LDS {:.3f}, issue "
      "{:.3f})\n",
      b.seconds() * 1e6, b.limit(), b.hbm_seconds * 1e6, b.matrix_seconds * 1e6,
      b.lds_seconds * 1e6, b.issue_seconds * 1e6);
  return out;
}

}  // namespace weft::sim
