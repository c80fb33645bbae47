// mla on the CPU. Queries: a head's rows of weights are added up, each times an element of the
// query, in registers for a few rows of queries at a time.
#include "ops/mla/op.h"

#include <algorithm>
#include <cmath>

#include "ops/linear/op.h"
#include "ops/mla/product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mla/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/e4m3-inl.h"
#include "arch/cpu/vector-inl.h"
#include "ops/mla/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Vectors of sums that fit the registers beside what they are made of.
inline constexpr int kSums = kFloatLanes == 16 ? 16 : 8;

template <class Cache>
void append_rows(const LatentAppendArgs& args, Range rows) {
  const FloatTag d;
  const int64_t half = args.turned / 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = row<float>(args.x, r);
    auto* out = static_cast<Cache*>(args.cache.keys) +
                args.cache.place(r, 0, args.positions[r], args.rank + args.turned);
    auto squares = hn::Zero(d);
    for (int64_t i = 0; i < args.rank; i += kFloatLanes) {
      const auto v = load_first(d, x + i, std::min<int64_t>(kFloatLanes, args.rank - i));
      squares = hn::MulAdd(v, v, squares);
    }
    const float mean = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(args.rank);
    const float factor = 1 / std::sqrt(mean + args.epsilon);
    with_type(args.norm.dtype, [&](auto type) {
      const auto* weights = static_cast<const decltype(type)*>(args.norm.data);
      for (int64_t i = 0; i < args.rank; ++i) {
        out[i] = converted<Cache>(x[i] * factor * to_float(weights[i]));
      }
    });
    turn_pairs(x + args.rank, args.cosines + r * half, args.sines + r * half, args.turned,
               out + args.rank);
  }
}

void append(const LatentAppendArgs& args, Range rows) {
  if (args.cache.dtype == DType::bf16) {
    append_rows<bf16>(args, rows);
  } else {
    append_rows<float>(args, rows);
  }
}

/// Columns of K^T q for kRows rows of queries.
template <class W, class Out, int kRows>
class QueryTile {
  static constexpr int kVectors = kSums / kRows;

 public:
  static constexpr int64_t kColumns = kVectors * kFloatLanes;

  /// `pitch`: elements of out from a head's to the next one's.
  static void run(const LatentQueriesArgs& args, int64_t r, int64_t head, int64_t column,
                  int64_t count, int64_t pitch) {
    const FloatTag d;
    const LatentHeads& of = args.of;
    const W* w = static_cast<const W*>(of.w.data) + of.key_row(head) * of.w.stride + column;
    const float* q[kRows];
    for (int i = 0; i < kRows; ++i) {
      q[i] = row<float>(args.q, r + i) + head * (of.unturned + of.turned);
    }
    FloatVec sum[kRows][kVectors];
    for (auto& each : sum) {
      std::fill(each, each + kVectors, hn::Zero(d));
    }
    for (int64_t k = 0; k < of.unturned; ++k, w += of.w.stride) {
      FloatVec weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const int64_t first = v * static_cast<int64_t>(kFloatLanes);
        const int64_t left = count - first;
        weights[v] = left >= static_cast<int64_t>(kFloatLanes) ? load(d, w + first)
                     : left > 0 ? load_first(d, w + first, static_cast<size_t>(left))
                                : hn::Zero(d);
        if constexpr (std::is_same_v<W, e4m3fn>) {
          const float scale =
              left > 0 ? of.scales.at(of.key_row(head) + k, column + first) * kE4m3Unit : 0;
          weights[v] = hn::Mul(weights[v], hn::Set(d, scale));
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const auto x = hn::Set(d, q[i][k]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sum[i][v] = hn::MulAdd(x, weights[v], sum[i][v]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      Out* out = row<Out>(args.out, r + i) + head * pitch + column;
      for (int64_t v = 0; v * static_cast<int64_t>(kFloatLanes) < count; ++v) {
        const int64_t first = v * static_cast<int64_t>(kFloatLanes);
        store_first(d, sum[i][v], out + first,
                    static_cast<size_t>(std::min<int64_t>(kFloatLanes, count - first)));
      }
    }
  }
};

/// Some of a head's columns of K^T q.
template <class W, class Out>
void head_columns(const LatentQueriesArgs& args, Range rows, int64_t head, Range some,
                  int64_t pitch) {
  const auto columns = [&](auto tile, int64_t r) {
    using Tile = decltype(tile);
    for (int64_t c = some.begin; c < some.end; c += Tile::kColumns) {
      Tile::run(args, r, head, c, std::min(Tile::kColumns, some.end - c), pitch);
    }
  };
  int64_t r = rows.begin;
  for (; r + 4 <= rows.end; r += 4) {
    columns(QueryTile<W, Out, 4>(), r);
  }
  for (; r < rows.end; ++r) {
    columns(QueryTile<W, Out, 1>(), r);
  }
}

template <class Out>
void turned_as(const LatentQueriesArgs& args, Range rows, Range heads) {
  const LatentHeads& of = args.of;
  const int64_t half = of.turned / 2;
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const float* q = row<float>(args.q, r) + head * (of.unturned + of.turned) + of.unturned;
      turn_pairs(q, args.cosines + r * half, args.sines + r * half, of.turned,
                 row<Out>(args.out, r) + head * (of.rank + of.turned) + of.rank);
    }
  }
}

void turned(const LatentQueriesArgs& args, Range rows, Range heads) {
  if (args.out.dtype == DType::bf16) {
    turned_as<bf16>(args, rows, heads);
  } else {
    turned_as<float>(args, rows, heads);
  }
}

/// Columns of all heads' K^T q, `rank` of each.
void columns(const LatentQueriesArgs& args, Range rows, Range columns, int64_t pitch) {
  const int64_t rank = args.of.rank;
  const auto run = [&](auto w) {
    for (int64_t head = columns.begin / rank; head * rank < columns.end; ++head) {
      const Range some{std::max<int64_t>(0, columns.begin - head * rank),
                       std::min(rank, columns.end - head * rank)};
      if (args.out.dtype == DType::bf16) {
        head_columns<decltype(w), bf16>(args, rows, head, some, pitch);
      } else {
        head_columns<decltype(w), float>(args, rows, head, some, pitch);
      }
    }
  };
  if (args.of.w.dtype == DType::e4m3fn) {
    run(e4m3fn{});
  } else {
    with_type(args.of.w.dtype, run);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"
#include "base/check.h"

namespace weft::cpu {
namespace {

/// A head's product.
LinearArgs value_product(const LatentValuesArgs& args, int64_t head) {
  LinearArgs product = rows_product(args.of, args.of.value_row(head), args.of.value);
  const int64_t from = head * args.pitch;
  product.a = {static_cast<const float*>(args.a.data) + from, DType::f32, args.a.stride};
  product.out = args.out;
  product.out.data = static_cast<std::byte*>(args.out.data) +
                     head * args.of.value * static_cast<int64_t>(size_of(args.out.dtype));
  return product;
}

}  // namespace

void latent_append(const LatentAppendArgs& args, Range rows) {
  WEFT_CPU_DISPATCH(append)(args, rows);
}

void latent_queries(const LatentQueriesArgs& args, Range rows, Range heads) {
  const LatentHeads& of = args.of;
  WEFT_CPU_DISPATCH(columns)
  (args, rows, {heads.begin * of.rank, heads.end * of.rank}, of.rank + of.turned);
  latent_turned_queries(args, rows, heads);
}

void latent_turned_queries(const LatentQueriesArgs& args, Range rows, Range heads) {
  WEFT_CPU_DISPATCH(turned)(args, rows, heads);
}

void latent_query_columns(const LatentQueriesArgs& args, Range rows, Range columns) {
  WEFT_CPU_DISPATCH(columns)(args, rows, columns, args.of.rank);
}

void latent_values(const LatentValuesArgs& args, Range rows, Range heads,
                   std::span<std::byte> scratch) {
  latent_value_columns(args, rows, {heads.begin * args.of.value, heads.end * args.of.value},
                       scratch);
}

void latent_value_columns(const LatentValuesArgs& args, Range rows, Range columns,
                          std::span<std::byte> scratch) {
  const int64_t value = args.of.value;
  for (int64_t head = columns.begin / value; head * value < columns.end; ++head) {
    linear(value_product(args, head), rows,
           {std::max<int64_t>(0, columns.begin - head * value),
            std::min(value, columns.end - head * value)},
           scratch);
  }
}

size_t latent_values_scratch_bytes(const LatentValuesArgs& args, int64_t rows) {
  LinearArgs product;
  product.w = args.of.w;
  product.k = args.of.rank;
  return linear_scratch_bytes(product, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
