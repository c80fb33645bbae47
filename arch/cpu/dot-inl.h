// out = epilogue(a . w) for one or two weight matrices: chooses how the product is computed from
// its formats, its rows and the instruction set. Included once per instruction set.
#include <cstdint>
#include <span>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/dot_blocked-inl.h"
#include "arch/cpu/dot_stream-inl.h"
#include "arch/cpu/dot_tiles-inl.h"
#include "base/check.h"

#if defined(WEFT_ARCH_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_INL_H_
#undef WEFT_ARCH_CPU_DOT_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Scratch for up to `rows` rows of length k, whichever unit and instruction set is chosen.
inline int64_t dot_scratch_bytes(int64_t rows, int64_t k) {
  const int64_t units = padded_units<1>(k);
  const int64_t pairs = padded_units<2>(k);
  int64_t few = std::min(rows, kStreamRows) * packed_units<1>(k) * 4;
  int64_t parts = 1;
#if HWY_TARGET == HWY_AVX3
  parts = F32Tiles::kParts;
  if (suits_few_tiles(k)) {
    few = std::max(few, few_tiles_floats(std::min(rows, kStreamRows), k) * 4);
  }
#endif
  return rows <= kStreamRows ? few
                             : std::max({few, BlockedScratch<false>::bytes(rows, units),
                                         BlockedScratch<false>::bytes(rows, pairs),
                                         BlockedScratch<true>::bytes(rows, pairs, parts)});
}

template <class Units, int kMatrices, class Epilogue>
void dot_in_units(const Factors<typename Units::Weight, kMatrices>& factors, Range rows,
                  Range columns, std::span<std::byte> scratch, Epilogue& epilogue) {
  auto* floats = reinterpret_cast<float*>(scratch.data());
  if (rows.size() <= kStreamRows) {
    StreamProduct<Units, kMatrices, Epilogue>(factors, rows, floats, epilogue).run(columns);
  } else {
    BlockedProduct<Units, kMatrices, Epilogue>(factors, floats, epilogue).run(rows, columns);
  }
}

/// Hands out[rows, columns] to the epilogue (see StreamProduct). Every element is the same bits
/// whatever the ranges are, as long as rows.size() stays on one side of kStreamRows.
template <class Weight, int kMatrices, class Epilogue>
void dot(const Factors<Weight, kMatrices>& factors, Range rows, Range columns,
         std::span<std::byte> scratch, Epilogue& epilogue) {
  if (rows.empty() || columns.empty()) {
    return;
  }
  WEFT_CHECK(scratch.size() >= static_cast<size_t>(dot_scratch_bytes(rows.size(), factors.k)));
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<Weight, bf16>) {
    const cpu::Isa isa = cpu::current_isa();
    if (factors.a_dtype == DType::f32 && isa == cpu::Isa::amx_bf16) {
      auto* floats = reinterpret_cast<float*>(scratch.data());
      if (rows.size() > kStreamRows) {
        BlockedProduct<F32Tiles, kMatrices, Epilogue> product(factors, floats, epilogue);
        return product.run(rows, columns);
      }
      if (factors.packed == nullptr && suits_few_tiles(factors.k)) {
        return FewTilesProduct<kMatrices, Epilogue>(factors, rows, floats, epilogue).run(columns);
      }
    }
    if (factors.a_dtype == DType::bf16) {
      if (isa == cpu::Isa::avx512_bf16) {
        return dot_in_units<Bf16Pairs>(factors, rows, columns, scratch, epilogue);
      }
      // Processors with tiles are Intel's, whose VDPBF16PS is slow (see fastest_isa()): few rows go
      // on in f32.
      if (isa == cpu::Isa::amx_bf16 && rows.size() > kStreamRows) {
        return dot_in_units<Bf16Tiles>(factors, rows, columns, scratch, epilogue);
      }
    }
  }
  if constexpr (std::is_same_v<Weight, e4m3fn>) {
    const cpu::Isa isa = cpu::current_isa();
    if (factors.a_dtype == DType::bf16 && rows.size() > kStreamRows) {
      auto* floats = reinterpret_cast<float*>(scratch.data());
      if (isa == cpu::Isa::avx512_bf16) {
        BlockedProduct<Fp8Pairs<Bf16Pairs>, kMatrices, Epilogue> product(factors, floats, epilogue);
        return product.run(rows, columns);
      }
      if (isa == cpu::Isa::amx_bf16) {
        BlockedProduct<Fp8Pairs<Bf16Tiles>, kMatrices, Epilogue> product(factors, floats, epilogue);
        return product.run(rows, columns);
      }
    }
  }
#endif
  dot_in_units<F32Units<Weight>>(factors, rows, columns, scratch, epilogue);
}

/// The bias of up to kPanel columns, as f32; zeros where there is none.
class BiasPanel {
 public:
  template <class Vector>
  void begin(const Vector& bias, Range columns) {
    first_ = columns.begin;
    for (int64_t c = 0; bias.data != nullptr && c < columns.size(); ++c) {
      values_[c] = static_cast<float>(element_of(bias.data, bias.dtype, columns.begin + c));
    }
  }
  FloatVec at(int64_t column) const { return hn::LoadU(FloatTag(), values_ + (column - first_)); }

 private:
  static float element_of(const void* data, DType type, int64_t i) {
    return type == DType::f32    ? static_cast<const float*>(data)[i]
           : type == DType::bf16 ? to_float(static_cast<const bf16*>(data)[i])
                                 : to_float(static_cast<const f16*>(data)[i]);
  }

  int64_t first_ = 0;
  float values_[kPanel] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
