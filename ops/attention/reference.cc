#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/op.h"
#include "ops/decode.h"
#include "ops/softmax_reference.h"

namespace weft::reference {
namespace {

void add(double share, const std::vector<double>& row, double* sum) {
  for (const double value : row) {
    *sum++ += share * value;
  }
}

}  // namespace

void attention(const AttentionArgs& args, Range rows, Range query_heads, double* out) {
  const int64_t dim = args.head_dim;
  const int64_t group = args.query_heads / args.kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t last = args.positions[r];
    const int64_t first = args.window > 0 ? std::max<int64_t>(0, last - args.window + 1) : 0;
    // Query heads of one KV head together, so that its rows are decoded once for all of them.
    for (int64_t begin = query_heads.begin, end; begin < query_heads.end; begin = end) {
      end = std::min(query_heads.end, (begin / group + 1) * group);
      const int64_t head = begin / group * args.cache.head_stride;
      const int64_t heads = end - begin;
      const std::vector<double> queries =
          decode(args.q.data, args.q.dtype, r * args.q.stride + begin * dim, 1, heads * dim);
      std::vector<std::vector<double>> weight(heads, std::vector<double>(last - first + 1));
      for (int64_t key = first; key <= last; ++key) {
        const std::vector<double> row =
            decode(args.cache.keys, args.cache.dtype, head + key * dim, 1, dim);
        const double* query = queries.data();
        for (int64_t h = 0; h < heads; ++h, query += dim) {
          const double score = args.scale * product(row.data(), query, dim).value;
          weight[h][key - first] =
              args.soft_cap > 0 ? args.soft_cap * std::tanh(score / args.soft_cap) : score;
        }
      }
      for (int64_t h = 0; h < heads; ++h) {
        softmax(weight[h], args.sinks.data == nullptr
                               ? kNoSink
                               : element(args.sinks.data, args.sinks.dtype, begin + h));
      }
      std::fill(out, out + heads * dim, 0.0);
      for (int64_t key = first; key <= last; ++key) {
        const std::vector<double> row =
            decode(args.cache.values, args.cache.dtype, head + key * dim, 1, dim);
        double* sum = out;
        for (int64_t h = 0; h < heads; ++h, sum += dim) {
          add(weight[h][key - first], row, sum);
        }
      }
      out += heads * dim;
    }
  }
}

}  // namespace weft::reference
