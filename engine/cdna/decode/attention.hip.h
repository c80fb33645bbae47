// Attention of a step on the resident kernel: queries, and the step's own key and value, from their
// projections; a split of the keys; the splits' merge. Each group of lanes takes keys of its own
// and keeps a softmax of its own (online, Milakov and Gimelshein 2018); they are merged in a fixed
// order.
#pragma once

#include "arch/cdna/memory.hip.h"
#include "engine/cdna/decode/row.hip.h"
#include "engine/resident/split_keys.h"

namespace weft::cdna {

/// The keys of a split, first .. last - 1, equal shares of the row's blocks of keys; `active`:
/// splits that have any.
struct SplitKeys {
  int first, last, active;

  __device__ __attribute__((always_inline))
  SplitKeys(int splits, int window, int position, int split,
            resident::KeysOf keys = resident::KeysOf::heads) {
    constexpr int kBlock = 64;
    const int end = position + 1;
    const int begin = window > 0 ? __builtin_elementwise_max(0, end - window) : 0;
    const int block = begin / kBlock;
    const int blocks = ceil_div(end, kBlock) - block;
    active = __builtin_elementwise_min(splits,
                                       ceil_div(blocks, resident::blocks_of_split(blocks, keys)));
    const int each = blocks / active;
    const int more = blocks - each * active;  // splits that have one more
    const int before = block + split * each + __builtin_elementwise_min(split, more);
    first = __builtin_elementwise_max(begin, before * kBlock);
    last = __builtin_elementwise_min(end, (before + each + (split < more ? 1 : 0)) * kBlock);
  }
};

/// What attention leaves of the splits: sums [head][split][dim], then maximum and total
/// [head][split], all tagged.
struct Partials {
  TaggedPlace sums;
  TaggedPlace tails;
  int splits;
  int dim;

  __device__ __attribute__((always_inline))
  Partials(TaggedPlace memory, int sequence, int heads, int splits_, int dim_)
      : sums(sequence_row(memory, sequence, heads * splits_ * (dim_ + 2))),
        tails(sums + static_cast<int64_t>(heads) * splits_ * (dim_ / 2)),
        splits(splits_),
        dim(dim_) {}
};

/// A head's row as it comes and as attention takes it.
struct HeadRow {
  TaggedPlace from;
  uint32_t tag;
  Place norm;    ///< weights of the head's elements; kNowhere: none
  float factor;  ///< of a norm over all heads together; 0: the head has its own
  int half;      ///< pairs of elements that turn
  float scale;
};

/// By a wave: a head's row, normed where there is a weight, rotated and scaled, to LDS.
WEFT_GPU void head_row(const Worker& worker, CodeRef code, const HeadRow& row, float* to) {
  constexpr int kPairs = kMostHeadDim / 2 / kWaveLanes;  // of a lane
  const auto& attention = code.attention;
  const int dim = worker.arguments->shape.head_dim;
  const int pairs = dim / 2;
  const int lane = lane_index();
  Tagged words[kPairs];
  await_tagged(worker, code.operation, row.tag, words, [&](int j) {
    return row.from + __builtin_elementwise_min(lane + kWaveLanes * j, pairs - 1);
  });
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const float x = words[j].first();
    const float y = words[j].second();
    squares += lane + kWaveLanes * j < pairs ? x * x + y * y : 0;
  }
  float factor = row.factor;
  if (row.norm != kNowhere && factor == 0) {
    factor = norm_factor(wave_reduce<Sum>(squares), dim, attention.epsilon);
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int pair = lane + kWaveLanes * j;
    if (pair < pairs) {
      float x = words[j].first();
      float y = words[j].second();
      if (row.norm != kNowhere) {
        const auto w = weight_pair(worker.at<const uint32_t>(row.norm)[pair]);
        x *= factor * (w[0] + attention.weight_offset);
        y *= factor * (w[1] + attention.weight_offset);
      }
      to[2 * pair] = x * row.scale;
      to[2 * pair + 1] = y * row.scale;
    }
  }
  wave_sync();
  const auto& angles =
      shared
          .angles[kSeveral ? attention.sequence : 0][__builtin_elementwise_max(attention.rope, 0)];
  for (int i = lane; i < row.half; i += kWaveLanes) {
    const float low = to[i];
    const float high = to[i + row.half];
    to[i] = low * angles[i][0] - high * angles[i][1];
    to[i + row.half] = high * angles[i][0] + low * angles[i][1];
  }
  wave_sync();
}

/// By a wave: a row from LDS to the cache, and as the cache has it to `rounded`.
WEFT_GPU void append(const Worker& worker, Place cache, int64_t row, const float* x,
                     float* rounded) {
  const int dim = worker.arguments->shape.head_dim;
  const int lane = lane_index();
  if (worker.arguments->shape.kv_f32) {
    const auto to = worker.at<uint32_t>(cache) + row * dim;
    for (int d = lane; d < dim; d += kWaveLanes) {
      rounded[d] = x[d];
      store_shared_word<uint32_t>(to + d, __builtin_bit_cast(uint32_t, x[d]));
    }
  } else {
    const auto to = worker.at<uint32_t>(cache) + row * (dim / 2);
    for (int d = lane; d < dim / 2; d += kWaveLanes) {
      const uint32_t pair = pack_bf16(x[2 * d], x[2 * d + 1]);
      rounded[2 * d] = bf16_low(pair);
      rounded[2 * d + 1] = bf16_high(pair);
      store_shared_word<uint32_t>(to + d, pair);
    }
  }
}

/// Where a KV head's rows of a sequence begin in a cache.
WEFT_GPU int64_t cache_row(const __attribute__((address_space(4))) ModelShape& shape, int sequence,
                           int kv_head) {
  return static_cast<int64_t>((kSeveral ? sequence * shape.kv_heads : 0) + kv_head) *
         shape.capacity;
}

/// Queries, and the step's own key and value (`own`: the split has them), of a KV head to LDS: rows
/// [group + 4][head_dim], the queries, key and value as computed, both as the cache has them.
WEFT_GPU void head_rows(const Worker& worker, CodeRef code, int kv_head, bool own, float* rows,
                        float query_factor, float key_factor) {
  const auto& attention = code.attention;
  const auto& shape = worker.arguments->shape;
  const int dim = shape.head_dim;
  const int group = shape.group;
  const bool whole = attention.whole_norm != 0;
  for (int job = wave_index(); job < group + (own ? 2 : 0); job += kTeamWaves) {
    const bool query = job < group;
    const bool value = job > group;
    const int head = query ? kv_head * group + job : kv_head;
    const Place norm = query ? attention.query_norm : value ? kNowhere : attention.key_norm;
    float* const to = rows + job * dim;
    const Place from = query ? attention.q : value ? attention.v : attention.k;
    const Version version = query   ? attention.q_version
                            : value ? attention.v_version
                                    : attention.k_version;
    head_row(worker, code,
             {sequence_row(worker.at<uint64_t>(from), attention.sequence,
                           (query ? shape.query_heads : shape.kv_heads) * dim) +
                  head * (dim / 2),
              worker.tag(version), norm != kNowhere && whole ? norm + head * dim * 2 : norm,
              query ? query_factor : key_factor, value || attention.rope < 0 ? 0 : shape.rope_half,
              query ? attention.scale : 1.0f},
             to);
    if (!query) {
      append(worker, value ? attention.values : attention.keys,
             cache_row(shape, attention.sequence, kv_head) + worker.position(attention.sequence),
             to, to + 2 * dim);
    }
  }
}

/// Eight elements of a cache row.
struct CacheChunk {
  f32x4 part[2];
};
/// The same as they lie in the cache.
template <bool kF32>
struct RawChunk {
  u32x4 part[kF32 ? 2 : 1];

  __device__ __attribute__((always_inline)) RawChunk(const Buffer& cache, uint32_t element) {
#pragma unroll
    for (int i = 0; i < (kF32 ? 2 : 1); ++i) {
      part[i] = cache.load(element * (kF32 ? 4 : 2) + i * 16);
    }
  }
  __device__ __attribute__((always_inline)) CacheChunk values() const {
    if constexpr (kF32) {
      return {{__builtin_bit_cast(f32x4, part[0]), __builtin_bit_cast(f32x4, part[1])}};
    } else {
      const u32x4 x = part[0];
      return {{{bf16_low(x[0]), bf16_high(x[0]), bf16_low(x[1]), bf16_high(x[1])},
               {bf16_low(x[2]), bf16_high(x[2]), bf16_low(x[3]), bf16_high(x[3])}}};
    }
  }
};
WEFT_GPU CacheChunk lds_chunk(const float* from) {
  return {{*reinterpret_cast<const f32x4*>(from), *reinterpret_cast<const f32x4*>(from + 4)}};
}
WEFT_GPU float dot(const CacheChunk& a, const CacheChunk& b) {
  const f32x4 x = a.part[0] * b.part[0];
  const f32x4 y = a.part[1] * b.part[1];
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((y[0] + y[1]) + (y[2] + y[3]));
}

/// By the team: `heads` (up to kHeadsAtOnce) queries [heads][dim] in LDS over keys first .. last -
/// 1, of which that at `position` is at `own` in LDS (`own_value` likewise; null: it is none of
/// them). Each wave leaves its part at `part` [kHeadsAtOnce][dim + 2].
template <bool kF32>
WEFT_GPU void attend_range(const Buffer& keys, const Buffer& values, const float* queries,
                           const float* own, int heads, int dim, int first, int last, int position,
                           float soft_cap, float* part) {
  const int lanes = dim <= 64 ? 8 : dim <= 128 ? 16 : 32;  // to a key
  const int chunk = lane_index() & (lanes - 1);
  const bool active = chunk * 8 < dim;
  const int of_wave = kWaveLanes / lanes;  // keys
  float maximum[kHeadsAtOnce];
  float total[kHeadsAtOnce];
  CacheChunk sum[kHeadsAtOnce];
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    maximum[h] = -kInfinity;
    total[h] = 0;
    sum[h] = {};
  }
  const int mine = first + wave_index() * of_wave + lane_index() / lanes;
  constexpr uint32_t kNone = 1u << 30;  // beyond the buffers
  const auto element = [&](int key) {
    return active && key < last ? static_cast<uint32_t>(key * dim + chunk * 8) : kNone / 4;
  };
  const int jump = kTeamWaves * of_wave;
  const int begin = first + wave_index() * of_wave;
  RawChunk<kF32> next_key(keys, element(mine));
  RawChunk<kF32> next_value(values, element(mine));
  for (int base = begin; base < last; base += jump) {
    const int at = base - begin + mine;
    CacheChunk key = next_key.values();
    CacheChunk value = next_value.values();
    next_key = RawChunk<kF32>(keys, element(at + jump));
    next_value = RawChunk<kF32>(values, element(at + jump));
    if (at == position && own != nullptr && active) {
      key = lds_chunk(own + chunk * 8);
      value = lds_chunk(own + dim + chunk * 8);
    }
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      if (h >= heads) {
        break;
      }
      float score = active ? dot(lds_chunk(queries + h * dim + chunk * 8), key) : 0;
      score = row_sum_within(score, lanes);
      score = soft_cap > 0 ? cap_softly(score, soft_cap) : score;
      score = at < last ? score : -kInfinity;
      const float higher = __builtin_fmaxf(maximum[h], score);
      const bool any = higher != -kInfinity;
      const float weight = any ? exp_fast(score - higher) : 0;
      const float keep = any ? exp_fast(maximum[h] - higher) : 0;
      maximum[h] = higher;
      total[h] = total[h] * keep + weight;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[h].part[i] = sum[h].part[i] * keep + value.part[i] * weight;
      }
    }
  }
  const int pitch = dim + 2;
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    if (h >= heads) {
      break;
    }
    for (int distance = lanes; distance < kWaveLanes; distance *= 2) {
      const float other = across(maximum[h], distance);
      const float higher = __builtin_fmaxf(maximum[h], other);
      const bool any = higher != -kInfinity;
      const float keep = any ? exp_fast(maximum[h] - higher) : 0;
      const float take = any ? exp_fast(other - higher) : 0;
      total[h] = total[h] * keep + across(total[h], distance) * take;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = reinterpret_cast<float*>(&sum[h])[i];
        x = x * keep + across(x, distance) * take;
      }
      maximum[h] = higher;
    }
    float* const to = part + h * pitch;
    if (lane_index() < lanes && active) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        to[chunk * 8 + i] = sum[h].part[i / 4][i % 4];
      }
    }
    if (lane_index() == 0) {
      to[dim] = maximum[h];
      to[dim + 1] = total[h];
    }
  }
}

/// By the team, when all waves have left their parts: stores what they make together.
WEFT_GPU void merge_parts(const Partials& partials, uint32_t tag, const float* parts, int heads,
                          int slot) {
  const int pitch = partials.dim + 2;
  const int pairs = partials.dim / 2;
  for (int i = thread_index(); i < heads * pairs; i += kTeamThreads) {
    const int h = i / pairs;
    const int d = 2 * (i - h * pairs);
    float maximum = -kInfinity;
    float total = 0;
    float x = 0;
    float y = 0;
#pragma unroll 1
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      const float* const part = parts + (wave * kHeadsAtOnce + h) * pitch;
      const float other = part[partials.dim];
      const float higher = __builtin_fmaxf(maximum, other);
      const bool any = higher != -kInfinity;
      const float keep = any ? exp_fast(maximum - higher) : 0;
      const float take = any ? exp_fast(other - higher) : 0;
      total = total * keep + part[partials.dim + 1] * take;
      x = x * keep + part[d] * take;
      y = y * keep + part[d + 1] * take;
      maximum = higher;
    }
    const int64_t at = slot + static_cast<int64_t>(h) * partials.splits;
    store_tagged(partials.sums + (at * partials.dim + d) / 2, x, y, tag);
    if (d == 0) {
      store_tagged(partials.tails + at, maximum, total, tag);
    }
  }
}

/// By the team: one KV head of an attention code, over keys first .. last - 1.
WEFT_GPU void attend_head(const Worker& worker, CodeRef code, int kv_head, int first, int last,
                          float query_factor, float key_factor) {
  const auto& attention = code.attention;
  const auto& shape = worker.arguments->shape;
  const int dim = shape.head_dim;
  const int group = shape.group;
  const int position = worker.position(attention.sequence);
  const bool own = last == position + 1;  // the step's own row is among the keys
  auto* const rows = reinterpret_cast<float*>(shared.row);
  float* const parts = rows + (group + 4) * dim;
  barrier();  // LDS is free
  head_rows(worker, code, kv_head, own, rows, query_factor, key_factor);
  barrier();
  const int element_bytes = shape.kv_f32 ? 4 : 2;
  // The own row is not read from the cache, where it may not have arrived.
  const auto bytes = static_cast<uint32_t>((own ? position : last) * dim * element_bytes);
  const int64_t offset = cache_row(shape, attention.sequence, kv_head) * dim * element_bytes;
  const Buffer key_cache((const void*)worker.at<char>(attention.keys + offset), bytes);
  const Buffer value_cache((const void*)worker.at<char>(attention.values + offset), bytes);
  for (int at_once = 0; at_once < group; at_once += kHeadsAtOnce) {
    const int heads = __builtin_elementwise_min(kHeadsAtOnce, group - at_once);
    const float* const own_row = own ? rows + (group + 2) * dim : nullptr;
    float* const part = parts + wave_index() * kHeadsAtOnce * (dim + 2);
    if (at_once > 0) {
      barrier();  // the parts have been read
    }
    if (shape.kv_f32) {
      attend_range<true>(key_cache, value_cache, rows + at_once * dim, own_row, heads, dim, first,
                         last, position, attention.soft_cap, part);
    } else {
      attend_range<false>(key_cache, value_cache, rows + at_once * dim, own_row, heads, dim, first,
                          last, position, attention.soft_cap, part);
    }
    barrier();
    const Worker later = worker.made_here();
    CodeRef again = *made_here(&code);
    const Partials partials(later.at<uint64_t>(again.attention.partials), again.attention.sequence,
                            later.arguments->shape.query_heads, again.attention.splits.count, dim);
    merge_parts(partials, later.tag(again.attention.version), parts, heads,
                (kv_head * group + at_once) * partials.splits + again.attention.split);
  }
}

WEFT_GPU void attend(const Worker& worker, CodeRef code) {
  const auto& attention = code.attention;
  const auto& shape = worker.arguments->shape;
  const SplitKeys keys(attention.splits.count, attention.splits.window,
                       worker.position(attention.sequence), attention.split);
  if (attention.split >= keys.active) {
    return;
  }
  float query_factor = 0;
  float key_factor = 0;
  if (attention.query_norm != kNowhere && attention.whole_norm != 0) {
    const auto factor = [&](Place rows, Version version, int columns) {
      return row_norm(worker, code.operation,
                      sequence_row(worker.at<uint64_t>(rows), attention.sequence, columns),
                      worker.tag(version), columns, attention.epsilon);
    };
    query_factor = factor(attention.q, attention.q_version, shape.query_heads * shape.head_dim);
    if (keys.last == worker.position(attention.sequence) + 1) {  // the step's own key is among them
      key_factor = factor(attention.k, attention.k_version, shape.kv_heads * shape.head_dim);
    }
  }
  for (int kv_head = attention.first; kv_head < made_here(&code)->attention.last; ++kv_head) {
    attend_head(worker.made_here(), *made_here(&code), kv_head, keys.first, keys.last, query_factor,
                key_factor);
  }
}

/// By whole waves: four elements of the row that a sequence's splits make together, of `active`
/// splits, from `element` on. `sinks`: of a kernel with kExperts, [query_heads] or kNowhere.
WEFT_GPU f32x4 merged_quad(const Worker& worker, int operation, const Partials& partials,
                           uint32_t tag, int active, int element, Place sinks) {
  constexpr int kAtOnce = 4;  // splits on their way
  const int dim = partials.dim;
  const int head = element / dim;
  const int64_t first = static_cast<int64_t>(head) * partials.splits;
  const TaggedPlace sums = partials.sums + (first * dim + (element - head * dim)) / 2;
  float highest = -kInfinity;
  float total = 0;
  f32x4 sum = {0, 0, 0, 0};
  for (int split = 0; split < active; split += kAtOnce) {
    Tagged words[3 * kAtOnce];  // of each: maximum and total, four sums
    await_tagged(worker, operation, tag, words, [&](int i) {
      const int s = __builtin_elementwise_min(split + i / 3, active - 1);
      return i % 3 == 0 ? partials.tails + first + s : sums + s * (dim / 2) + (i % 3 - 1);
    });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (split + i < active) {
        const Tagged* const of = words + 3 * i;
        const float higher = __builtin_fmaxf(highest, of[0].first());
        const float keep = exp_fast(highest - higher);
        const float take = exp_fast(of[0].first() - higher);
        highest = higher;
        total = total * keep + of[0].second() * take;
        sum =
            sum * keep + f32x4{of[1].first(), of[1].second(), of[2].first(), of[2].second()} * take;
      }
    }
  }
  if (kExperts && sinks != kNowhere) {
    const float sink = weight_pair(worker.at<const uint16_t>(sinks)[head])[0];
    const float higher = __builtin_fmaxf(highest, sink);
    const float keep = exp_fast(highest - higher);
    sum = sum * keep;
    total = total * keep + exp_fast(sink - higher);
  }
  return sum * divide_fast(1, total);
}

/// The row that attention's splits make together, to LDS: of one sequence. Of latent rows those of
/// the product's heads.
WEFT_GPU void make_merged_row(const Worker& worker, CodeRef code, const RowPart& part) {
  const auto& product = code.product;
  const auto& shape = worker.arguments->shape;
  const SplitKeys keys(product.splits.count, product.splits.window, worker.position(0), 0,
                       kLatents ? resident::KeysOf::latents : resident::KeysOf::heads);
  const Partials partials(worker.at<uint64_t>(product.row), 0, shape.query_heads,
                          product.splits.count, kLatents ? kLatentRank : shape.head_dim);
  const uint32_t tag = worker.tag(product.source);
  int before = 0;  // elements of other heads
  int k = product.k;
  int end = part.end;
  if constexpr (kLatents) {
    const ProductHeads heads(code);
    before = heads.first * kLatentRank;
    k = end = heads.count * kLatentRank;
  }
  for (int base = part.first + 4 * wave_index() * kWaveLanes; base < end;
       base += 4 * kTeamThreads) {
    const int element = base + 4 * lane_index();
    const f32x4 x =
        merged_quad(worker, code.operation, partials, tag, keys.active,
                    before + __builtin_elementwise_min(element, k - 4), product.norm_weight) *
        ProductHead(code).row_scale();
    if (element < end) {
      put_row_quad(0, part, element / 4, element < k ? x : f32x4{0, 0, 0, 0});
    }
  }
}

/// Merges the splits of some heads of all sequences: of several to operands, of one to a tagged
/// row.
WEFT_GPU void combine(const Worker& worker, CodeRef code) {
  const auto& shape = worker.arguments->shape;
  const int first = code.combine.first * shape.head_dim;
  const int last = code.combine.last * shape.head_dim;
  const int k = shape.query_heads * shape.head_dim;
#pragma unroll 1
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    const SplitKeys keys(code.combine.splits.count, code.combine.splits.window,
                         worker.position(sequence), 0);
    const Partials partials(worker.at<uint64_t>(code.combine.partials), sequence, shape.query_heads,
                            code.combine.splits.count, shape.head_dim);
    for (int base = first + 4 * wave_index() * kWaveLanes; base < last; base += 4 * kTeamThreads) {
      const int element = base + 4 * lane_index();
      const f32x4 x = merged_quad(worker, code.operation, partials, worker.tag(code.combine.source),
                                  keys.active, __builtin_elementwise_min(element, last - 4),
                                  code.combine.sinks);
      if (element >= last) {
        continue;
      }
      if constexpr (kSeveral) {
        const TwoParts parts(x);
        const auto to = [&](int part) {
          return (Global<uint64_t>)(operand_part(worker, code.combine.out, sequence, part, k) +
                                    element);
        };
        store_shared_word<uint64_t>(to(0), __builtin_bit_cast(uint64_t, parts.upper));
        store_shared_word<uint64_t>(to(1), __builtin_bit_cast(uint64_t, parts.lower));
      } else {
        const TaggedPlace to = worker.at<uint64_t>(code.combine.out) + element / 2;
        const uint32_t tag = worker.tag(code.combine.version);
        store_tagged(to, x[0], x[1], tag);
        store_tagged(to + 1, x[2], x[3], tag);
      }
    }
  }
}

}  // namespace weft::cdna
