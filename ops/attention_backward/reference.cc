#include <algorithm>
#include <cmath>

#include "ops/attention_backward/op.h"

namespace weft::reference {
namespace {

double product(const ConstMatrix& a, int64_t row_a, int64_t column_a, const ConstMatrix& b,
               int64_t row_b, int64_t column_b, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    sum += element(a, row_a, column_a + i) * element(b, row_b, column_b + i);
  }
  return sum;
}

/// Of a query of head `head` and a key, rows of the matrices.
struct Pair {
  double probability;
  double score_gradient;

  Pair(const AttentionBackwardArgs& args, int64_t query, int64_t key, int64_t head) {
    const SequenceShape& shape = args.shape;
    const int64_t dim = shape.head_dim;
    const int64_t column = head * dim;
    const int64_t kv_column = head / shape.group() * dim;
    const int64_t sequence = query / shape.tokens;
    const double lse =
        args.lse[(sequence * shape.query_heads + head) * shape.tokens + query % shape.tokens];
    const double score = product(args.q, query, column, args.k, key, kv_column, dim);
    probability = std::exp(shape.scale * score - lse);
    const double delta = product(args.d_out, query, column, args.out, query, column, dim);
    score_gradient =
        probability * (product(args.d_out, query, column, args.v, key, kv_column, dim) - delta);
  }
};

}  // namespace

void attention_backward(const AttentionBackwardArgs& args, Range rows,
                        const AttentionGradients& out) {
  const SequenceShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t first = r / shape.tokens * shape.tokens;
    double* const d_q = out.d_q + (r - rows.begin) * shape.query_columns();
    double* const d_k = out.d_k + (r - rows.begin) * shape.kv_columns();
    double* const d_v = out.d_v + (r - rows.begin) * shape.kv_columns();
    std::fill(d_q, d_q + shape.query_columns(), 0.0);
    std::fill(d_k, d_k + shape.kv_columns(), 0.0);
    std::fill(d_v, d_v + shape.kv_columns(), 0.0);
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      const int64_t column = h * dim;
      const int64_t kv_column = h / shape.group() * dim;
      // The row as a query.
      for (int64_t key = first; key < first + shape.keys_of(r - first); ++key) {
        const Pair pair(args, r, key, h);
        for (int64_t i = 0; i < dim; ++i) {
          d_q[column + i] +=
              shape.scale * pair.score_gradient * element(args.k, key, kv_column + i);
        }
      }
      // The row as a key.
      for (int64_t query = shape.causal ? r : first; query < first + shape.tokens; ++query) {
        const Pair pair(args, query, r, h);
        for (int64_t i = 0; i < dim; ++i) {
          d_k[kv_column + i] +=
              shape.scale * pair.score_gradient * element(args.q, query, column + i);
          d_v[kv_column + i] += pair.probability * element(args.d_out, query, column + i);
        }
      }
    }
  }
}

}  // namespace weft::reference
