#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/fp8.h"
#include "ops/mla_decode/turn.h"
#include "ops/softmax_reference.h"

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

void turn_halves(const void* angles, int64_t position, bool rounded, double* x) {
  constexpr int64_t kHalf = kLatentTurned / 2;
  const auto to_format = [&](double y) {
    return rounded ? double{to_float(to_bf16(static_cast<float>(y)))} : y;
  };
  for (int64_t i = 0; i < kHalf; ++i) {
    const double cosine = element(angles, DType::bf16, position * kLatentTurned + i);
    const double sine = element(angles, DType::bf16, position * kLatentTurned + kHalf + i);
    const double a = x[i];
    const double b = x[i + kHalf];
    x[i] = to_format(to_format(a * cosine) - to_format(b * sine));
    x[i + kHalf] = to_format(to_format(b * cosine) + to_format(a * sine));
  }
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
      if (args.cache.angles != nullptr) {
        turn_halves(args.cache.angles, position, true, key.data() + kLatentRank);
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
      *sums = softmax({weights.data() + h * keys, static_cast<size_t>(keys)});
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
