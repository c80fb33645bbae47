#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention_decode/op.h"
#include "ops/softmax_reference.h"

namespace weft::reference {

void attention_decode(const AttentionDecodeArgs& args, Range rows, double* out, double* magnitudes,
                      double* distances) {
  const int64_t dim = args.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t sequence = r / args.tokens;
    const Range keys = decode_keys(args, args.lengths[sequence], r % args.tokens);
    for (int64_t h = 0; h < args.query_heads; ++h, out += dim, magnitudes += dim, ++distances) {
      const int64_t kv_head = h / (args.query_heads / args.kv_heads);
      const auto place = [&](int64_t key) {
        return args.cache.place(sequence, key, kv_head, args.kv_heads, dim);
      };
      std::fill(out, out + dim, 0.0);
      std::fill(magnitudes, magnitudes + dim, 0.0);
      *distances = 0;
      if (keys.empty()) {
        continue;
      }
      std::vector<double> weights;
      for (int64_t key = keys.begin; key < keys.end; ++key) {
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) {
          score += element(args.q, r, h * dim + i) *
                   element(args.cache.keys, DType::bf16, place(key) + i);
        }
        score *= args.scale;
        if (args.soft_cap > 0) {
          score = args.soft_cap * std::tanh(score / args.soft_cap);
        }
        weights.push_back(score);
        *distances = std::max(*distances, std::fabs(score - args.unified_maximum));
      }
      softmax(weights,
              args.sinks.data == nullptr ? kNoSink : element(args.sinks.data, args.sinks.dtype, h));
      for (int64_t key = keys.begin; key < keys.end; ++key) {
        for (int64_t i = 0; i < dim; ++i) {
          const double term = weights[static_cast<size_t>(key - keys.begin)] *
                              element(args.cache.values, DType::bf16, place(key) + i);
          out[i] += term;
          magnitudes[i] += std::fabs(term);
        }
      }
    }
  }
}

}  // namespace weft::reference
