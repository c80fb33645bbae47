// Attention of a step on the resident kernel: queries, and the step's own key and value, from their
// projections; a split of the keys; the splits' merge.
#pragma once

#include "engine/hopper/decode/row.cuh"
#include "engine/hopper/decode/worker.cuh"
#include "engine/resident/split_keys.h"
#include "ops/attention/hopper.cuh"

namespace weft::hopper {

/// The keys of a split, equal shares of the row's blocks of keys; `active`: splits that have any.
template <KeysOf kKeys = KeysOf::heads>
__device__ inline void split_keys(const Splits& splits, int position, int split, int& first,
                                  int& last, int& active) {
  constexpr int kBlock = 64;
  const int end = made_here(position) + 1;
  const int begin = splits.window > 0 ? max(0, end - splits.window) : 0;
  const int block = begin / kBlock;
  const int blocks = (end + kBlock - 1) / kBlock - block;
  const int of_split = blocks_of_split(blocks, kKeys);
  active = min(splits.count, small_quotient(blocks + of_split - 1, of_split));
  const int each = small_quotient(blocks, active);
  const int more = blocks - each * active;  // splits that have one more
  const int before = block + split * each + min(split, more);
  first = max(begin, before * kBlock);
  last = min(end, (before + each + (split < more ? 1 : 0)) * kBlock);
}

/// Pairs of elements of a head's row that a lane has: a warp a row, or half a warp of rows of up to
/// half as many elements.
inline constexpr int kHeadRowPairs = kMostHeadDim / 2 / 32;

/// A head's row as it comes and as attention takes it.
struct HeadRow {
  const Tagged* from;
  Version version;
  Place norm;    ///< weights of the head's elements; kNowhere: none
  float factor;  ///< of a norm over all heads together
  int half;      ///< pairs of elements that turn
  float scale;
};

/// The lanes that make a head's row: all of a warp, or half of them.
struct RowLanes {
  int count;  ///< of the row, the same for all of a warp
  int lane;   ///< among them; from the head's elements on: has nothing to do
};

/// By a row's lanes, the warp's all at once: a head's row, normed where there is a weight, rotated
/// and scaled, to shared memory.
template <class W>
__device__ void head_row(const W& worker, const Code& code, const HeadRow& row, const RowLanes& by,
                         float* to) {
  const AttentionCode& attention = code.attention;
  const int dim = worker.launch().shape.head_dim;
  const int half = dim / 2;
  const int lanes = by.count;
  const int lane = by.lane;
  float2 x[kHeadRowPairs] = {};
  uint32_t weights[kHeadRowPairs] = {};
#pragma unroll
  for (int j = 0; j < kHeadRowPairs; ++j) {  // while the row is on its way: few workers read them
    if (row.norm != kNowhere && lane + lanes * j < half) {
      weights[j] = load_kept(at<const uint32_t>(worker, row.norm) + lane + lanes * j);
    }
  }
  auto late = worker.late(code);
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int j = 0; j < kHeadRowPairs; ++j) {
      if (lane + lanes * j < half) {
        const Tagged word = load_tagged(row.from + lane + lanes * j);
        there = there && word.tag() == worker.tag(row.version);
        x[j] = {word.first(), word.second()};
      }
    }
  } while (!there && !late());
  __syncwarp();
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeadRowPairs; ++j) {
    squares += x[j].x * x[j].x + x[j].y * x[j].y;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(~0u, squares, distance);
    squares += distance < lanes ? other : 0;
  }
  float factor = row.factor;
  if (row.norm != kNowhere && attention.whole_norm == 0) {
    factor = norm_factor(squares, dim, attention.epsilon);
  }
#pragma unroll
  for (int j = 0; j < kHeadRowPairs; ++j) {
    const int d = 2 * (lane + lanes * j);
    if (d < dim) {
      float2 w{1, 1};
      if (row.norm != kNowhere) {
        const float offset = W::kGeneral ? attention.weight_offset : 0;
        w = {factor * (bf16_low(weights[j]) + offset), factor * (bf16_high(weights[j]) + offset)};
      }
      reinterpret_cast<float2*>(to)[d / 2] = {x[j].x * w.x, x[j].y * w.y};
    }
  }
  __syncwarp();
  const float2* angles = worker.angles(max(attention.rope, 0), attention.sequence);
  for (int i = lane; i < row.half; i += lanes) {
    const float low = to[i];
    const float high = to[i + row.half];
    const float2 angle = angles[i];
    to[i] = (low * angle.x - high * angle.y) * row.scale;
    to[i + row.half] = (high * angle.x + low * angle.y) * row.scale;
  }
  if (W::kGeneral && row.scale != 1) {
    for (int i = 2 * row.half + lane; i < dim; i += lanes) {
      to[i] *= row.scale;
    }
  }
  __syncwarp();
}

/// By a row's lanes: it from shared memory to the cache, and as the cache has it to `rounded`.
template <class W>
__device__ void append(const W& worker, Place cache, int64_t row, const float* x,
                       const RowLanes& by, char* rounded) {
  const int dim = worker.launch().shape.head_dim;
#pragma unroll 1
  for (int d = by.lane; d < dim; d += by.count) {
    if (worker.launch().shape.kv_f32) {
      at<float>(worker, cache)[row * dim + d] = reinterpret_cast<float*>(rounded)[d] = x[d];
    } else {
      at<__nv_bfloat16>(worker, cache)[row * dim + d] =
          reinterpret_cast<__nv_bfloat16*>(rounded)[d] = __float2bfloat16_rn(x[d]);
    }
  }
}

/// Factors of norms over all heads together.
struct WholeNorms {
  float query = 0;
  float key = 0;  ///< for who has the step's own key
};
template <class W>
__device__ WholeNorms whole_norms(const W& worker, const Code& code, bool own) {
  const AttentionCode& attention = code.attention;
  const ModelShape& shape = worker.launch().shape;
  if (attention.query_norm == kNowhere || attention.whole_norm == 0) {
    return {};
  }
  const int queries = shape.query_heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const Tagged* q = row_at(worker, attention.q, attention.sequence, queries);
  const Tagged* k = row_at(worker, attention.k, attention.sequence, keys);
  return {row_norm(worker, code, q, attention.q_version, queries, attention.epsilon),
          own ? row_norm(worker, code, k, attention.k_version, keys, attention.epsilon) : 0};
}

/// Queries, and the step's own key and value (`own`: the split has them), of a KV head to shared
/// memory: rows [group + 4][head_dim], the queries, key and value, both as the cache has them.
template <class W>
__device__ NewRow head_rows(const W& worker, const Code& code, int kv_head, int position, bool own,
                            float* rows, const WholeNorms& norms) {
  const AttentionCode& attention = code.attention;
  const ModelShape& shape = worker.launch().shape;
  const int dim = made_here(shape.head_dim);
  const int group = made_here(shape.group);
  const int jobs = group + (own ? 2 : 0);
  // All rows at once where two of a warp make that possible: who has the step's own key and value
  // would otherwise make those after the queries, and all others wait for it.
  const int lanes = jobs > Team::kWarps && dim <= kMostHeadDim / 2 ? 16 : 32;
  const int at_once = 32 / lanes;
#pragma unroll 1
  for (int first = worker.team().warp * at_once; first < jobs; first += Team::kWarps * at_once) {
    const int mine = first + worker.team().lane / lanes;
    const int job = min(mine, jobs - 1);
    const RowLanes by{lanes, mine < jobs ? worker.team().lane & (lanes - 1) : dim};
    // A query, the key, or the value.
    const bool query = job < group;
    const bool value = job > group;
    const int head = query ? kv_head * group + job : kv_head;
    const Place norm = query ? attention.query_norm : value ? kNowhere : attention.key_norm;
    const bool whole = norm != kNowhere && attention.whole_norm != 0;
    float* to = rows + job * dim;
    const Place from = query ? attention.q : value ? attention.v : attention.k;
    const int heads = query ? shape.query_heads : shape.kv_heads;
    head_row(worker, code,
             {row_at(worker, from, attention.sequence, heads * dim) + head * (dim / 2),
              query   ? attention.q_version
              : value ? attention.v_version
                      : attention.k_version,
              whole ? norm + head * dim * 2 : norm, query ? norms.query : norms.key,
              value || attention.rope < 0 ? 0 : shape.rope_half, query ? attention.scale : 1.0f},
             by, to);
    if (!query) {
      append(worker, value ? attention.values : attention.keys,
             static_cast<int64_t>(attention.sequence * shape.kv_heads + kv_head) * shape.capacity +
                 position,
             to, by, reinterpret_cast<char*>(to + 2 * dim));
    }
  }
  worker.team().sync();
  return {own ? position : -1, reinterpret_cast<char*>(rows + (group + 2) * dim),
          reinterpret_cast<char*>(rows + (group + 3) * dim)};
}

/// kDim, kF32: of WarpAttention, for scores without a soft cap; kDim 0: not by mma.
template <int kDim, bool kF32, class W>
__device__ __forceinline__ void attend_to(const W& worker, const Code& code) {
  const AttentionCode& attention = code.attention;
  const ModelShape& shape = worker.launch().shape;
  const int dim = kDim != 0 ? kDim : made_here(shape.head_dim);
  const int group = made_here(shape.group);
  const int position = worker.position_of(attention.sequence);
  int first;
  int last;
  int active;
  split_keys(attention.splits, position, attention.split, first, last, active);
  if (attention.split >= active) {
    return;
  }
  const bool own = last == position + 1;  // the step's own row is among the keys
  const WholeNorms norms = whole_norms(worker, code, own);
  auto* rows = reinterpret_cast<float*>(worker.scratch());
  float* parts = rows + (group + 4) * dim;  // the warps'
  const Partials partials(at<Tagged>(worker, attention.partials), attention.sequence,
                          shape.query_heads, attention.splits.count, dim);
#pragma unroll 1
  for (int kv_head = attention.first; kv_head < attention.last; ++kv_head) {
    const int64_t offset = static_cast<int64_t>(attention.sequence * shape.kv_heads + kv_head) *
                           shape.capacity * dim * (shape.kv_f32 ? 4 : 2);
    const char* keys = at<const char>(worker, attention.keys) + offset;
    const char* values = at<const char>(worker, attention.values) + offset;
    constexpr int kAtOnce = kDim != 0 ? kMmaHeads : kHeadsAtOnce;
    const int head_pitch = min(kAtOnce, group);
    NewRow new_row = {};
    bool there = false;
#pragma unroll 1
    for (int at_once = 0; at_once < group; at_once += kAtOnce) {
      const int heads = min(kAtOnce, group - at_once);
      const auto store = [&](int h, int d, float x, float y, float maximum, float total) {
        const int64_t slot =
            static_cast<int64_t>(kv_head * group + at_once + h) * attention.splits.count +
            attention.split;
        store_tagged(partials.sums + (slot * dim + d) / 2, x, y, worker.tag(attention.version));
        if (d == 0) {
          store_tagged(partials.tails + slot, maximum, total, worker.tag(attention.version));
        }
      };
      const auto rows_there = [&] {
        if (!there) {
          new_row = head_rows(worker, code, kv_head, position, own, rows, norms);
          worker.stamp(1);
          there = true;
        }
      };
      const float* queries = rows + at_once * dim;
      if constexpr (kDim != 0) {
        WarpAttention<kDim, kF32> warp(worker.team(), keys, values, first, last);
        warp.ask(own ? position : -1);  // on their way while the queries come
        rows_there();
        warp.run(queries, heads, new_row, parts + worker.team().warp * head_pitch * (dim + 2));
        merge_parts(worker.team(), parts, head_pitch, heads, dim, store);
      } else {
        rows_there();
        if (shape.kv_f32) {
          attention_range<true>(worker.team(), queries, keys, values, new_row, dim, heads, first,
                                last, W::kGeneral ? attention.soft_cap : 0, parts, store);
        } else {
          attention_range<false>(worker.team(), queries, keys, values, new_row, dim, heads, first,
                                 last, W::kGeneral ? attention.soft_cap : 0, parts, store);
        }
      }
    }
  }
}

/// Elements of a head that attention leaves.
template <class W>
__device__ int merged_dim(const W& worker) {
  return W::kLatents ? kLatentRank : worker.launch().shape.head_dim;
}

/// What attention left of a sequence; `active`: the splits that have any keys.
template <class W>
__device__ Partials splits_of(const W& worker, Place partials, const Splits& splits, int sequence,
                              int& active) {
  int first;
  int last;
  split_keys<W::kLatents ? KeysOf::latents : KeysOf::heads>(splits, worker.position_of(sequence), 0,
                                                            first, last, active);
  return {at<Tagged>(worker, partials), sequence, worker.launch().shape.query_heads, splits.count,
          merged_dim(worker)};
}

/// This thread's part of the row of one sequence, merged, as products take it.
template <class W>
__device__ __forceinline__ void merge(const W& worker, const Code& code, char* row) {
  const ProductCode& product = code.product;
  auto late = worker.late(code);
  int active;
  const Partials partials = splits_of(worker, product.row, product.splits, 0, active);
  const int end = row_slices(product.k, product.fold) * kSliceK;
#pragma unroll 1
  for (int element = 8 * worker.team().thread; element < end; element += 8 * Team::kThreads) {
    float4 x[2];
    const auto* sinks = W::kExperts && W::kGeneral && product.norm_weight != kNowhere
                            ? at<const __nv_bfloat16>(worker, product.norm_weight)
                            : nullptr;
    merge_splits<true, W::kExperts && W::kGeneral>(partials, worker.tag(product.source), active,
                                                   element < product.k ? element : -1, late, x,
                                                   sinks);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      store_row_quad<1>(row, 0, element / 4 + q, x[q]);
    }
  }
}

/// Merges attention's splits for all: of several sequences, or of a long row, each worker's merging
/// them for itself would cost too many trips.
template <class W>
__device__ __forceinline__ void combine(const W& worker, const Code& code) {
  const CombineCode& combine = code.combine;
  auto late = worker.late(code);
  constexpr int kElements = 8;  // of a thread
  const int head_dim = merged_dim(worker);
  const int first_element = combine.first * head_dim;
  const int of_row = (combine.last - combine.first) * head_dim / kElements;
  constexpr bool kSinks = W::kExperts && W::kGeneral;
  const auto* sinks = kSinks && combine.sinks != kNowhere
                          ? at<const __nv_bfloat16>(worker, combine.sinks)
                          : nullptr;
#pragma unroll 1
  for (int i = worker.team().thread; i < worker.sequences() * of_row; i += Team::kThreads) {
    const int sequence = i / of_row;
    const int element = first_element + i % of_row * kElements;
    int active;
    const Partials partials = splits_of(worker, combine.partials, combine.splits, sequence, active);
    float4 x[2];
    merge_splits<false, kSinks>(partials, worker.tag(combine.source), active, element, late, x,
                                sinks);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      if constexpr (W::kBatch == 1) {
        Tagged* to = at<Tagged>(worker, combine.out) + element / 2 + 2 * q;
        store_tagged(to, x[q].x, x[q].y, worker.tag(combine.version));
        store_tagged(to + 1, x[q].z, x[q].w, worker.tag(combine.version));
      } else {
        store_row_quad<W::kBatch>(operand_slice(worker, combine.out, element), sequence,
                                  element % kSliceK / 4 + q, x[q]);
      }
    }
  }
}

}  // namespace weft::hopper
