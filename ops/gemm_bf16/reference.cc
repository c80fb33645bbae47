#include "ops/decode.h"
#include "ops/gemm_bf16/op.h"

namespace weft::reference {

void gemm_bf16(const GemmBf16Args& args, Range rows, Range columns, double* out,
               double* magnitudes) {
  std::vector<std::vector<double>> a;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    a.push_back(decode(args.a.data, args.a.dtype, r * args.a.stride, 1, args.k));
  }
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    const auto b = decode(args.b.data, args.b.dtype, c * args.b.stride, 1, args.k);
    for (int64_t r = 0; r < rows.size(); ++r) {
      const Product sum = product(a[static_cast<size_t>(r)].data(), b.data(), args.k);
      const int64_t at = r * columns.size() + c - columns.begin;
      out[at] = sum.value;
      magnitudes[at] = sum.magnitude;
    }
  }
}

}  // namespace weft::reference
