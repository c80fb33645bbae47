#include <cmath>

#include "ops/mla/op.h"

namespace weft::reference {
namespace {

/// Element 2i or 2i + 1 of what RoPE turns: `x` gives elements.
template <class X>
void turn(const X& x, const float* cosines, const float* sines, int64_t turned, double* out) {
  for (int64_t i = 0; i < turned / 2; ++i) {
    const double a = x(2 * i);
    const double b = x(2 * i + 1);
    out[2 * i] = a * cosines[i] - b * sines[i];
    out[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

double weight(const LatentHeads& of, int64_t row, int64_t column) {
  return element(of.w, row, column) * double{of.scales.at(row, column)};
}

}  // namespace

void latent_append(const LatentAppendArgs& args, Range rows, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r, out += args.rank + args.turned) {
    double squares = 0;
    for (int64_t i = 0; i < args.rank; ++i) {
      squares += element(args.x, r, i) * element(args.x, r, i);
    }
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(args.rank) + double{args.epsilon});
    for (int64_t i = 0; i < args.rank; ++i) {
      out[i] = element(args.x, r, i) * factor * element(args.norm.data, args.norm.dtype, i);
    }
    const int64_t half = args.turned / 2;
    turn([&](int64_t i) { return element(args.x, r, args.rank + i); }, args.cosines + r * half,
         args.sines + r * half, args.turned, out + args.rank);
  }
}

void latent_queries(const LatentQueriesArgs& args, Range rows, Range heads, double* out) {
  const LatentHeads& of = args.of;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = heads.begin; h < heads.end; ++h, out += of.rank + of.turned) {
      const auto q = [&](int64_t i) {
        return element(args.q, r, h * (of.unturned + of.turned) + i);
      };
      for (int64_t c = 0; c < of.rank; ++c) {
        out[c] = 0;
        for (int64_t i = 0; i < of.unturned; ++i) {
          out[c] += q(i) * weight(of, of.key_row(h) + i, c);
        }
      }
      const int64_t half = of.turned / 2;
      turn([&](int64_t i) { return q(of.unturned + i); }, args.cosines + r * half,
           args.sines + r * half, of.turned, out + of.rank);
    }
  }
}

void latent_values(const LatentValuesArgs& args, Range rows, Range heads, double* out) {
  const LatentHeads& of = args.of;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      for (int64_t v = 0; v < of.value; ++v, ++out) {
        *out = 0;
        for (int64_t c = 0; c < of.rank; ++c) {
          *out += weight(of, of.value_row(h) + v, c) * element(args.a, r, h * args.pitch + c);
        }
      }
    }
  }
}

}  // namespace weft::reference
