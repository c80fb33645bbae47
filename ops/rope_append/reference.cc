#include "ops/rope_append/op.h"

namespace weft::reference {
namespace {

void rotate(const RopeAppendArgs& args, const ConstMatrix& x, int64_t heads, Range rows,
            double* out) {
  const int64_t half = (args.head_dim - args.unturned) / 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = 0; h < heads; ++h, out += args.head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const double a = element(x, r, h * args.head_dim + i);
        const double b = element(x, r, h * args.head_dim + half + i);
        const double cosine = args.cosines[r * half + i];
        const double sine = args.sines[r * half + i];
        out[i] = a * cosine - b * sine;
        out[half + i] = b * cosine + a * sine;
      }
      for (int64_t i = 2 * half; i < args.head_dim; ++i) {
        out[i] = element(x, r, h * args.head_dim + i);
      }
    }
  }
}

}  // namespace

void rope_append(const RopeAppendArgs& args, Range rows, double* q, double* k) {
  rotate(args, args.q, args.query_heads, rows, q);
  rotate(args, args.k, args.kv_heads, rows, k);
}

}  // namespace weft::reference
