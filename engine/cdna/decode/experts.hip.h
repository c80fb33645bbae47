// Mixtures of experts on the resident kernel, of one sequence: the draw, which every worker makes
// for itself, and the row of the second products.
#pragma once

#include "engine/cdna/decode/row.hip.h"

namespace weft::cdna {

using resident::DrawOf;

/// Larger for what is chosen before: as sample_key(), but that NaN comes before all numbers. Not 0.
WEFT_GPU uint32_t draw_key(float logit) { return logit != logit ? ~0u : sample_key(logit); }

/// By the team, of which each thread has an expert: whether the expert's group is kept. `keys`: the
/// experts' choices, in LDS; behind them, from kMostExperts on, there is room.
WEFT_GPU bool in_kept_group(CodeRef code, uint32_t* keys, int expert) {
  const auto& route = code.route;
  const int each = small_quotient(route.experts, route.groups);
  uint32_t* const groups = keys + kMostExperts;
  if (expert < route.groups) {
    uint32_t best = 0;
    uint32_t second = 0;
#pragma unroll 1
    for (int i = expert * each; i < (expert + 1) * each; ++i) {
      const uint32_t key = keys[i];
      second = __builtin_elementwise_max(second, __builtin_elementwise_min(best, key));
      best = __builtin_elementwise_max(best, key);
    }
    const bool two = route.correction != kNowhere && each > 1;
    groups[expert] = two ? draw_key(logit_of(best) + logit_of(second)) : best;
  }
  barrier();
  const int own = small_quotient(__builtin_elementwise_min(expert, route.experts - 1), each);
  const uint32_t key = groups[own];
  int rank = 0;
#pragma unroll 1
  for (int i = 0; i < route.groups; ++i) {
    const uint32_t other = groups[i];
    rank += other > key || (other == key && i < own) ? 1 : 0;
  }
  return rank < route.kept_groups;
}

/// By the team, of which each thread has an expert: draws as ops/moe/op.h says, but for the order
/// of a sum. An expert's rank is how many come before it, and its slot how many of the chosen ones
/// do in the order of experts. Returns which draw it was.
WEFT_GPU DrawOf route(const Worker& worker, CodeRef code) {
  const auto& route = code.route;
  constexpr int kAt = __builtin_offsetof(resident::RouteCode, draw);
  static_assert(kAt % 4 == 0 && __builtin_offsetof(resident::RouteCode, sigmoid) == kAt + 1 &&
                __builtin_offsetof(resident::RouteCode, renormalise) == kAt + 2 &&
                __builtin_offsetof(resident::RouteCode, correction_f32) == kAt + 3);
  const uint32_t flags = ((Constant<uint32_t>)&route)[kAt / 4];
  const bool sigmoid = (flags >> 8 & 0xff) != 0;
  const bool renormalise = (flags >> 16 & 0xff) != 0;
  const int expert = thread_index();
  const bool there = expert < route.experts;
  Tagged word[1];
  await_tagged(worker, code.operation, worker.tag(route.source), word, [&](int) {
    return worker.at<uint64_t>(route.logits) +
           __builtin_elementwise_min(expert, route.experts - 1) / 2;
  });
  const float logit = expert % 2 != 0 ? word[0].second() : word[0].first();
  float choice = logit;
  if (kLatents && route.correction != kNowhere) {
    const int from = __builtin_elementwise_min(expert, route.experts - 1);
    const bool f32 = flags >> 24 != 0;
    const float correction = f32 ? worker.at<const float>(route.correction)[from]
                                 : bf16_low(worker.at<const uint16_t>(route.correction)[from]);
    choice = divide_fast(1, 1 + exp_fast(-logit)) + correction;
  }
  uint32_t key = there ? draw_key(choice) : 0;
  barrier();  // LDS is free, and what was drawn before has been read
  auto* const keys = reinterpret_cast<uint32_t*>(shared.row);
  keys[expert] = key;
  if constexpr (kLatents) {  // who comes first need not have the largest logit
    shared.partial[1][wave_index()] =
        column_reduce<Max>(row_reduce<Max>(there ? logit : -kInfinity));
  }
  barrier();
  if (kLatents && route.kept_groups < route.groups) {
    const bool kept = in_kept_group(code, keys, expert);
    key = kept ? key : 0;
    keys[expert] = key;  // whose groups have been made
    barrier();
  }
  int rank = 0;
#pragma unroll 1
  for (int i = 0; i < route.experts; i += 4) {  // beyond the last one keys are 0
    const auto others = *reinterpret_cast<const u32x4*>(keys + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      rank += others[j] > key || (others[j] == key && i + j < expert) ? 1 : 0;
    }
  }
  const bool chosen = there && rank < route.chosen;
  if (chosen) {
    shared.drawn.ranked[rank] = expert;
  }
  if (kLatents ? expert == 0 : there && rank == 0) {
    float largest = logit;
    for (int wave = 0; kLatents && wave < kTeamWaves; ++wave) {
      largest = __builtin_fmaxf(largest, shared.partial[1][wave]);
    }
    shared.drawn.largest = largest;
  }
  barrier();
  float score = 0;
  if (renormalise ? chosen : there) {
    score = sigmoid ? divide_fast(1, 1 + exp_fast(-logit)) : exp_fast(logit - shared.drawn.largest);
  }
  const float sum = sigmoid && !renormalise ? 1 : team_sum(score, 0);
  const float weight = divide_fast(score, sum) * (kLatents ? route.scale : 1);
  const auto draw = static_cast<DrawOf>(flags & 0xff);
  if (draw == DrawOf::shared) {
    if (chosen) {
      shared.drawn.shared_weight = weight;
    }
  } else {
    int slot = 0;
    for (int i = 0; i < route.chosen; ++i) {
      slot += shared.drawn.ranked[i] < expert ? 1 : 0;
    }
    if (chosen) {
      shared.drawn.id[slot] = expert;
      shared.drawn.weight[slot] = weight;
    }
  }
  barrier();
  return draw;
}

/// The row of slots, each times its weight, to LDS.
WEFT_GPU void make_slots_row(const Worker& worker, CodeRef code, const RowPart& part) {
  const auto& product = code.product;
  const ProductHead head(code);
  const bool drawn = head.draw() == DrawOf::experts;
  const int elements = product.slot_elements;
  const int slot_k = round_up(elements, kSlotSteps);
  const int last = drawn ? head.slots() - 1 : 0;
  const TaggedPlace row = worker.at<uint64_t>(product.row) +
                          static_cast<int64_t>(drawn ? head.first_slot() : 0) * (elements / 2);
  for (int base = part.first / 4; base + wave_index() * kWaveLanes < part.end / 4;
       base += kTurnQuads) {
    int slot[kQuadsAtOnce];
    int at[kQuadsAtOnce];  // element of the slot
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      const int element = 4 * RowQuads<kQuadsAtOnce>::quad(base, q);
      slot[q] = __builtin_elementwise_min(small_quotient(element, slot_k), last);
      at[q] = element - slot[q] * slot_k;
    }
    Tagged words[2 * kQuadsAtOnce];
    await_tagged(worker, code.operation, worker.tag(product.source), words, [&](int i) {
      const int of_slots = slot[i / 2] * elements;
      return row + (of_slots + __builtin_elementwise_min(at[i / 2], elements - 4)) / 2 + i % 2;
    });
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      const int quad = RowQuads<kQuadsAtOnce>::quad(base, q);
      if (4 * quad < part.end) {
        const float weight = drawn ? shared.drawn.weight[(drawn ? head.first_slot() : 0) + slot[q]]
                                   : shared.drawn.shared_weight;
        const f32x4 x{words[2 * q].first(), words[2 * q].second(), words[2 * q + 1].first(),
                      words[2 * q + 1].second()};
        put_row_quad(0, part, quad,
                     at[q] < elements ? x * weight * head.row_scale() : f32x4{0, 0, 0, 0});
      }
    }
  }
}

}  // namespace weft::cdna
