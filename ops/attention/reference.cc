#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention/op.h"

namespace weft::reference {

void attention(const AttentionArgs& args, Range rows, Range query_heads, double* out) {
  const int64_t dim = args.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t last = args.positions[r];
    const int64_t first = args.window > 0 ? std::max<int64_t>(0, last - args.window + 1) : 0;
    std::vector<double> weight(last - first + 1);
    for (int64_t h = query_heads.begin; h < query_heads.end; ++h, out += dim) {
      const int64_t head = h / (args.query_heads / args.kv_heads) * args.cache.head_stride;
      double best = -std::numeric_limits<double>::infinity();
      for (int64_t key = first; key <= last; ++key) {
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) {
          score += element(args.q, r, h * dim + i) *
                   element(args.cache.keys, args.cache.dtype, head + key * dim + i);
        }
        score *= args.scale;
        weight[key - first] =
            args.soft_cap > 0 ? args.soft_cap * std::tanh(score / args.soft_cap) : score;
        best = std::max(best, weight[key - first]);
      }
      double sum = 0;
      if (args.sinks.data != nullptr) {
        const double sink = element(args.sinks.data, args.sinks.dtype, h);
        best = std::max(best, sink);
        sum = std::exp(sink - best);
      }
      for (double& w : weight) {
        w = std::exp(w - best);
        sum += w;
      }
      for (int64_t i = 0; i < dim; ++i) {
        out[i] = 0;
        for (int64_t key = first; key <= last; ++key) {
          out[i] += weight[key - first] / sum *
                    element(args.cache.values, args.cache.dtype, head + key * dim + i);
        }
      }
    }
  }
}

}  // namespace weft::reference
