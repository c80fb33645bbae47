// moe on the CPU: rows sorted by expert, and for each expert that somebody drew the products that
// gated_linear and linear are.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "arch/cpu/streams.h"
#include "base/divide.h"
#include "ops/linear/forms/mxfp4/cpu.h"
#include "ops/moe/mx_gate.h"
#include "ops/moe/op.h"

namespace weft::cpu {
namespace {

constexpr size_t kAlignment = 64;

/// Parts of a worker's scratch, each aligned.
class Parts {
 public:
  explicit Parts(std::span<std::byte> scratch) : rest_(scratch) {}
  template <class T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(rest_.data());
    rest_ = rest_.subspan(bytes<T>(count));
    return part;
  }
  std::span<std::byte> rest() const { return rest_; }

  template <class T>
  static size_t bytes(int64_t count) {
    return round_up(static_cast<size_t>(count) * sizeof(T), kAlignment);
  }

 private:
  std::span<std::byte> rest_;
};

/// A row and one of its slots.
struct Taken {
  int32_t row, slot;
};

/// The slots of `rows`, sorted by expert.
class Sorted {
 public:
  Sorted(const Drawn& drawn, int64_t experts, Range rows, Parts& scratch)
      : ends_(scratch.take<int32_t>(experts + 1)),
        taken_(scratch.take<Taken>(rows.size() * drawn.chosen)) {
    const auto each = [&](auto&& take) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t s = 0; s < drawn.chosen; ++s) {
          const int64_t slot = drawn.slot(r, s);
          take(Taken{static_cast<int32_t>(r), static_cast<int32_t>(slot)}, drawn.ids[slot]);
        }
      }
    };
    std::fill_n(ends_, experts + 1, 0);
    each([&](Taken /*taken*/, int32_t expert) {
      WEFT_CHECK(expert >= 0 && expert < experts);
      ++ends_[expert + 1];
    });
    for (int64_t e = 0; e < experts; ++e) {
      ends_[e + 1] += ends_[e];
    }
    each([&](Taken taken, int32_t expert) { taken_[ends_[expert]++] = taken; });  // from beginnings
  }
  static size_t bytes(const Drawn& drawn, int64_t experts, int64_t rows) {
    return Parts::bytes<int32_t>(experts + 1) + Parts::bytes<Taken>(rows * drawn.chosen);
  }
  std::span<const Taken> of(int64_t expert) const {
    const int32_t begin = expert == 0 ? 0 : ends_[expert - 1];
    return {taken_ + begin, taken_ + ends_[expert]};
  }

 private:
  int32_t* ends_;  // [experts + 1]: where an expert's slots end
  Taken* taken_;
};

/// Rows of the product of an expert that so many have drawn, or rows in all: where they are alone,
/// more than kernels of few rows take.
int64_t product_rows(const Drawn& drawn, int64_t taken) {
  return drawn.alone ? std::max(taken, std::max(kStreamRows, kMxFewRows) + 1) : taken;
}

/// Rows of `a`, those that are given of what is taken, one after the other, and behind them the
/// first again, up to `rows`; a single one stays where it is.
ConstMatrix gather(const ConstMatrix& a, int64_t k, std::span<const Taken> taken, int64_t rows,
                   int32_t Taken::*given, std::byte* place) {
  const auto size = static_cast<int64_t>(size_of(a.dtype));
  const auto from = [&](const Taken& t) {
    return static_cast<const std::byte*>(a.data) + t.*given * a.stride * size;
  };
  if (taken.size() == 1) {
    return {from(taken.front()), a.dtype, 0};
  }
  for (int64_t i = 0; i < rows; ++i) {
    const Taken& t = taken[i < std::ssize(taken) ? static_cast<size_t>(i) : 0];
    std::memcpy(place + i * k * size, from(t), static_cast<size_t>(k * size));
  }
  return {place, a.dtype, k};
}

/// Whether logit a is chosen before b, of a lower number.
bool comes_before(float a, float b) { return std::isnan(a) || !(b > a || std::isnan(b)); }

/// Keeps the `count` first of those that are offered, best first; offered in ascending order,
/// equals stay in it.
class Best {
 public:
  Best(const float* values, int32_t* held, int64_t count)
      : values_(values), held_(held), count_(count) {}
  void offer(int32_t i) {
    int64_t at = size_;
    while (at > 0 && !comes_before(values_[held_[at - 1]], values_[i])) {
      --at;
    }
    if (at == count_) {
      return;
    }
    size_ = std::min(size_ + 1, count_);
    std::copy_backward(held_ + at, held_ + size_ - 1, held_ + size_);
    held_[at] = i;
  }

 private:
  const float* values_;
  int32_t* held_;
  int64_t count_;
  int64_t size_ = 0;
};

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// What experts are chosen by, written to `choice` where it is not the logits themselves.
const float* choice_of(const RouteArgs& args, const float* logits, float* choice) {
  if (args.correction.data == nullptr) {
    return logits;
  }
  with_type(args.correction.dtype, [&](auto type) {
    const auto* bias = static_cast<const decltype(type)*>(args.correction.data);
    for (int64_t e = 0; e < args.experts; ++e) {
      choice[e] = sigmoid(logits[e]) + to_float(bias[e]);
    }
  });
  return choice;
}

/// The numbers of the groups that experts are chosen from, ascending.
void keep_groups(const RouteArgs& args, const float* choice, int32_t* kept) {
  const int64_t each = args.experts / args.groups;
  const bool by_two = args.correction.data != nullptr && each > 1;
  float scores[kMostRouted];
  for (int64_t g = 0; g < args.groups; ++g) {
    int32_t two[2];
    Best best(choice, two, by_two ? 2 : 1);
    for (int64_t e = g * each; e < (g + 1) * each; ++e) {
      best.offer(static_cast<int32_t>(e));
    }
    scores[g] = choice[two[0]] + (by_two ? choice[two[1]] : 0);
  }
  Best best(scores, kept, args.kept_groups);
  for (int64_t g = 0; g < args.groups; ++g) {
    best.offer(static_cast<int32_t>(g));
  }
  std::sort(kept, kept + args.kept_groups);
}

void route_row(const RouteArgs& args, const float* logits, int32_t* ids, float* weights) {
  const int64_t chosen = args.drawn.chosen;
  float room[kMostRouted];
  const float* choice = choice_of(args, logits, room);
  int32_t kept[kMostRouted];
  kept[0] = 0;
  const bool grouped = args.kept_groups < args.groups;
  if (grouped) {
    keep_groups(args, choice, kept);
  }
  Best best(choice, ids, chosen);
  const int64_t each = args.experts / (grouped ? args.groups : 1);
  for (int64_t g = 0; g < (grouped ? args.kept_groups : 1); ++g) {
    for (int64_t e = kept[g] * each; e < (kept[g] + 1) * each; ++e) {
      best.offer(static_cast<int32_t>(e));
    }
  }
  const float largest = logits[ids[0]];  // of a softmax: its best group is among those kept
  const auto score = [&](int32_t e) {
    return args.sigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - largest);
  };
  std::sort(ids, ids + chosen);
  float sum = 0;
  for (int64_t s = 0; s < chosen; ++s) {
    weights[s] = score(ids[s]);
    sum += weights[s];
  }
  if (!args.renormalise) {
    sum = args.sigmoid ? 1.0F : 0.0F;
    for (int32_t e = 0; !args.sigmoid && e < args.experts; ++e) {
      sum += score(e);
    }
  }
  for (int64_t s = 0; s < chosen; ++s) {
    weights[s] = weights[s] / sum * args.scale;
  }
}

/// x[r * n + c] += bias[c].
void add_bias(const ConstVector& bias, int64_t rows, int64_t n, Range columns, float* x) {
  if (bias.data == nullptr) {
    return;
  }
  with_type(bias.dtype, [&](auto type) {
    const auto* from = static_cast<const decltype(type)*>(bias.data);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        x[r * n + c] += to_float(from[c]);
      }
    }
  });
}

/// Of the gathered rows of the other factor.
int64_t gathered_bytes(const ConstMatrix& a, int64_t k, int64_t rows) {
  return rows * k * static_cast<int64_t>(size_of(a.dtype));
}

}  // namespace

void route(const RouteArgs& args, Range rows) {
  WEFT_CHECK(args.experts <= kMostRouted);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t slot = args.drawn.slot(r, 0);
    route_row(args, row<float>(args.logits, r), args.drawn.ids + slot, args.drawn.weights + slot);
  }
}

void experts_up(const ExpertsUpArgs& args, Range rows, Range all, std::span<std::byte> scratch) {
  if (args.flat && rows.size() > 1) {  // an expert's columns are others in each row
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      experts_up(args, {r, r + 1}, all, scratch);
    }
    return;
  }
  const auto experts = std::ssize(args.experts);
  const auto [n, k] = std::pair(args.experts.front().n, args.experts.front().k);
  const auto size = static_cast<int64_t>(size_of(args.out.dtype));
  Parts parts(scratch);
  const Sorted sorted(args.drawn, experts, rows, parts);
  const int64_t most = product_rows(args.drawn, rows.size());
  auto* gathered = parts.take<std::byte>(gathered_bytes(args.a, k, most));
  auto* made = parts.take<std::byte>(most * n * size);
  auto* sums = parts.take<float>(args.gates.empty() ? 0 : 2 * most * n);
  for (int64_t e = 0; e < experts; ++e) {
    const std::span<const Taken> taken = sorted.of(e);
    if (taken.empty()) {
      continue;
    }
    const int64_t before =
        args.flat ? (taken.front().slot - args.drawn.slot(rows.begin, 0)) * n : 0;
    const Range columns{std::max<int64_t>(all.begin - before, 0), std::min(all.end - before, n)};
    if (columns.empty()) {
      continue;
    }
    GatedLinearArgs product = args.experts[static_cast<size_t>(e)];
    const int64_t own = product_rows(args.drawn, std::ssize(taken));
    product.a = gather(args.a, k, taken, own, &Taken::row, gathered);
    product.out = {made, args.out.dtype, n};
    if (args.gates.empty()) {
      gated_linear(product, {0, own}, columns, parts.rest());
    } else {
      const MxMatrix both[] = {args.gates[static_cast<size_t>(e)],
                               args.ups[static_cast<size_t>(e)]};
      float* const outs[] = {sums, sums + most * n};
      mx_products(both, product.a, own, columns, outs, n, parts.rest());
      mx_gate(product, args.limit, outs[0], outs[1], n, std::ssize(taken), columns, product.out);
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(args.out.data) +
                      (taken[i].slot * args.out.stride + columns.begin) * size,
                  made + (static_cast<int64_t>(i) * n + columns.begin) * size,
                  static_cast<size_t>(columns.size() * size));
    }
  }
}

size_t experts_up_scratch_bytes(const ExpertsUpArgs& args, int64_t rows) {
  const GatedLinearArgs& expert = args.experts.front();
  const int64_t most = product_rows(args.drawn, rows);
  return Sorted::bytes(args.drawn, std::ssize(args.experts), rows) +
         Parts::bytes<std::byte>(gathered_bytes(args.a, expert.k, most)) +
         Parts::bytes<float>(most * expert.n) +
         (args.gates.empty() ? gated_linear_scratch_bytes(expert, most)
                             : Parts::bytes<float>(2 * most * expert.n) +
                                   mx_products_scratch_bytes(most, expert.k));
}

void experts_down(const ExpertsDownArgs& args, Range rows, Range columns,
                  std::span<std::byte> scratch) {
  const auto experts = std::ssize(args.experts);
  const auto [n, k] = std::pair(args.experts.front().n, args.experts.front().k);
  Parts parts(scratch);
  const Sorted sorted(args.drawn, experts, rows, parts);
  const int64_t most = product_rows(args.drawn, rows.size());
  auto* gathered = parts.take<std::byte>(gathered_bytes(args.a, k, most));
  auto* made = parts.take<float>(most * n);
  const bool rounds = args.out.dtype == DType::bf16;
  auto* to_round = parts.take<float>(rounds ? rows.size() * n : 0);
  const auto sums = [&, n = n](int64_t r) {
    return rounds ? to_round + (r - rows.begin) * n : row<float>(args.out, r);
  };
  for (int64_t r = rows.begin; r < rows.end && !args.accumulate; ++r) {
    std::fill_n(sums(r) + columns.begin, columns.size(), 0.0F);
  }
  for (int64_t e = 0; e < experts; ++e) {
    const std::span<const Taken> taken = sorted.of(e);
    if (taken.empty()) {
      continue;
    }
    LinearArgs product = args.experts[static_cast<size_t>(e)];
    const int64_t own = product_rows(args.drawn, std::ssize(taken));
    product.a = gather(args.a, k, taken, own, &Taken::slot, gathered);
    product.out = {made, DType::f32, n};
    if (args.mx.empty()) {
      linear(product, {0, own}, columns, parts.rest());
    } else {
      mx_products({&args.mx[static_cast<size_t>(e)], 1}, product.a, own, columns, {&made, 1}, n,
                  parts.rest());
      add_bias(product.bias, std::ssize(taken), n, columns, made);
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      const float weight = args.alpha * args.drawn.weights[taken[i].slot];
      const float* from = made + static_cast<int64_t>(i) * n;
      float* to = sums(taken[i].row);
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        to[c] += weight * from[c];
      }
    }
  }
  for (int64_t r = rows.begin; r < rows.end && rounds; ++r) {
    std::transform(sums(r) + columns.begin, sums(r) + columns.end,
                   row<bf16>(args.out, r) + columns.begin, to_bf16);
  }
}

void experts_down_prefetch(const ExpertsDownArgs& args, Range columns, int64_t line) {
  if (!args.mx.empty()) {
    return;
  }
  linear_prefetch(args.experts[static_cast<size_t>(args.drawn.ids[0])], columns, line);
}

size_t experts_down_scratch_bytes(const ExpertsDownArgs& args, int64_t rows) {
  const LinearArgs& expert = args.experts.front();
  const int64_t most = product_rows(args.drawn, rows);
  return Sorted::bytes(args.drawn, std::ssize(args.experts), rows) +
         Parts::bytes<std::byte>(gathered_bytes(args.a, expert.k, most)) +
         Parts::bytes<float>(most * expert.n) +
         Parts::bytes<float>(args.out.dtype == DType::bf16 ? rows * expert.n : 0) +
         (args.mx.empty() ? linear_scratch_bytes(expert, most)
                          : mx_products_scratch_bytes(most, expert.k));
}

}  // namespace weft::cpu
