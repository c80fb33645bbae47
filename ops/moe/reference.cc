#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/activation_reference.h"
#include "ops/moe/op.h"

namespace weft::reference {

namespace {

/// Numbers of the `count` largest values of those whose numbers are given, of equals the lower
/// ones; NaN is larger than infinity.
std::vector<int32_t> largest_of(const std::vector<int32_t>& numbers,
                                const std::vector<double>& values, int64_t count) {
  const auto rank = [&](int32_t i) {
    const double value = values[static_cast<size_t>(i)];
    return std::isnan(value) ? std::pair(1, 0.0) : std::pair(0, value);
  };
  std::vector<int32_t> order = numbers;
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<int32_t> numbers_up_to(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

void route(const RouteArgs& args, Range rows, int32_t* ids, double* weights) {
  const bool corrected = args.correction.data != nullptr;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::vector<double> logits;
    std::vector<double> choice;
    for (int64_t e = 0; e < args.experts; ++e) {
      logits.push_back(element(args.logits, r, e));
      choice.push_back(corrected ? sigmoid(logits.back()) +
                                       element(args.correction.data, args.correction.dtype, e)
                                 : logits.back());
    }
    const int64_t each = args.experts / args.groups;
    std::vector<double> group_scores;
    for (int64_t g = 0; g < args.groups; ++g) {
      std::vector<int32_t> members = numbers_up_to(each);
      for (int32_t& member : members) {
        member += static_cast<int32_t>(g * each);
      }
      double score = 0;
      for (const int32_t e :
           largest_of(members, choice, corrected ? std::min<int64_t>(2, each) : 1)) {
        score += choice[static_cast<size_t>(e)];
      }
      group_scores.push_back(score);
    }
    std::vector<int32_t> kept =
        largest_of(numbers_up_to(args.groups), group_scores, args.kept_groups);
    std::ranges::sort(kept);
    std::vector<int32_t> candidates;
    for (const int32_t g : kept) {
      for (int64_t i = 0; i < each; ++i) {
        candidates.push_back(static_cast<int32_t>(g * each + i));
      }
    }
    std::vector<int32_t> drawn = largest_of(candidates, choice, args.drawn.chosen);
    std::ranges::sort(drawn);
    double most = -std::numeric_limits<double>::infinity();
    for (const double logit : logits) {
      most = std::isnan(logit) || logit > most ? logit : most;
    }
    const auto score = [&](int32_t e) {
      const double logit = logits[static_cast<size_t>(e)];
      return args.sigmoid ? sigmoid(logit) : std::exp(logit - most);
    };
    const std::vector<int32_t> summed = args.renormalise ? drawn : numbers_up_to(args.experts);
    double sum = 0;
    for (const int32_t e : summed) {
      sum += score(e);
    }
    if (args.sigmoid && !args.renormalise) {
      sum = 1;
    }
    for (const int32_t e : drawn) {
      *ids++ = e;
      *weights++ = score(e) / sum * double{args.scale};
    }
  }
}

namespace {

/// One row's product with weights in MXFP4 and its bias.
double mx_product(const MxMatrix& w, const ConstVector& bias, const ConstMatrix& a, int64_t r,
                  int64_t c) {
  double sum = bias.data == nullptr ? 0 : element(bias.data, bias.dtype, c);
  for (int64_t i = 0; i < w.k; ++i) {
    sum += element(a, r, i) * double{w.at(c, i)};
  }
  return sum;
}

}  // namespace

void experts_up(const ExpertsUpArgs& args, Range rows, Range columns, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t s = 0; s < args.drawn.chosen; ++s, out += columns.size()) {
      GatedLinearArgs expert =
          args.experts[static_cast<size_t>(args.drawn.ids[args.drawn.slot(r, s)])];
      expert.a = args.a;
      if (args.gates.empty()) {
        gated_linear(expert, {r, r + 1}, columns, out);
        continue;
      }
      const auto e = static_cast<size_t>(args.drawn.ids[args.drawn.slot(r, s)]);
      const double limit = args.limit;
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        const double gate = mx_product(args.gates[e], expert.gate_bias, args.a, r, c);
        const double up = mx_product(args.ups[e], expert.up_bias, args.a, r, c);
        const double g = std::min(gate, limit);
        out[c - columns.begin] =
            limit > 0 ? g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -limit, limit) + 1)
                      : activate(expert.activation, gate) * up;
      }
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
      if (args.mx.empty()) {
        linear(expert, {slot, slot + 1}, columns, one.data());
      }
      for (int64_t c = columns.begin; c < columns.end && !args.mx.empty(); ++c) {
        one[static_cast<size_t>(c - columns.begin)] = mx_product(
            args.mx[static_cast<size_t>(args.drawn.ids[slot])], expert.bias, args.a, slot, c);
      }
      for (size_t c = 0; c < one.size(); ++c) {
        out[c] += double{args.alpha} * double{args.drawn.weights[slot]} * one[c];
      }
    }
  }
}

}  // namespace weft::reference
