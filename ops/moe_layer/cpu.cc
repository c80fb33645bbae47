// moe_layer on the CPU: the draw by linear and route, and of each expert some columns at a time,
// turned to rows in f32, which linear multiplies with the rows that drew it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/divide.h"
#include "ops/linear/op.h"
#include "ops/moe_layer/op.h"

namespace weft::cpu {
namespace {

constexpr int64_t kColumns = 16;  ///< of a matrix, at a time
constexpr int64_t kRows = 32;     ///< likewise, of those that drew an expert

float rounded(float x) { return to_float(to_f16(x)); }

/// This part of [0, size).
Range share(int64_t size, int64_t index, int64_t count) {
  return {size * index / count, size * (index + 1) / count};
}

LinearArgs product(const float* a, const ConstMatrix& w, int64_t n, int64_t k, float* out) {
  LinearArgs args;
  args.a = {a, DType::f32, k};
  args.w = w;
  args.n = n;
  args.k = k;
  args.out = {out, DType::f32, n};
  return args;
}

/// A worker's scratch.
struct Scratch {
  float* rows;        ///< [kRows][the longer of hidden and inner]
  float* columns[2];  ///< [kColumns][likewise]
  float* sums[2];     ///< [kRows][kColumns]
  std::span<std::byte> rest;

  /// What they take before the rest.
  static size_t bytes(const MoeLayerArgs& args) {
    return static_cast<size_t>((kRows + 2 * kColumns) * longest(args) + 2 * kRows * kColumns) *
           sizeof(float);
  }
  Scratch(const MoeLayerArgs& args, std::span<std::byte> scratch)
      : rows(reinterpret_cast<float*>(scratch.data())),
        columns{rows + kRows * longest(args), rows + (kRows + kColumns) * longest(args)},
        sums{columns[1] + kColumns * longest(args),
             columns[1] + kColumns * longest(args) + kRows * kColumns},
        rest(scratch.subspan(bytes(args))) {}

 private:
  static int64_t longest(const MoeLayerArgs& args) { return std::max(args.hidden, args.inner); }
};

void widen(const f16* from, int64_t count, float* to) {
  std::transform(from, from + count, to, [](f16 x) { return to_float(x); });
}
/// Columns of a matrix [k, ...] as rows.
void turn(const ConstMatrix& w, Range columns, int64_t k, float* to) {
  for (int64_t i = 0; i < k; ++i) {
    const f16* from = row<f16>(w, i) + columns.begin;
    for (int64_t c = 0; c < columns.size(); ++c) {
      to[c * k + i] = to_float(from[c]);
    }
  }
}

void draw(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, Range rows,
          const Scratch& scratch) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    widen(row<f16>(args.x, r), args.hidden, scratch.rows);
    float* const logits = buffers.logits + r * args.experts;
    linear(product(scratch.rows, args.router, args.experts, args.hidden, logits), {0, 1},
           {0, args.experts}, scratch.rest);
    std::transform(logits, logits + args.experts, logits, rounded);
    if (args.shared) {
      const int64_t last = buffers.drawn.slot(r, args.chosen);
      buffers.drawn.ids[last] = static_cast<int32_t>(args.experts);
      buffers.drawn.weights[last] = 1;
    }
  }
  route({.logits = {buffers.logits, DType::f32, args.experts},
         .experts = args.experts,
         .drawn = buffers.drawn},
        rows);
}

/// Calls f(expert, its slots) in ascending order.
template <class F>
void each_expert(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, F&& f) {
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(args.all()));
  for (int64_t i = 0; i < args.rows * args.slots_of_row(); ++i) {
    slots[static_cast<size_t>(buffers.drawn.ids[i])].push_back(i);
  }
  for (size_t e = 0; e < slots.size(); ++e) {
    f(e, std::span<const int64_t>(slots[e]));
  }
}

/// Calls f(slots, columns) for up to kRows of the slots and kColumns of the columns at a time, when
/// their products with the matrices w [k, ...] are in scratch.sums; `given` says where a slot's row
/// of a is.
template <class Given, class F>
void each_block(std::span<const ConstMatrix* const> w, int64_t k, Range columns,
                std::span<const int64_t> slots, const Scratch& scratch, Given&& given, F&& f) {
  for (int64_t c = columns.begin; c < columns.end && !slots.empty(); c += kColumns) {
    const Range some{c, std::min(columns.end, c + kColumns)};
    for (size_t i = 0; i < w.size(); ++i) {
      turn(*w[i], some, k, scratch.columns[i]);
    }
    for (size_t first = 0; first < slots.size(); first += kRows) {
      const auto taken = slots.subspan(first, std::min<size_t>(kRows, slots.size() - first));
      for (size_t i = 0; i < taken.size(); ++i) {
        widen(given(taken[i]), k, scratch.rows + static_cast<int64_t>(i) * k);
      }
      for (size_t i = 0; i < w.size(); ++i) {
        linear(product(scratch.rows, {scratch.columns[i], DType::f32, k}, some.size(), k,
                       scratch.sums[i]),
               {0, std::ssize(taken)}, {0, some.size()}, scratch.rest);
      }
      f(taken, some);
    }
  }
}

void up(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, Range columns,
        const Scratch& scratch) {
  each_expert(args, buffers, [&](size_t expert, std::span<const int64_t> slots) {
    const ConstMatrix* const w[] = {&args.gate[expert], &args.up[expert]};
    const auto row_of = [&](int64_t slot) { return row<f16>(args.x, slot / args.slots_of_row()); };
    each_block(w, args.hidden, columns, slots, scratch, row_of,
               [&](std::span<const int64_t> taken, Range some) {
                 const float* gate = scratch.sums[0];
                 const float* ups = scratch.sums[1];
                 for (const int64_t slot : taken) {
                   f16* const to = row<f16>(buffers.between, slot);
                   for (int64_t c = some.begin; c < some.end; ++c) {
                     const float g = rounded(*gate++);
                     to[c] = to_f16(rounded(g / (1 + std::exp(-g))) * rounded(*ups++));
                   }
                 }
               });
  });
}

void down(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, Range columns,
          const Scratch& scratch) {
  for (int64_t r = 0; r < args.rows; ++r) {
    std::fill_n(row<f16>(args.out, r) + columns.begin, columns.size(), f16{});
  }
  each_expert(args, buffers, [&](size_t expert, std::span<const int64_t> slots) {
    const ConstMatrix* const w[] = {&args.down[expert]};
    const ConstMatrix a{buffers.between.data, DType::f16, buffers.between.stride};
    const auto row_of = [&](int64_t slot) { return row<f16>(a, slot); };
    each_block(w, args.inner, columns, slots, scratch, row_of,
               [&](std::span<const int64_t> taken, Range some) {
                 const float* sum = scratch.sums[0];
                 for (const int64_t slot : taken) {
                   const float weight = rounded(buffers.drawn.weights[slot]);
                   f16* const to = row<f16>(args.out, slot / args.slots_of_row());
                   for (int64_t c = some.begin; c < some.end; ++c) {
                     to[c] = to_f16(to_float(to[c]) + rounded(weight * rounded(*sum++)));
                   }
                 }
               });
  });
}

}  // namespace

void moe_layer(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, int step, int64_t index,
               int64_t count, std::span<std::byte> given) {
  const Scratch scratch(args, given);
  switch (step) {
    case 0:
      if (args.ids == nullptr) {
        draw(args, buffers, share(args.rows, index, count), scratch);
      }
      break;
    case 1:
      up(args, buffers, share(args.inner, index, count), scratch);
      break;
    default:
      down(args, buffers, share(args.hidden, index, count), scratch);
  }
}

size_t moe_layer_scratch_bytes(const MoeLayerArgs& args) {
  size_t most =
      linear_scratch_bytes(product(nullptr, args.router, args.experts, args.hidden, nullptr), 1);
  for (const int64_t k : {args.hidden, args.inner}) {
    const LinearArgs some = product(nullptr, {nullptr, DType::f32, k}, kColumns, k, nullptr);
    most = std::max(most, linear_scratch_bytes(some, kRows));
  }
  return round_up(Scratch::bytes(args) + most, size_t{256});
}

}  // namespace weft::cpu
