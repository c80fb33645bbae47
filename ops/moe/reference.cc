#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/moe/op.h"

namespace weft::reference {

void route(const RouteArgs& args, Range rows, int32_t* ids, double* weights) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto logit = [&](int32_t e) { return element(args.logits, r, e); };
    const auto rank = [&](int32_t e) {  // no number is larger than infinity, but NaN is
      return std::isnan(logit(e)) ? std::pair(1, 0.0) : std::pair(0, logit(e));
    };
    std::vector<int32_t> order(static_cast<size_t>(args.experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
    const double largest = logit(order.front());
    const auto score = [&](int32_t e) {
      return args.sigmoid ? 1 / (1 + std::exp(-logit(e))) : std::exp(logit(e) - largest);
    };
    const auto counted =
        static_cast<ptrdiff_t>(args.renormalise ? args.drawn.chosen : args.experts);
    const double sum =
        args.sigmoid && !args.renormalise
            ? 1
            : std::accumulate(order.begin(), order.begin() + counted, 0.0,
                              [&](double so_far, int32_t e) { return so_far + score(e); });
    std::sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(args.drawn.chosen));
    for (int64_t s = 0; s < args.drawn.chosen; ++s) {
      *ids++ = order[static_cast<size_t>(s)];
      *weights++ = score(order[static_cast<size_t>(s)]) / sum;
    }
  }
}

void experts_up(const ExpertsUpArgs& args, Range rows, Range columns, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t s = 0; s < args.drawn.chosen; ++s, out += columns.size()) {
      GatedLinearArgs expert =
          args.experts[static_cast<size_t>(args.drawn.ids[args.drawn.slot(r, s)])];
      expert.a = args.a;
      gated_linear(expert, {r, r + 1}, columns, out);
    }
  }
}

void experts_down(const ExpertsDownArgs& args, Range rows, Range columns, double* out) {
  std::vector<double> one(static_cast<size_t>(columns.size()));
  for (int64_t r = rows.begin; r < rows.end; ++r, out += columns.size()) {
    std::fill_n(out, columns.size(), 0.0);
    for (int64_t s = 0; s < args.drawn.chosen; ++s) {
      const int64_t slot = args.drawn.slot(r, s);
      LinearArgs expert = args.experts[static_cast<size_t>(args.drawn.ids[slot])];
      expert.a = args.a;
      linear(expert, {slot, slot + 1}, columns, one.data());
      for (size_t c = 0; c < one.size(); ++c) {
        out[c] += double{args.alpha} * double{args.drawn.weights[slot]} * one[c];
      }
    }
  }
}

}  // namespace weft::reference
