#include <vector>

#include "ops/activation_reference.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"

namespace weft::reference {

void gated_linear(const GatedLinearArgs& args, Range rows, Range columns, double* out) {
  const auto projection = [&](const ConstMatrix& w, const ConstVector& bias,
                              const WeightScales& scales) {
    std::vector<double> result(rows.size() * columns.size());
    const LinearArgs linear_args{.a = args.a,
                                 .w = w,
                                 .bias = bias,
                                 .n = args.n,
                                 .k = args.k,
                                 .out = {},
                                 .scales = scales,
                                 .rounding = args.rounding};
    linear(linear_args, rows, columns, result.data());
    return result;
  };
  const std::vector<double> gate = projection(args.gate, args.gate_bias, args.gate_scales);
  const std::vector<double> up = projection(args.up, args.up_bias, args.up_scales);
  for (size_t i = 0; i < gate.size(); ++i) {
    out[i] = activate(args.activation, gate[i]) * up[i];
  }
}

}  // namespace weft::reference
