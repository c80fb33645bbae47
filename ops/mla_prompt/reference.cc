#include <algorithm>
#include <vector>

#include "ops/decode.h"
#include "ops/mla_prompt/op.h"
#include "ops/softmax_reference.h"

namespace weft::reference {

void latent_attention(const LatentAttentionArgs& args, Range rows, Range heads, double* out) {
  const LatentHeads& of = args.of;
  const int64_t size = of.unturned + of.turned;
  const int64_t last = args.positions[rows.end - 1];
  const auto rounded = [&](double x) {
    return args.element == DType::bf16 ? double{to_float(to_bf16(static_cast<float>(x)))} : x;
  };
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    std::vector<std::vector<double>> weights;
    for (int64_t i = of.key_row(h); i < of.key_row(h + 1); ++i) {
      weights.push_back(decode(of.w.data, of.w.dtype, i * of.w.stride, 1, of.rank));
      for (int64_t c = 0; c < of.rank; ++c) {
        weights.back()[static_cast<size_t>(c)] *= double{of.scales.at(i, c)};
      }
    }
    std::vector<std::vector<double>> keys;
    std::vector<std::vector<double>> values;
    for (int64_t p = 0; p <= last; ++p) {
      const int64_t cached = of.rank + of.turned;
      const std::vector<double> latent = decode(
          args.cache.keys, args.cache.dtype, args.cache.place(rows.begin, 0, p, cached), 1, cached);
      const auto multiply = [&](int64_t first, int64_t count) {
        std::vector<double> sums;
        for (int64_t i = first; i < first + count; ++i) {
          sums.push_back(
              product(weights[static_cast<size_t>(i)].data(), latent.data(), of.rank).value);
        }
        return sums;
      };
      keys.push_back(multiply(0, of.unturned));
      keys.back().insert(keys.back().end(), latent.begin() + of.rank, latent.end());
      values.push_back(multiply(of.unturned, of.value));
    }
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      std::vector<double> query =
          decode(args.q.data, args.q.dtype, r * args.q.stride + h * size, 1, size);
      for (int64_t i = 0; i < of.turned / 2; ++i) {
        const double cosine = args.cosines[r * (of.turned / 2) + i];
        const double sine = args.sines[r * (of.turned / 2) + i];
        double* const pair = query.data() + of.unturned + 2 * i;
        const double a = pair[0];
        const double b = pair[1];
        pair[0] = a * cosine - b * sine;
        pair[1] = b * cosine + a * sine;
      }
      std::ranges::transform(query, query.begin(), rounded);
      std::vector<double> shares;
      for (int64_t p = 0; p <= args.positions[r]; ++p) {
        const double* key = keys[static_cast<size_t>(p)].data();
        shares.push_back(double{args.scale} * product(query.data(), key, size).value);
      }
      softmax(shares);
      double* const to = out + ((r - rows.begin) * heads.size() + h - heads.begin) * of.value;
      std::fill_n(to, of.value, 0.0);
      for (size_t p = 0; p < shares.size(); ++p) {
        for (int64_t v = 0; v < of.value; ++v) {
          to[v] += shares[p] * values[p][static_cast<size_t>(v)];
        }
      }
    }
  }
}

}  // namespace weft::reference
