#include "sim/static_checks.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "sim/decode.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

constexpr int kNumberedScalars = 102;  ///< those above have names and are always there

Finding finding(const Launch& launch, const Instruction& instruction, FindingKind kind,
                uint64_t times, std::string message) {
  return {.kind = kind,
          .kernel = launch.kernel,
          .instruction = launch.code->text(instruction),
          .address = instruction.address,
          .source = launch.source_line(instruction.address),
          .wave = -1,
          .message = std::move(message),
          .times = times};
}

std::string describe(const Launch& launch, const Hazard& hazard) {
  const Instruction& first = launch.code->instructions()[hazard.first];
  const std::string source = launch.source_line(first.address);
  return fmt::format("{}: {} wait states are needed after `{}` at {:#x}{}{}, and there {} {}",
                     hazard.rule, hazard.needed, launch.code->text(first), first.address,
                     source.empty() ? "" : ", ", source, hazard.present == 1 ? "is" : "are",
                     hazard.present);
}

/// "" when an instruction's operands are within the allocation.
std::string describe_excess(const Instruction& i, const Allocation& allocation) {
  for (const Operand& o : std::span(i.operand, i.operands)) {
    const bool accumulates = o.index >= 256;
    const int last = o.index + o.words - 1;
    if (o.kind == Operand::Kind::vgpr) {
      const int number = accumulates ? last - 256 : last;
      const int given = accumulates ? allocation.agprs : allocation.vgprs;
      if (number >= given) {
        return fmt::format("{}{} is not among the {} {} that the kernel asks for",
                           accumulates ? 'a' : 'v', number, given, accumulates ? "AGPRs" : "VGPRs");
      }
    } else if (o.kind == Operand::Kind::sgpr && last >= allocation.sgprs &&
               last < kNumberedScalars) {
      return fmt::format("s{} is not among the {} SGPRs that the kernel asks for", last,
                         allocation.sgprs);
    }
  }
  return {};
}

}  // namespace

std::vector<Finding> static_findings(const Launch& launch, std::span<const Hazard> hazards,
                                     const Allocation& allocation,
                                     std::span<const uint64_t> executed) {
  std::vector<Finding> findings;
  // Of those that one instruction comes too early after, the one that lacks most.
  for (size_t k = 0; k < hazards.size();) {
    const uint32_t second = hazards[k].second;
    const Hazard* worst = nullptr;
    for (; k < hazards.size() && hazards[k].second == second; ++k) {
      const Hazard& h = hazards[k];
      if (executed[h.first] != 0 && executed[second] != 0 &&
          (worst == nullptr || h.needed - h.present > worst->needed - worst->present)) {
        worst = &h;
      }
    }
    if (worst != nullptr) {
      findings.push_back(finding(launch, launch.code->instructions()[second],
                                 FindingKind::missing_states, executed[second],
                                 describe(launch, *worst)));
    }
  }
  for (const Instruction& i : launch.code->instructions()) {
    if (executed[i.ordinal] != 0 && i.row != nullptr) {
      std::string excess = describe_excess(i, allocation);
      if (!excess.empty()) {
        findings.push_back(finding(launch, i, FindingKind::beyond_allocation, executed[i.ordinal],
                                   std::move(excess)));
      }
    }
  }
  return findings;
}

}  // namespace weft::sim
