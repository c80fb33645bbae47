#include <cmath>
#include <vector>

#include "ops/activation_reference.h"
#include "ops/moe_layer/op.h"

namespace weft::reference {
namespace {

using Numbers = std::vector<double>;

double rounded_to_f16(double x) { return to_float(to_f16(static_cast<float>(x))); }
void round(bool rounded, Numbers& x) {
  for (double& each : x) {
    each = rounded ? rounded_to_f16(each) : each;
  }
}

/// w^T x, w being [in, out].
Numbers product(const Numbers& x, const ConstMatrix& w, int64_t out) {
  Numbers sums(static_cast<size_t>(out));
  for (size_t i = 0; i < x.size(); ++i) {
    const f16* from = row<f16>(w, static_cast<int64_t>(i));
    for (size_t c = 0; c < sums.size(); ++c) {
      sums[c] += x[i] * double{to_float(from[c])};
    }
  }
  return sums;
}

Numbers expert_of(const MoeLayerArgs& args, size_t expert, const Numbers& x, bool rounded) {
  Numbers gate = product(x, args.gate[expert], args.inner);
  Numbers up = product(x, args.up[expert], args.inner);
  round(rounded, gate);
  round(rounded, up);
  for (double& each : gate) {
    each = activate(Activation::silu, each);
  }
  round(rounded, gate);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] *= up[i];
  }
  round(rounded, gate);
  Numbers result = product(gate, args.down[expert], args.hidden);
  round(rounded, result);
  return result;
}

void draw(const MoeLayerArgs& args, const Numbers& x, std::vector<int32_t>& ids, Numbers& weights) {
  std::vector<float> logits;
  for (int64_t e = 0; e < args.experts; ++e) {
    double sum = 0;
    for (int64_t i = 0; i < args.hidden; ++i) {
      sum += x[static_cast<size_t>(i)] * element(args.router, e, i);
    }
    logits.push_back(static_cast<float>(rounded_to_f16(sum)));
  }
  route({.logits = {logits.data(), DType::f32, args.experts},
         .experts = args.experts,
         .drawn = {.chosen = args.chosen}},
        {0, 1}, ids.data(), weights.data());
  if (args.shared) {
    ids.push_back(static_cast<int32_t>(args.experts));
    weights.push_back(1);
  }
}

}  // namespace

void moe_layer(const MoeLayerArgs& args, Range rows, bool rounded, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r, out += args.hidden) {
    Numbers x;
    for (int64_t i = 0; i < args.hidden; ++i) {
      x.push_back(element(args.x, r, i));
    }
    std::vector<int32_t> ids(static_cast<size_t>(args.chosen));
    Numbers weights(ids.size());
    if (args.ids != nullptr) {
      const int64_t slots = args.slots_of_row();
      ids.assign(args.ids + r * slots, args.ids + (r + 1) * slots);
      weights.assign(args.weights + r * slots, args.weights + (r + 1) * slots);
    } else {
      draw(args, x, ids, weights);
    }
    round(rounded, weights);
    Numbers sum(static_cast<size_t>(args.hidden));
    for (size_t s = 0; s < ids.size(); ++s) {
      Numbers given = expert_of(args, static_cast<size_t>(ids[s]), x, rounded);
      for (double& each : given) {
        each *= weights[s];
      }
      round(rounded, given);
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += given[i];
      }
      round(rounded, sum);
    }
    std::copy(sum.begin(), sum.end(), out);
  }
}

}  // namespace weft::reference
