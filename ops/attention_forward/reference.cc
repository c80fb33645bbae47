#include <vector>

#include "ops/attention_forward/op.h"
#include "ops/softmax_reference.h"

namespace weft::reference {

void attention_forward(const AttentionForwardArgs& args, Range rows, double* out, double* lse) {
  const SequenceShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  std::vector<double> weight;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t first = r / shape.tokens * shape.tokens;  // row of the sequence
    for (int64_t h = 0; h < shape.query_heads; ++h, out += dim, ++lse) {
      const int64_t column = h / shape.group() * dim;
      weight.assign(static_cast<size_t>(shape.keys_of(r - first)), 0);
      for (size_t key = 0; key < weight.size(); ++key) {
        const int64_t at = first + static_cast<int64_t>(key);
        for (int64_t i = 0; i < dim; ++i) {
          weight[key] += element(args.q, r, h * dim + i) * element(args.k, at, column + i);
        }
        weight[key] *= shape.scale;
      }
      *lse = softmax(weight);
      for (int64_t i = 0; i < dim; ++i) {
        out[i] = 0;
        for (size_t key = 0; key < weight.size(); ++key) {
          out[i] += weight[key] * element(args.v, first + static_cast<int64_t>(key), column + i);
        }
      }
    }
  }
}

}  // namespace weft::reference
