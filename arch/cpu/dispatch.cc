#include "arch/cpu/dispatch.h"

#include <cpuid.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "arch/cpu/amx.h"
#include "base/check.h"

namespace weft::cpu {
namespace {

constexpr std::array<std::string_view, kIsas> kNames = {"scalar", "avx2", "avx512", "avx512_bf16",
                                                        "amx_bf16"};

/// Conversions between f16 and f32. Read from CPUID: __builtin_cpu_supports of clang 14 has no name
/// for them. The system's part in it, saving the wide registers, is AVX2's.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

Isa processor_isa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c();
  if (!avx2) {
    return Isa::scalar;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) {
    return Isa::avx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) {
    return Isa::avx512;
  }
  return has_amx_bf16() ? Isa::amx_bf16 : Isa::avx512_bf16;
}

Isa lowered_by_environment(Isa best) {
  const char* wanted = std::getenv("WEFT_ISA");
  for (int i = 0; wanted != nullptr && i < kIsas; ++i) {
    if (kNames[i] == wanted && i < static_cast<int>(best)) {
      return static_cast<Isa>(i);
    }
  }
  return best;
}

/// On Intel's processors VDPBF16PS takes as long as four f32 multiply-adds of as many lanes, so
/// that f32 is faster; on AMD's it takes as long as one.
Isa fastest_isa() {
  const Isa isa = detected_isa();
  const bool slow = isa == Isa::avx512_bf16 && __builtin_cpu_is("intel");
  return slow && std::getenv("WEFT_ISA") == nullptr ? Isa::avx512 : isa;
}

std::atomic<int> forced{-1};

}  // namespace

std::string_view name_of(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa detected_isa() {
  static const Isa isa = lowered_by_environment(processor_isa());
  return isa;
}

Isa current_isa() {
  const int isa = forced.load(std::memory_order_relaxed);
  static const Isa fastest = fastest_isa();
  return isa < 0 ? fastest : static_cast<Isa>(isa);
}

void force_isa(std::optional<Isa> isa) {
  WEFT_CHECK(!isa || *isa <= detected_isa());
  forced.store(isa ? static_cast<int>(*isa) : -1, std::memory_order_relaxed);
}

}  // namespace weft::cpu
