#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/fp8.h"
#include "ops/mla_decode/op.h"

namespace weft::reference {

double latent_element(const LatentCache& cache, int64_t row, int64_t column) {
  const auto* bytes = static_cast<const std::byte*>(cache.rows) + row * cache.row_bytes();
  if (cache.dtype == DType::bf16) {
    return element(bytes, DType::bf16, column);
  }
  if (column >= kLatentRank) {
    const auto* turned = bytes + kLatentRank + 4 * kLatentScales;
    return element(turned, DType::bf16, column - kLatentRank);
  }
  float scale;
  std::memcpy(&scale, bytes + kLatentRank + 4 * (column / 128), sizeof(scale));
  const auto code = static_cast<float>(element(bytes, DType::e4m3fn, column));
  return to_float(to_bf16(code * scale));
}

void mla_decode(const MlaDecodeArgs& args, Range rows, double* out, double* magnitudes,
                double* sums) {
  std::vector<double> key(kLatentRow);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t sequence = r / args.tokens;
    const int64_t keys = latent_keys(args.length(sequence), args.tokens, r % args.tokens);
    const auto decode = [&](int64_t position) {
      for (int64_t i = 0; i < kLatentRow; ++i) {
        key[i] = latent_element(args.cache, args.place(sequence, position), i);
      }
    };
    std::vector<double> q(args.heads * kLatentRow);
    for (int64_t i = 0; i < args.heads * kLatentRow; ++i) {
      q[i] = element(args.q, r, i);
    }
    std::vector<double> weights(args.heads * keys);
    for (int64_t position = 0; position < keys; ++position) {
      decode(position);
      for (int64_t h = 0; h < args.heads; ++h) {
        double score = 0;
        for (int64_t i = 0; i < kLatentRow; ++i) {
          score += q[h * kLatentRow + i] * key[i];
        }
        weights[h * keys + position] = score * args.scale;
      }
    }
    for (int64_t h = 0; h < args.heads; ++h, ++sums) {
      double* w = weights.data() + h * keys;
      double best = -std::numeric_limits<double>::infinity();
      for (int64_t i = 0; i < keys; ++i) {
        best = std::max(best, w[i]);
      }
      double sum = 0;
      for (int64_t i = 0; i < keys; ++i) {
        w[i] = std::exp(w[i] - best);
        sum += w[i];
      }
      for (int64_t i = 0; i < keys; ++i) {
        w[i] /= sum;
      }
      *sums = keys > 0 ? best + std::log(sum) : -std::numeric_limits<double>::infinity();
    }
    std::fill(out, out + args.heads * kLatentRank, 0.0);
    std::fill(magnitudes, magnitudes + args.heads * kLatentRank, 0.0);
    for (int64_t position = 0; position < keys; ++position) {
      decode(position);
      for (int64_t h = 0; h < args.heads; ++h) {
        for (int64_t i = 0; i < kLatentRank; ++i) {
          const double term = weights[h * keys + position] * key[i];
          out[h * kLatentRank + i] += term;
          magnitudes[h * kLatentRank + i] += std::fabs(term);
        }
      }
    }
    out += args.heads * kLatentRank;
    magnitudes += args.heads * kLatentRank;
  }
}

}  // namespace weft::reference
