// See matrix.h. Each operand is expanded to one 32-bit number (f32 or i32) per element and lane,
// [item][lane]; consecutive lanes hold consecutive columns of B, C and D, so that rows of them are
// vectors as they lie, and an element of A is a broadcast.
#include "sim/matrix.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "arch/cdna/matrix_layout.h"
#include "base/fp8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/matrix.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "hwy/highway.h"

#ifndef WEFT_SIM_MATRIX_SHARED
#define WEFT_SIM_MATRIX_SHARED
namespace weft::sim {

inline constexpr int kMaxK = 128;
inline constexpr int kMaxItems = 32;

/// What an element of A and B is read as.
enum class Codec : uint8_t {
  f32,
  xf32,
  f16,
  bf16,
  e4m3fn,
  e4m3fnuz,
  e5m2,
  e5m2fnuz,
  e2m3,
  e3m2,
  e2m1,
  i8,
};

/// An instruction's layouts as offsets into [item][lane].
struct Plan {
  /// Of element k of row (column) 0 of block 0; second: for chosen formats of fewer than 8 bits.
  std::array<uint16_t, kMaxK> a[2];
  std::array<uint16_t, kMaxK> b[2];
  std::array<uint16_t, 64> d;  ///< of column 0 of row i of block j, at i + m * j
};

/// One execution, ready for the kernel.
struct MatrixCall {
  const cdna::MatrixInstruction* shape;
  const uint16_t* a_offset;
  const uint16_t* b_offset;
  const uint16_t* d_offset;
  Codec a;
  Codec b;
};

inline constexpr uint32_t kQuietNan32 = 0x7fc00000;

}  // namespace weft::sim
#endif  // WEFT_SIM_MATRIX_SHARED

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace sim;  // NOLINT(google-build-using-namespace): this file's own names
using cdna::MatrixInstruction;

using F = hn::ScalableTag<float>;
using I = hn::ScalableTag<int32_t>;
using VF = hn::Vec<F>;
using VI = hn::Vec<I>;
inline constexpr int kWidth = static_cast<int>(hn::MaxLanes(F()));
/// Vectors of 16 columns.
inline constexpr int kVectors = 16 / kWidth;
/// Rows summed at once: as many as the registers hold.
inline constexpr int kRows = kWidth == 16 ? 16 : 4;

/// a * b + c with one rounding.
HWY_INLINE VF multiply_add(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR  // where Highway rounds the product too
  return hn::Set(F(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  return hn::MulAdd(a, b, c);
#endif
}
HWY_INLINE VI multiply_add(VI a, VI b, VI c) { return hn::Add(hn::Mul(a, b), c); }

/// The number that `code`, a format's bits in the low end, stands for. Exact.
template <int kExponent, int kMantissa, int kBias, Specials kSpecials>
HWY_INLINE VF decode_small(VI code) {
  const I i;
  constexpr int kMagnitude = (1 << (kExponent + kMantissa)) - 1;
  const VI magnitude = hn::And(code, hn::Set(i, kMagnitude));
  const VI sign = hn::And(hn::ShiftLeft<31 - kExponent - kMantissa>(code),
                          hn::Set(i, static_cast<int32_t>(0x80000000U)));
  // Rebias the exponent. A denormal gets an exponent one higher, whose leading one is then taken
  // off: no denormal f32 appears on the way.
  const VI rebiased =
      hn::Add(hn::ShiftLeft<23 - kMantissa>(magnitude), hn::Set(i, (127 - kBias) << 23));
  const VF denormal = hn::Sub(hn::BitCast(F(), hn::Add(rebiased, hn::Set(i, 1 << 23))),
                              hn::Set(F(), detail::power_of_two(1 - kBias)));
  VI bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(i, 1 << kMantissa)), hn::BitCast(i, denormal),
                           rebiased);
  const VI nan = hn::Set(i, static_cast<int32_t>(kQuietNan32));
  if constexpr (kSpecials == Specials::ieee) {
    const VI infinity = hn::Set(i, kMagnitude & ~((1 << kMantissa) - 1));
    bits = hn::IfThenElse(hn::Eq(magnitude, infinity), hn::Set(i, 0x7f800000), bits);
    bits = hn::IfThenElse(hn::Gt(magnitude, infinity), nan, bits);
  } else if constexpr (kSpecials == Specials::fn) {
    bits = hn::IfThenElse(hn::Eq(magnitude, hn::Set(i, kMagnitude)), nan, bits);
  }
  bits = hn::Or(bits, sign);
  if constexpr (kSpecials == Specials::fnuz) {
    bits = hn::IfThenElse(hn::Eq(code, hn::Set(i, kMagnitude + 1)), nan, bits);
  }
  return hn::BitCast(F(), bits);
}

/// `bits` bits from bit `at` of the registers, for the lanes from `lane`.
HWY_INLINE VI code_at(const Lanes* registers, int lane, int at, int bits) {
  const I i;
  const auto word = [&](int r) {
    return hn::LoadU(hn::ScalableTag<uint32_t>(), registers[r] + lane);
  };
  const int shift = at % 32;
  auto code = hn::ShiftRightSame(word(at / 32), shift);
  if (shift + bits > 32) {
    code = hn::Or(code, hn::ShiftLeftSame(word(at / 32 + 1), 32 - shift));
  }
  return hn::And(hn::BitCast(i, code), hn::Set(i, (1 << bits) - 1));
}

template <class Decode>
HWY_INLINE void expand_with(const Lanes* registers, int items, int bits, float* out,
                            Decode decode) {
  for (int item = 0; item < items; ++item) {
    for (int lane = 0; lane < kLanes; lane += kWidth) {
      hn::StoreU(decode(code_at(registers, lane, item * bits, bits)), F(),
                 out + item * kLanes + lane);
    }
  }
}

void expand(Codec codec, const Lanes* registers, int items, float* out) {
  switch (codec) {
    case Codec::f32:
      std::memcpy(out, registers, sizeof(Lanes) * items);
      return;
    case Codec::xf32:
      for (int t = 0; t < items * kLanes; t += kWidth) {
        const VI bits = hn::LoadU(I(), reinterpret_cast<const int32_t*>(registers) + t);
        hn::StoreU(hn::BitCast(F(), hn::And(bits, hn::Set(I(), ~0x1fff))), F(), out + t);
      }
      return;
    case Codec::f16:
      return expand_with(registers, items, 16, out, decode_small<5, 10, 15, Specials::ieee>);
    case Codec::bf16:
      return expand_with(registers, items, 16, out,
                         [](VI code) { return hn::BitCast(F(), hn::ShiftLeft<16>(code)); });
    case Codec::e4m3fn:
      return expand_with(registers, items, 8, out, decode_small<4, 3, 7, Specials::fn>);
    case Codec::e4m3fnuz:
      return expand_with(registers, items, 8, out, decode_small<4, 3, 8, Specials::fnuz>);
    case Codec::e5m2:
      return expand_with(registers, items, 8, out, decode_small<5, 2, 15, Specials::ieee>);
    case Codec::e5m2fnuz:
      return expand_with(registers, items, 8, out, decode_small<5, 2, 16, Specials::fnuz>);
    case Codec::e2m3:
      return expand_with(registers, items, 6, out, decode_small<2, 3, 1, Specials::finite>);
    case Codec::e3m2:
      return expand_with(registers, items, 6, out, decode_small<3, 2, 3, Specials::finite>);
    case Codec::e2m1:
      return expand_with(registers, items, 4, out, decode_small<2, 1, 1, Specials::finite>);
    case Codec::i8:
      return expand_with(registers, items, 8, out, [](VI code) {
        return hn::BitCast(F(), hn::ShiftRight<24>(hn::ShiftLeft<24>(code)));
      });
  }
}

/// Vectors of T from and to registers.
template <class T>
using Tag = hn::ScalableTag<T>;

HWY_INLINE void store_result(VF value, uint32_t* to) {
  const VF nan = hn::BitCast(F(), hn::Set(I(), static_cast<int32_t>(kQuietNan32)));
  hn::StoreU(hn::IfThenElse(hn::IsNaN(value), nan, value), F(), reinterpret_cast<float*>(to));
}
HWY_INLINE void store_result(VI value, uint32_t* to) {
  hn::StoreU(value, I(), reinterpret_cast<int32_t*>(to));
}

/// Adds kRows rows times 16 columns of A * B over k in [begin, end) to `sum`. `a` and `b` point to
/// the first row and column.
template <class T, class V = hn::Vec<Tag<T>>>
HWY_INLINE void multiply_tile(const MatrixCall& call, const T* a, const T* b, int begin, int end,
                              V sum[kRows][kVectors]) {
  for (int k = begin; k < end; ++k) {
    const T* a_k = a + call.a_offset[k];
    const T* b_k = b + call.b_offset[k];
    V columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = hn::LoadU(Tag<T>(), b_k + v * kWidth);
    }
    for (int r = 0; r < kRows; ++r) {
      const V row = hn::Set(Tag<T>(), a_k[r]);
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = multiply_add(row, columns[v], sum[r][v]);
      }
    }
  }
}

/// Calls tile(row, column, block) for the tiles of kRows x 16 of D.
template <class Tile>
HWY_INLINE void for_tiles(const MatrixInstruction& shape, Tile tile) {
  for (int block = 0; block < shape.blocks; ++block) {
    for (int row = 0; row < shape.m; row += kRows) {
      for (int column = 0; column < shape.n; column += 16) {
        tile(row, column, block);
      }
    }
  }
}

template <class T>
void dense(const MatrixCall& call, const T* a, const T* b, const Lanes* c, Lanes* d) {
  using V = hn::Vec<Tag<T>>;
  const MatrixInstruction& shape = *call.shape;
  for_tiles(shape, [&](int row, int column, int block) {
    const uint16_t* at = call.d_offset + row + shape.m * block;
    V sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] =
            hn::LoadU(Tag<T>(), reinterpret_cast<const T*>(c) + at[r] + column + v * kWidth);
      }
    }
    multiply_tile<T>(call, a + row + shape.m * block, b + column + shape.n * block, 0, shape.k,
                     sum);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        store_result(sum[r][v], &d[0][0] + at[r] + column + v * kWidth);
      }
    }
  });
}

/// Sixteen blocks of 4 x 4: a lane of D is a column of a block.
template <class T>
void dense_4x4(const MatrixCall& call, const T* a, const T* b, const Lanes* c, Lanes* d) {
  for (int row = 0; row < 4; ++row) {
    T rows[4][kLanes];  // [k][lane]: A of the lane's block
    for (int k = 0; k < call.shape->k; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) {
        rows[k][lane] = a[call.a_offset[k] + lane / 4 * 4 + row];
      }
    }
    for (int lane = 0; lane < kLanes; lane += kWidth) {
      auto sum = hn::LoadU(Tag<T>(), reinterpret_cast<const T*>(c[row]) + lane);
      for (int k = 0; k < call.shape->k; ++k) {
        sum = multiply_add(hn::LoadU(Tag<T>(), rows[k] + lane),
                           hn::LoadU(Tag<T>(), b + call.b_offset[k] + lane), sum);
      }
      store_result(sum, d[row] + lane);
    }
  }
}

/// Four of each row's elements along k are two stored ones and their places.
template <class T>
void sparse(const MatrixCall& call, const MatrixOperands& operands, const T* a, const T* b) {
  using V = hn::Vec<Tag<T>>;
  constexpr int kSparseRows = 4;
  const MatrixInstruction& shape = *call.shape;
  const int stored = shape.k / 2;
  uint8_t places[32][kMaxK / 2];  // [row][stored element]: its k
  for (int s = 0; s < stored; ++s) {
    const int item = call.a_offset[s] / kLanes;
    const int lane = call.a_offset[s] % kLanes;
    const int bit = shape.index_bit(item, operands.cbsz, operands.abid);
    for (int row = 0; row < shape.m; ++row) {
      places[row][s] = static_cast<uint8_t>(s / 2 * 4 + ((*operands.index)[lane + row] >> bit & 3));
    }
  }
  for (int row = 0; row < shape.m; row += kSparseRows) {
    for (int column = 0; column < shape.n; column += 16) {
      const uint16_t* at = call.d_offset + row;
      V sum[kSparseRows][kVectors];
      for (int r = 0; r < kSparseRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::LoadU(
              Tag<T>(), reinterpret_cast<const T*>(operands.c) + at[r] + column + v * kWidth);
        }
      }
      for (int s = 0; s < stored; ++s) {
        for (int r = 0; r < kSparseRows; ++r) {
          const V factor = hn::Set(Tag<T>(), a[call.a_offset[s] + row + r]);
          const T* columns = b + call.b_offset[places[row + r][s]] + column;
          for (int v = 0; v < kVectors; ++v) {
            sum[r][v] = multiply_add(factor, hn::LoadU(Tag<T>(), columns + v * kWidth), sum[r][v]);
          }
        }
      }
      for (int r = 0; r < kSparseRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          store_result(sum[r][v], &operands.d[0][0] + at[r] + column + v * kWidth);
        }
      }
    }
  }
}

/// total + sum * 2^(a + b) with one rounding; a and b are e8m0 codes.
HWY_INLINE VF add_scaled(VF total, VF sum, int32_t a, VI b) {
  const I i;
  const VI exponent = hn::Add(b, hn::Set(i, a - 2 * 127));
  const VI biased = hn::Add(exponent, hn::Set(i, 127));
  const auto in_range = hn::And(hn::Gt(biased, hn::Zero(i)), hn::Lt(biased, hn::Set(i, 255)));
  if (a != 255 && hn::AllTrue(i, in_range) && hn::AllTrue(i, hn::Lt(b, hn::Set(i, 255)))) {
    return multiply_add(sum, hn::BitCast(F(), hn::ShiftLeft<23>(biased)), total);
  }
  // Products beyond f32: f64 holds them exactly, and the sum rounds as it would at once.
  float sums[kWidth];
  float totals[kWidth];
  int32_t codes[kWidth];
  hn::StoreU(sum, F(), sums);
  hn::StoreU(total, F(), totals);
  hn::StoreU(b, i, codes);
  for (int j = 0; j < kWidth; ++j) {
    const double product = std::ldexp(static_cast<double>(sums[j]), a + codes[j] - 2 * 127);
    totals[j] = a == 255 || codes[j] == 255
                    ? detail::kQuietNan
                    : static_cast<float>(product + static_cast<double>(totals[j]));
  }
  return hn::LoadU(F(), totals);
}

/// f8f6f4: sums of 32 along k, each times 2^(a + b) for the scales of the row and of the column:
/// e8m0 codes in a lane each. Null: 1.
void scaled(const MatrixCall& call, const float* a, const float* b, const int32_t* a_scale,
            const int32_t* b_scale, const Lanes* c, Lanes* d) {
  const MatrixInstruction& shape = *call.shape;
  for_tiles(shape, [&](int row, int column, int block) {
    const uint16_t* at = call.d_offset + row + shape.m * block;
    VF total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        total[r][v] =
            hn::LoadU(F(), reinterpret_cast<const float*>(c) + at[r] + column + v * kWidth);
      }
    }
    for (int k = 0; k < shape.k; k += cdna::kScaleBlock) {
      VF sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::Zero(F());
        }
      }
      multiply_tile<float>(call, a + row, b + column, k, k + cdna::kScaleBlock, sum);
      const int scale_lane = shape.m * (k / cdna::kScaleBlock);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          total[r][v] =
              a_scale == nullptr
                  ? hn::Add(total[r][v], sum[r][v])
                  : add_scaled(total[r][v], sum[r][v], a_scale[scale_lane + row + r],
                               hn::LoadU(I(), b_scale + scale_lane + column + v * kWidth));
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        store_result(total[r][v], &d[0][0] + at[r] + column + v * kWidth);
      }
    }
  });
}

/// One item of doubles.
void dense_f64(const MatrixCall& call, const MatrixOperands& operands) {
  const MatrixInstruction& shape = *call.shape;
  const auto load = [](const Lanes* registers, int item, int lane, bool negate) {
    uint64_t bits = registers[2 * item][lane] | static_cast<uint64_t>(registers[2 * item + 1][lane])
                                                    << 32;
    bits ^= static_cast<uint64_t>(negate) << 63;
    return std::bit_cast<double>(bits);
  };
  double a[kLanes];
  double b[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    a[lane] = load(operands.a, 0, lane, (operands.blgp & 1) != 0);
    b[lane] = load(operands.b, 0, lane, (operands.blgp & 2) != 0);
  }
  for (int block = 0; block < shape.blocks; ++block) {
    for (int row = 0; row < shape.m; ++row) {
      const int at = call.d_offset[row + shape.m * block];
      for (int column = 0; column < shape.n; ++column) {
        const int item = at / kLanes;
        const int lane = at % kLanes + column;
        double sum = load(operands.c, item, lane, (operands.blgp & 4) != 0);
        for (int k = 0; k < shape.k; ++k) {
          sum = std::fma(a[call.a_offset[k] + row + shape.m * block],
                         b[call.b_offset[k] + column + shape.n * block], sum);
        }
        const uint64_t bits = std::isnan(sum) ? 0x7ff8000000000000 : std::bit_cast<uint64_t>(sum);
        operands.d[2 * item][lane] = static_cast<uint32_t>(bits);
        operands.d[2 * item + 1][lane] = static_cast<uint32_t>(bits >> 32);
      }
    }
  }
}

/// operands.a and operands.b have their lanes permuted already, and nothing that is read after the
/// first write overlaps d, but for c where it is d.
void run_matrix(const MatrixCall& call, const MatrixOperands& operands, const int32_t* a_scale,
                const int32_t* b_scale) {
  const MatrixInstruction& shape = *call.shape;
  if (shape.d == cdna::MatrixFormat::f64) {
    return dense_f64(call, operands);
  }
  alignas(64) float a[kMaxItems * kLanes];
  alignas(64) float b[kMaxItems * kLanes];
  expand(call.a, operands.a, shape.a_layout().items(), a);
  expand(call.b, operands.b, shape.b_layout().items(), b);
  const auto* a_i32 = reinterpret_cast<const int32_t*>(a);
  const auto* b_i32 = reinterpret_cast<const int32_t*>(b);
  const bool integers = shape.d == cdna::MatrixFormat::i32;
  if (shape.a == cdna::MatrixFormat::chosen) {
    scaled(call, a, b, a_scale, b_scale, operands.c, operands.d);
  } else if (shape.sparse) {
    integers ? sparse(call, operands, a_i32, b_i32) : sparse(call, operands, a, b);
  } else if (shape.n == 4) {
    integers ? dense_4x4(call, a_i32, b_i32, operands.c, operands.d)
             : dense_4x4(call, a, b, operands.c, operands.d);
  } else {
    integers ? dense(call, a_i32, b_i32, operands.c, operands.d)
             : dense(call, a, b, operands.c, operands.d);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::sim {
namespace {

using cdna::InputLayout;
using cdna::MatrixFormat;
using cdna::MatrixInstruction;

constexpr int kOps = static_cast<int>(std::size(cdna::kMatrixInstructions));

std::array<uint16_t, kMaxK> offsets_of(const InputLayout& layout) {
  std::array<uint16_t, kMaxK> offsets{};
  for (int k = 0; k < layout.k; ++k) {
    const cdna::LaneItem at = layout.at(0, k, 0);
    offsets[k] = static_cast<uint16_t>(at.item * kLanes + at.lane);
  }
  return offsets;
}

Plan plan_of(const MatrixInstruction& shape) {
  Plan plan{};
  for (const bool narrow : {false, true}) {
    const auto format = [&](MatrixFormat of) {
      return of == MatrixFormat::chosen && narrow ? MatrixFormat::fp4 : of;
    };
    plan.a[narrow] = offsets_of(shape.a_layout(format(shape.a)));
    plan.b[narrow] = offsets_of(shape.b_layout(format(shape.b)));
  }
  for (int block = 0; block < shape.blocks; ++block) {
    for (int row = 0; row < shape.m; ++row) {
      const cdna::LaneItem at = shape.d_layout().at(row, 0, block);
      plan.d[row + shape.m * block] = static_cast<uint16_t>(at.item * kLanes + at.lane);
    }
  }
  return plan;
}

const std::vector<Plan>& plans() {
  static const std::vector<Plan> table = [] {
    std::vector<Plan> made;
    for (const MatrixInstruction& shape : cdna::kMatrixInstructions) {
      made.push_back(plan_of(shape));
    }
    return made;
  }();
  return table;
}

Codec codec_of(MatrixFormat format, Target target) {
  const bool ocp = target == Target::gfx950;
  switch (format) {
    case MatrixFormat::xf32:
      return Codec::xf32;
    case MatrixFormat::f16:
      return Codec::f16;
    case MatrixFormat::bf16:
      return Codec::bf16;
    case MatrixFormat::fp8:
      return ocp ? Codec::e4m3fn : Codec::e4m3fnuz;
    case MatrixFormat::bf8:
      return ocp ? Codec::e5m2 : Codec::e5m2fnuz;
    case MatrixFormat::fp6:
      return Codec::e2m3;
    case MatrixFormat::bf6:
      return Codec::e3m2;
    case MatrixFormat::fp4:
      return Codec::e2m1;
    case MatrixFormat::i8:
      return Codec::i8;
    default:
      return Codec::f32;
  }
}

/// Copies registers with lane l taken from source(l).
template <class Source>
void permute(const Lanes* from, int registers, Lanes* to, Source source) {
  for (int r = 0; r < registers; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      to[r][lane] = from[r][source(lane)];
    }
  }
}

}  // namespace

void MatrixOp::run(const MatrixOperands& operands, Target target) const {
  const MatrixInstruction& shape = *instruction;
  const Plan& plan = plans()[static_cast<size_t>(instruction - cdna::kMatrixInstructions)];
  const bool chosen = shape.a == MatrixFormat::chosen;
  const MatrixFormat a = chosen ? cdna::chosen_format(operands.cbsz) : shape.a;
  const MatrixFormat b = chosen ? cdna::chosen_format(operands.blgp) : shape.b;
  const MatrixCall call{.shape = instruction,
                        .a_offset = plan.a[chosen && cdna::bits_of(a) < 8].data(),
                        .b_offset = plan.b[chosen && cdna::bits_of(b) < 8].data(),
                        .d_offset = plan.d.data(),
                        .a = codec_of(a, target),
                        .b = codec_of(b, target)};
  MatrixOperands ready = operands;
  Lanes permuted_a[8];
  Lanes permuted_b[8];
  Lanes index;
  int32_t scales[2][kLanes];
  if (!chosen && !sparse && shape.a != MatrixFormat::f64) {
    if (operands.cbsz != 0) {
      permute(operands.a, a_regs, permuted_a, [&](int lane) {
        const int block = lane / shape.m % shape.blocks;
        return lane +
               (cdna::broadcast_block(block, operands.cbsz, operands.abid) % shape.blocks - block) *
                   shape.m;
      });
      ready.a = permuted_a;
    }
    if (operands.blgp != 0) {
      permute(operands.b, b_regs, permuted_b,
              [&](int lane) { return cdna::permuted_lane(lane, operands.blgp); });
      ready.b = permuted_b;
    }
  }
  if (sparse) {
    std::memcpy(index, *operands.index, sizeof(index));
    ready.index = &index;
  }
  if (scaled) {
    for (int lane = 0; lane < kLanes; ++lane) {
      scales[0][lane] = (*operands.scale_a)[lane] >> 8 * operands.op_sel_a & 255;
      scales[1][lane] = (*operands.scale_b)[lane] >> 8 * operands.op_sel_b & 255;
    }
  }
  WEFT_CPU_DISPATCH(run_matrix)
  (call, ready, scaled ? scales[0] : nullptr, scaled ? scales[1] : nullptr);
}

std::span<const MatrixOp> matrix_ops() {
  static const std::array<MatrixOp, kOps> ops = [] {
    std::array<MatrixOp, kOps> made{};
    for (int i = 0; i < kOps; ++i) {
      const MatrixInstruction& shape = cdna::kMatrixInstructions[i];
      const auto byte = [](int value) { return static_cast<uint8_t>(value); };
      made[i] = {.name = shape.name,
                 .instruction = &shape,
                 .m = byte(shape.m),
                 .n = byte(shape.n),
                 .k = byte(shape.k),
                 .blocks = byte(shape.blocks),
                 .a_regs = byte(shape.a_layout().registers()),
                 .b_regs = byte(shape.b_layout().registers()),
                 .d_regs = byte(shape.d_layout().registers()),
                 .sparse = shape.sparse,
                 .scaled = shape.scaled,
                 .passes_gfx942 = byte(shape.passes_on(Target::gfx942)),
                 .passes_gfx950 = byte(shape.passes_on(Target::gfx950)),
                 .passes_f4 = byte(
                     shape.a == MatrixFormat::chosen ? shape.passes_on(Target::gfx950) / 2 : 0)};
    }
    return made;
  }();
  return ops;
}

const MatrixOp* find_matrix_op(std::string_view mnemonic, Target target) {
  const MatrixInstruction* instruction = cdna::find_matrix_instruction(mnemonic, target);
  return instruction == nullptr
             ? nullptr
             : &matrix_ops()[static_cast<size_t>(instruction - cdna::kMatrixInstructions)];
}

}  // namespace weft::sim
#endif  // HWY_ONCE
