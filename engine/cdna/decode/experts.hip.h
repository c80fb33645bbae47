// Mixtures of experts on the resident kernel, of one sequence: the draw, which every worker makes
// for itself, and the row of the second products.
#pragma once

#include "engine/cdna/decode/row.hip.h"

namespace weft::cdna {

using resident::DrawOf;

/// Larger for what is chosen before; NaN comes before all numbers. Not 0.
WEFT_GPU uint32_t draw_key(float logit) {
  const auto bits = __builtin_bit_cast(uint32_t, logit + 0.0f);  // -0 is 0
  return logit != logit ? ~0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// By the team, of which each thread has an expert: draws as ops/moe/op.h says, but for the order
/// of a sum. An expert's rank is how many come before it, and its slot how many of the chosen ones
/// do in the order of experts. Returns which draw it was.
WEFT_GPU DrawOf route(const Worker& worker, CodeRef code) {
  const auto& route = code.route;
  constexpr int kAt = __builtin_offsetof(resident::RouteCode, draw);
  static_assert(kAt % 4 == 0 && __builtin_offsetof(resident::RouteCode, sigmoid) == kAt + 1 &&
                __builtin_offsetof(resident::RouteCode, renormalise) == kAt + 2);
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
  const uint32_t key = there ? draw_key(logit) : 0;
  barrier();  // LDS is free, and what was drawn before has been read
  auto* const keys = reinterpret_cast<uint32_t*>(shared.row);
  keys[expert] = key;
  barrier();
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
  if (there && rank == 0) {
    shared.drawn.largest = logit;
  }
  barrier();
  float score = 0;
  if (renormalise ? chosen : there) {
    score = sigmoid ? divide_fast(1, 1 + exp_fast(-logit)) : exp_fast(logit - shared.drawn.largest);
  }
  const float sum = sigmoid && !renormalise ? 1 : team_sum(score, 0);
  const float weight = divide_fast(score, sum);
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
  const float of_slot = 1 / static_cast<float>(slot_k);
  const TaggedPlace row = worker.at<uint64_t>(product.row) +
                          static_cast<int64_t>(drawn ? head.first_slot() : 0) * (elements / 2);
  for (int base = part.first / 4; base + wave_index() * kWaveLanes < part.end / 4;
       base += kTurnQuads) {
    int slot[kQuadsAtOnce];
    int at[kQuadsAtOnce];  // element of the slot
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      const int element = 4 * RowQuads<kQuadsAtOnce>::quad(base, q);
      // Halfway to the next element, far from where rounding could tell.
      slot[q] = __builtin_elementwise_min(
          static_cast<int>((static_cast<float>(element) + 0.5f) * of_slot), last);
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
