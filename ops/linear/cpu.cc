#include "ops/linear/op.h"

namespace weft::cpu {
namespace {

template <class A, class W>
void plain(const LinearArgs& args, Range rows, Range columns) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const A* a = static_cast<const A*>(args.a.data) + r * args.a.stride;
    float* out = static_cast<float*>(args.out.data) + r * args.out.stride;
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const W* w = static_cast<const W*>(args.w.data) + c * args.w.stride;
      constexpr int kLanes = 16;
      float lanes[kLanes] = {};
      int64_t i = 0;
      for (; i + kLanes <= args.k; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
          lanes[j] += to_float(a[i + j]) * to_float(w[i + j]);
        }
      }
      for (; i < args.k; ++i) {
        lanes[0] += to_float(a[i]) * to_float(w[i]);
      }
      float sum = 0;
      for (float lane : lanes) {
        sum += lane;
      }
      if (args.bias.data != nullptr) {
        sum += args.bias.dtype == DType::f32 ? static_cast<const float*>(args.bias.data)[c]
               : args.bias.dtype == DType::bf16
                   ? to_float(static_cast<const bf16*>(args.bias.data)[c])
                   : to_float(static_cast<const f16*>(args.bias.data)[c]);
      }
      out[c] = args.accumulate ? out[c] + args.alpha * sum : args.alpha * sum;
    }
  }
}

}  // namespace

void linear(const LinearArgs& args, Range rows, Range columns, std::span<std::byte> /*scratch*/) {
  if (args.a.dtype == DType::bf16) {
    plain<bf16, bf16>(args, rows, columns);
  } else if (args.w.dtype == DType::bf16) {
    plain<float, bf16>(args, rows, columns);
  } else if (args.w.dtype == DType::f16) {
    plain<float, f16>(args, rows, columns);
  } else {
    plain<float, float>(args, rows, columns);
  }
}

size_t linear_scratch_bytes(const LinearArgs& /*args*/, int64_t /*rows*/) { return 64; }

}  // namespace weft::cpu
