// Which instruction set this machine has, and the table through which a kernel is chosen by it.
// Highway compiles a kernel file once per target (foreach_target.h); Debian has Highway as headers
// and a shared library only, and the command is linked statically, so the choice is made here.
#pragma once

#include <optional>
#include <string_view>

namespace weft::cpu {

/// Instruction sets in rising order; each includes those before it.
enum class Isa {
  scalar,
  avx2,         ///< AVX2, FMA, F16C, BMI2 (Highway's AVX2)
  avx512,       ///< AVX-512 F, BW, CD, DQ, VL (Highway's AVX3)
  avx512_bf16,  ///< and VDPBF16PS
  amx_bf16,     ///< and tiles (arch/cpu/amx.h), which rows are multiplied with as bf16
};
inline constexpr int kIsas = 5;

std::string_view name_of(Isa isa);

/// The best set of this processor, or the one that WEFT_ISA (scalar, avx2, avx512, avx512_bf16,
/// amx_bf16) in the environment names if that is lower.
Isa detected_isa();

/// The one kernels use now: what force_isa() last set (tests compare sets), else the fastest here,
/// which is detected_isa() but for VDPBF16PS where it is slow and WEFT_ISA does not ask for it.
Isa current_isa();
/// Must not be above detected_isa(). nullopt: back to the fastest.
void force_isa(std::optional<Isa> isa);

}  // namespace weft::cpu

/// In the HWY_ONCE part of a kernel file: picks the variant of FUNCTION (defined in
/// weft::HWY_NAMESPACE, so N_SCALAR, N_AVX2, N_AVX3) for current_isa().
#define WEFT_CPU_DISPATCH(FUNCTION)                                           \
  (::weft::cpu::current_isa() >= ::weft::cpu::Isa::avx512 ? &N_AVX3::FUNCTION \
   : ::weft::cpu::current_isa() >= ::weft::cpu::Isa::avx2 ? &N_AVX2::FUNCTION \
                                                          : &N_SCALAR::FUNCTION)
