#include <cmath>
#include <vector>

#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"

namespace weft::cpu {

void gated_linear(const GatedLinearArgs& args, Range rows, Range columns,
                  std::span<std::byte> scratch) {
  const auto projection = [&](const ConstMatrix& w, const ConstVector& bias) {
    std::vector<float> result(rows.end * args.n);
    const Matrix out{.data = result.data(), .dtype = DType::f32, .stride = args.n};
    const LinearArgs linear_args{
        .a = args.a, .w = w, .bias = bias, .n = args.n, .k = args.k, .out = out};
    linear(linear_args, rows, columns, scratch);
    return result;
  };
  const std::vector<float> gate = projection(args.gate, args.gate_bias);
  const std::vector<float> up = projection(args.up, args.up_bias);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const float g = gate[r * args.n + c];
      const float value = g / (1 + std::exp(-g)) * up[r * args.n + c];
      const int64_t at = r * args.out.stride + c;
      if (args.out.dtype == DType::bf16) {
        static_cast<bf16*>(args.out.data)[at] = to_bf16(value);
      } else {
        static_cast<float*>(args.out.data)[at] = value;
      }
    }
  }
}

size_t gated_linear_scratch_bytes(const GatedLinearArgs& /*args*/, int64_t /*rows*/) { return 64; }

}  // namespace weft::cpu
