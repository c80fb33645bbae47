// Rows of activations: embeddings, the angles of RoPE, norms on outputs, and the row that a product
// multiplies as it comes to LDS.
#pragma once

#include "arch/cdna/math.hip.h"
#include "engine/cdna/decode/worker.hip.h"

namespace weft::cdna {

/// Two weights that are no product's, in the format that they have: see ModelShape::f16.
WEFT_GPU Vector<float, 2> weight_pair(uint32_t bits) {
  if constexpr (kWeights == KernelWeights::f16) {
    return __builtin_convertvector(__builtin_bit_cast(Vector<f16_t, 2>, bits), Vector<float, 2>);
  }
  return {bf16_low(bits), bf16_high(bits)};
}
WEFT_GPU f32x4 weight_quad(u32x2 bits) {
  return __builtin_shufflevector(weight_pair(bits[0]), weight_pair(bits[1]), 0, 1, 2, 3);
}
/// Four of a vector.
WEFT_GPU f32x4 load_weights(const Worker& worker, Place place, int quad) {
  return weight_quad(worker.at<const u32x2>(place)[quad]);
}
WEFT_GPU float squares_of(f32x4 x) {
  return (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
}

WEFT_GPU void embed(const Worker& worker, CodeRef code) {
  const uint32_t tag = worker.tag(code.embed.version);
  for (int sequence = code.embed.first; sequence < code.embed.last; ++sequence) {
    const auto row = worker.at<const u32x2>(code.embed.table) +
                     static_cast<int64_t>(shared.token[sequence]) * (code.embed.columns / 4);
    const TaggedPlace to =
        sequence_row(worker.at<uint64_t>(code.embed.out), sequence, code.embed.columns);
    for (int i = thread_index(); 4 * i < code.embed.columns; i += kTeamThreads) {
      const f32x4 x = weight_quad(row[i]) * code.embed.scale;
      store_tagged(to + 2 * i, x[0], x[1], tag);
      store_tagged(to + 2 * i + 1, x[2], x[3], tag);
    }
  }
}

/// The angles of RoPE at the step's positions, to LDS.
WEFT_GPU void rope_angles(const Worker& worker, CodeRef code) {
  const int half = worker.arguments->shape.rope_half;
  const int ropes = worker.arguments->shape.ropes;
  const auto frequencies = worker.at<const float>(code.begin_step.inverse_frequencies);
  // A sequence a wave, or one by all.
  const int i = kSeveral ? lane_index() : thread_index();
  const int sequence = kSeveral ? wave_index() : 0;
  if (sequence >= worker.sequences()) {
    return;
  }
  for (int rope = 0; rope < ropes; ++rope) {
    for (int pair = i; pair < half; pair += kSeveral ? kWaveLanes : kTeamThreads) {
      // The angle is rounded to f32, as checkpoints were trained with; then exact.
      const float angle = static_cast<float>(worker.position(sequence)) *
                          frequencies[(sequence * ropes + rope) * half + pair];
      const SineCosine x = sine_cosine(static_cast<double>(angle));
      float* const to = shared.angles[sequence][rope][pair];
      to[0] = code.begin_step.scale[rope] * static_cast<float>(x.cosine);
      to[1] = code.begin_step.scale[rope] * static_cast<float>(x.sine);
    }
  }
}

/// Four elements of a tagged row that ends after `quads` quads, of each lane; what a lane has none
/// of is 0.
template <int kQuads>
struct RowQuads {
  Tagged words[2 * kQuads] = {};

  __device__ __attribute__((always_inline)) static int quad(int base, int q) {
    return base + q * kTeamThreads + thread_index();
  }
  __device__ __attribute__((always_inline)) void await(const Worker& worker, int operation,
                                                       TaggedPlace row, uint32_t tag, int base,
                                                       int quads) {
    await_tagged(worker, operation, tag, words, [&](int i) {
      return row + 2 * __builtin_elementwise_min(quad(base, i / 2), quads - 1) + i % 2;
    });
  }
  __device__ __attribute__((always_inline)) f32x4 values(int base, int q, int quads) const {
    return quad(base, q) < quads ? f32x4{words[2 * q].first(), words[2 * q].second(),
                                         words[2 * q + 1].first(), words[2 * q + 1].second()}
                                 : f32x4{0, 0, 0, 0};
  }
};
inline constexpr int kQuadsAtOnce = 2;  ///< of a thread
inline constexpr int kTurnQuads = kQuadsAtOnce * kTeamThreads;

/// Calls body(quad, values) for the quads of a tagged row of `columns` elements, from element
/// `first` up to `end`, where quads after the row are 0; whole waves at a time.
template <class Body>
WEFT_GPU void for_row(const Worker& worker, int operation, TaggedPlace row, uint32_t tag,
                      int columns, int first, int end, const Body& body) {
  const int quads = columns / 4;
  for (int base = first / 4; base + wave_index() * kWaveLanes < end / 4; base += kTurnQuads) {
    RowQuads<kQuadsAtOnce> turn;
    turn.await(worker, operation, row, tag, base, quads);
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      body(turn.quad(base, q), turn.values(base, q, quads));
    }
  }
}

/// 1 / sqrt(mean of squares) of a tagged row, by the team.
WEFT_GPU float row_norm(const Worker& worker, int operation, TaggedPlace row, uint32_t tag,
                        int columns, float epsilon) {
  float squares = 0;
  for_row(worker, operation, row, tag, columns, 0, columns,
          [&](int, f32x4 x) { squares += squares_of(x); });
  return norm_factor(team_sum(squares, 0), columns, epsilon);
}

/// Adds a normed row to the residual, which each worker keeps for itself.
WEFT_GPU void norm_add(const Worker& worker, CodeRef code, int sequence) {
  const auto& norm = code.norm_add;
  const TaggedPlace x = sequence_row(worker.at<uint64_t>(norm.x), sequence, norm.columns);
  const float factor =
      row_norm(worker, code.operation, x, worker.tag(norm.source), norm.columns, norm.epsilon) *
      norm.scale;
  const TaggedPlace residual =
      sequence_row(worker.at<uint64_t>(norm.residual), sequence, norm.columns);
  const uint32_t tag = worker.tag(norm.version);
  for (int i = thread_index(); 4 * i < norm.columns; i += kTeamThreads) {
    const f32x4 w = load_weights(worker, norm.weight, i) + norm.weight_offset;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Tagged y = load_tagged(x + 2 * i + half);
      const Tagged before = load_tagged(residual + 2 * i + half);  // this thread wrote it
      store_tagged(residual + 2 * i + half, before.first() + factor * w[2 * half] * y.first(),
                   before.second() + factor * w[2 * half + 1] * y.second(), tag);
    }
  }
}

/// Numbers as products take them.
struct TwoParts {
  u32x2 upper, lower;

  __device__ __attribute__((always_inline)) explicit TwoParts(f32x4 x) {
    const uint32_t a = pack_bf16(x[0], x[1]);
    const uint32_t b = pack_bf16(x[2], x[3]);
    upper = u32x2{a, b};
    lower = u32x2{pack_bf16(x[0] - bf16_low(a), x[1] - bf16_high(a)),
                  pack_bf16(x[2] - bf16_low(b), x[3] - bf16_high(b))};
  }
};
/// Four elements of a sequence's row that a product multiplies.
WEFT_GPU void put_row_quad(int sequence, const RowPart& part, int quad, f32x4 x) {
  const TwoParts parts(x);
  const int at = quad - part.first / 4;
  reinterpret_cast<u32x2*>(row_part(sequence, 0, part.elements))[at] = parts.upper;
  reinterpret_cast<u32x2*>(row_part(sequence, 1, part.elements))[at] = parts.lower;
}
/// A part of a sequence's row of operands.
WEFT_GPU Global<uint16_t> operand_part(const Worker& worker, Place rows, int sequence, int part,
                                       int k) {
  return worker.at<uint16_t>(rows) + static_cast<int64_t>(2 * sequence + part) * operand_pitch(k);
}
/// Rows that are operands, to LDS.
WEFT_GPU void copy_operands(const Worker& worker, CodeRef code, const RowPart& part) {
  const int chunks = (part.end - part.first) / 8;
  const float scale = ProductHead(code).row_scale();
  for (int half = 0; half < 2 * worker.sequences(); ++half) {
    const auto from = (Global<const u32x4>)(operand_part(worker, code.product.row, half / 2,
                                                         half % 2, code.product.k) +
                                            part.first);
    auto* const to = reinterpret_cast<u32x4*>(row_part(half / 2, half % 2, part.elements));
    for (int i = thread_index(); i < chunks; i += kTeamThreads) {
      u32x4 pairs = from[i];
      if (scale != 1) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          pairs[j] = pack_bf16(bf16_low(pairs[j]) * scale, bf16_high(pairs[j]) * scale);
        }
      }
      to[i] = pairs;
    }
  }
}

/// A LayerNormed row. The mean must be known before the squares about it: the row is read thrice,
/// the first time waited for.
WEFT_GPU void make_layer_norm(const Worker& worker, CodeRef code, int sequence,
                              const RowPart& part) {
  const auto& product = code.product;
  const TaggedPlace row = sequence_row(worker.at<uint64_t>(product.row), sequence, product.k);
  const uint32_t tag = worker.tag(product.source);
  float sum = 0;
  for_row(worker, code.operation, row, tag, product.k, 0, product.k,
          [&](int, f32x4 x) { sum += (x[0] + x[1]) + (x[2] + x[3]); });
  const float mean = divide_fast(team_sum(sum, 0), static_cast<float>(product.k));
  float squares = 0;
  for_row(worker, code.operation, row, tag, product.k, 0, product.k,
          [&](int quad, f32x4 x) { squares += 4 * quad < product.k ? squares_of(x - mean) : 0; });
  const float factor = norm_factor(team_sum(squares, 1), product.k, product.epsilon);
  const auto put = [&](int quad, f32x4 x) {
    if (4 * quad < part.end) {
      const int from = __builtin_elementwise_min(quad, product.k / 4 - 1);
      const f32x4 w = load_weights(worker, product.norm_weight, from) + product.weight_offset;
      x = (x - mean) * factor * w;
      if (product.norm_bias != kNowhere) {
        x += load_weights(worker, product.norm_bias, from);
      }
      x *= ProductHead(code).row_scale();
      put_row_quad(sequence, part, quad, 4 * quad < product.k ? x : f32x4{0, 0, 0, 0});
    }
  };
  for_row(worker, code.operation, row, tag, product.k, part.first, part.end, put);
}

/// A tagged row as it is or times a norm's weights, whose factor is left to the product's end: see
/// product_factor().
WEFT_GPU void make_plain_row(const Worker& worker, CodeRef code, int sequence,
                             const RowPart& part) {
  const auto& product = code.product;
  const bool normed = ProductHead(code).form() == resident::RowForm::rms_norm;
  float squares = 0;
  const auto put = [&](int quad, f32x4 x) {
    if (normed) {
      squares += 4 * quad < part.end ? squares_of(x) : 0;
      const int from = __builtin_elementwise_min(quad, product.k / 4 - 1);
      x *= load_weights(worker, product.norm_weight, from) + product.weight_offset;
    }
    if (4 * quad < part.end) {
      put_row_quad(sequence, part, quad, x * ProductHead(code).row_scale());
    }
  };
  for_row(worker, code.operation,
          sequence_row(worker.at<uint64_t>(product.row), sequence, product.k),
          worker.tag(product.source), product.k, part.first, part.end, put);
  squares = wave_reduce<Sum>(squares);
  if (lane_index() == 0) {
    float& of_wave = shared.squares[sequence][wave_index()];
    of_wave = squares + (part.first > 0 ? of_wave : 0);
  }
}
/// Of each head its part of a row, one after the other, to LDS: of latent rows' queries.
WEFT_GPU void make_heads_row(const Worker& worker, CodeRef code, const RowPart& part) {
  const auto& product = code.product;
  const int quads = part.end / 4;  // of a head, up to whole slices
  const int count = ProductHeads(code).count * quads;
  const TaggedPlace row = worker.at<uint64_t>(product.row);
  for (int base = 0; base + wave_index() * kWaveLanes < count; base += kTurnQuads) {
    int quad[kQuadsAtOnce];  // of the head
    TaggedPlace from[kQuadsAtOnce];
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      const int place = __builtin_elementwise_min(RowQuads<kQuadsAtOnce>::quad(base, q), count - 1);
      const int head = small_quotient(place, quads);
      quad[q] = place - head * quads;
      from[q] = row + head * (product.head_pitch / 2) +
                2 * __builtin_elementwise_min(quad[q], product.k / 4 - 1);
    }
    Tagged words[2 * kQuadsAtOnce];
    await_tagged(worker, code.operation, worker.tag(product.source), words,
                 [&](int i) { return from[i / 2] + i % 2; });
#pragma unroll
    for (int q = 0; q < kQuadsAtOnce; ++q) {
      const int place = RowQuads<kQuadsAtOnce>::quad(base, q);
      if (place < count) {
        put_row_quad(0, part, place,
                     4 * quad[q] < product.k
                         ? f32x4{words[2 * q].first(), words[2 * q].second(),
                                 words[2 * q + 1].first(), words[2 * q + 1].second()}
                         : f32x4{0, 0, 0, 0});
      }
    }
  }
}
/// When the row has been there, or all of its parts.
WEFT_GPU float product_factor(CodeRef code, int sequence) {
  if (ProductHead(code).form() != resident::RowForm::rms_norm) {
    return 1;
  }
  float squares = 0;
#pragma unroll
  for (int wave = 0; wave < kTeamWaves; ++wave) {
    squares += shared.squares[sequence][wave];
  }
  return norm_factor(squares, code.product.k, code.product.epsilon);
}

}  // namespace weft::cdna
