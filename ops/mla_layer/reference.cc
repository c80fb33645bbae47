#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/mla_decode/turn.h"
#include "ops/mla_layer/op.h"

namespace weft::reference {
namespace {

/// One token's numbers between two steps, in f32, which is what they are computed to at least.
using Numbers = std::vector<float>;

ConstMatrix matrix_of(const Numbers& x) {
  return {x.data(), DType::f32, static_cast<int64_t>(x.size())};
}

void round(bool rounded, Numbers& x) {
  for (float& each : x) {
    each = rounded ? to_float(to_bf16(each)) : each;
  }
}

Numbers product(const ConstMatrix& a, const ConstMatrix& w, int64_t n, int64_t k) {
  std::vector<double> sums(static_cast<size_t>(n));
  std::vector<double> magnitudes(sums.size());
  weft::reference::gemm_bf16({.m = 1, .n = n, .k = k, .a = a, .b = w, .out = {}, .workspace = {}},
                             {0, 1}, {0, n}, sums.data(), magnitudes.data());
  return {sums.begin(), sums.end()};
}

void one(const MlaLayerArgs& args, int64_t sequence, bool rounded, double* y, double* row) {
  const ConstMatrix x{static_cast<const bf16*>(args.x.data) + sequence * args.x.stride, DType::bf16,
                      args.x.stride};
  Numbers own = product(x, args.kv_down, kLatentRow, args.dim);
  round(true, own);
  std::copy(own.begin(), own.end(), row);
  const int64_t length = args.prefill + 1;
  std::vector<bf16> rows(static_cast<size_t>(length * kLatentRow));
  std::memcpy(rows.data(),
              static_cast<const bf16*>(args.cache) + sequence * args.capacity * kLatentRow,
              rows.size() * sizeof(bf16));
  for (int64_t i = 0; i < kLatentRow; ++i) {
    rows[args.prefill * kLatentRow + i] = to_bf16(own[i]);
  }

  Numbers latent = product(x, args.q_down, args.q_rank, args.dim);
  round(rounded, latent);
  Numbers q = product(matrix_of(latent), args.q_up, args.heads * kLayerQuery, args.q_rank);
  round(rounded, q);
  Numbers queries(static_cast<size_t>(args.heads * kLatentRow));
  std::vector<double> sums(kLatentRank);
  for (int64_t head = 0; head < args.heads; ++head) {
    const float* from = q.data() + head * kLayerQuery;
    float* to = queries.data() + head * kLatentRow;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < kLayerNope; ++k) {
      const int64_t key_row = head * kLayerHeadRows + k;
      for (int64_t i = 0; i < kLatentRank; ++i) {
        sums[i] += double{from[k]} * element(args.kv_up, key_row, i);
      }
    }
    std::copy(sums.begin(), sums.end(), to);
    double turned[kLatentTurned];
    std::copy(from + kLayerNope, from + kLayerQuery, turned);
    turn_halves(args.angles, args.prefill, rounded, turned);
    std::copy(turned, turned + kLatentTurned, to + kLatentRank);
  }
  round(rounded, queries);

  MlaDecodeArgs attention;
  const auto keys = static_cast<int32_t>(length);
  attention.batch = 1;
  attention.tokens = 1;
  attention.heads = args.heads;
  attention.q = matrix_of(queries);
  attention.cache = {.rows = rows.data(),
                     .blocks = 1,
                     .block_rows = length,
                     .block_stride = length,
                     .angles = args.angles};
  attention.lengths = &keys;
  attention.scale = 1 / std::sqrt(static_cast<float>(kLayerQuery));
  std::vector<double> attended(static_cast<size_t>(args.heads * kLatentRank));
  std::vector<double> magnitudes(attended.size());
  std::vector<double> logarithms(static_cast<size_t>(args.heads));
  mla_decode(attention, {0, 1}, attended.data(), magnitudes.data(), logarithms.data());
  Numbers seen(attended.begin(), attended.end());
  round(rounded, seen);
  Numbers values;
  for (int64_t head = 0; head < args.heads; ++head) {
    const int64_t value_row = head * kLayerHeadRows + kLayerNope;
    const ConstMatrix a{seen.data() + head * kLatentRank, DType::f32, kLatentRank};
    const ConstMatrix v{static_cast<const bf16*>(args.kv_up.data) + value_row * args.kv_up.stride,
                        DType::bf16, args.kv_up.stride};
    const Numbers some = product(a, v, kLayerValue, kLatentRank);
    values.insert(values.end(), some.begin(), some.end());
  }
  round(rounded, values);
  const Numbers result = product(matrix_of(values), args.o, args.dim, args.heads * kLayerValue);
  std::copy(result.begin(), result.end(), y);
}

}  // namespace

void mla_layer(const MlaLayerArgs& args, Range sequences, bool rounded, double* y, double* rows) {
  for (int64_t i = sequences.begin; i < sequences.end; ++i, y += args.dim, rows += kLatentRow) {
    one(args, i, rounded, y, rows);
  }
}

}  // namespace weft::reference
