// Rows of activations: embeddings, the angles of RoPE, norms on outputs, and the row that a product
// multiplies as it comes to LDS.
#pragma once

#include "arch/cdna/math.hip.h"
#include "engine/cdna/decode/worker.hip.h"

namespace weft::cdna {

struct Weights4 {
  uint32_t pairs[2];
  __device__ __attribute__((always_inline)) f32x4 values(float offset) const {
    return f32x4{bf16_low(pairs[0]), bf16_high(pairs[0]), bf16_low(pairs[1]), bf16_high(pairs[1])} +
           offset;
  }
};
/// Four bf16 of a vector.
WEFT_GPU Weights4 load_weights(const Worker& worker, Place place, int quad) {
  const auto pairs = worker.at<const u32x2>(place)[quad];
  return {{pairs[0], pairs[1]}};
}
WEFT_GPU float squares_of(f32x4 x) {
  return (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
}

WEFT_GPU void embed(const Worker& worker, CodeRef code) {
  const auto row = worker.at<const u32x2>(code.embed.table) +
                   static_cast<int64_t>(shared.token) * (code.embed.columns / 4);
  const TaggedPlace to = worker.at<uint64_t>(code.embed.out);
  const uint32_t tag = worker.tag(code.embed.version);
  for (int i = thread_index(); 4 * i < code.embed.columns; i += kTeamThreads) {
    const u32x2 pairs = row[i];
    const Weights4 quad{{pairs[0], pairs[1]}};
    const f32x4 x = quad.values(0) * code.embed.scale;
    store_tagged(to + 2 * i, x[0], x[1], tag);
    store_tagged(to + 2 * i + 1, x[2], x[3], tag);
  }
}

/// The angles of RoPE at the step's position, to LDS.
WEFT_GPU void rope_angles(const Worker& worker, CodeRef code) {
  const int half = worker.arguments->shape.rope_half;
  const auto frequencies = worker.at<const float>(code.begin_step.inverse_frequencies);
  const int i = thread_index();
  for (int rope = 0; rope < worker.arguments->shape.ropes; ++rope) {
    if (i < half) {
      // The angle is rounded to f32, as checkpoints were trained with; then exact.
      const float angle = static_cast<float>(worker.position()) * frequencies[rope * half + i];
      const SineCosine x = sine_cosine(static_cast<double>(angle));
      shared.angles[rope][i][0] = code.begin_step.scale[rope] * static_cast<float>(x.cosine);
      shared.angles[rope][i][1] = code.begin_step.scale[rope] * static_cast<float>(x.sine);
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

/// Calls body(quad, values) for the quads of a tagged row of `columns` elements, up to `end`, where
/// quads after the row are 0; whole waves at a time.
template <class Body>
WEFT_GPU void for_row(const Worker& worker, int operation, TaggedPlace row, uint32_t tag,
                      int columns, int end, const Body& body) {
  const int quads = columns / 4;
  for (int base = 0; base + wave_index() * kWaveLanes < end / 4; base += kTurnQuads) {
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
  for_row(worker, operation, row, tag, columns, columns,
          [&](int, f32x4 x) { squares += squares_of(x); });
  return norm_factor(team_sum(squares, 0), columns, epsilon);
}

/// Adds a normed row to the residual, which each worker keeps for itself.
WEFT_GPU void norm_add(const Worker& worker, CodeRef code) {
  const auto& norm = code.norm_add;
  const TaggedPlace x = worker.at<uint64_t>(norm.x);
  const float factor =
      row_norm(worker, code.operation, x, worker.tag(norm.source), norm.columns, norm.epsilon) *
      norm.scale;
  const TaggedPlace residual = worker.at<uint64_t>(norm.residual);
  const uint32_t tag = worker.tag(norm.version);
  for (int i = thread_index(); 4 * i < norm.columns; i += kTeamThreads) {
    const f32x4 w = load_weights(worker, norm.weight, i).values(norm.weight_offset);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Tagged y = load_tagged(x + 2 * i + half);
      const Tagged before = load_tagged(residual + 2 * i + half);  // this thread wrote it
      store_tagged(residual + 2 * i + half, before.first() + factor * w[2 * half] * y.first(),
                   before.second() + factor * w[2 * half + 1] * y.second(), tag);
    }
  }
}

/// Four elements of the row that a product multiplies.
WEFT_GPU void put_row_quad(int quad, f32x4 x) {
  auto* const upper = reinterpret_cast<u32x2*>(shared.row);
  auto* const lower = reinterpret_cast<u32x2*>(shared.row + most_k(kTarget) / 2);
  const uint32_t a = pack_bf16(x[0], x[1]);
  const uint32_t b = pack_bf16(x[2], x[3]);
  upper[quad] = u32x2{a, b};
  lower[quad] = u32x2{pack_bf16(x[0] - bf16_low(a), x[1] - bf16_high(a)),
                      pack_bf16(x[2] - bf16_low(b), x[3] - bf16_high(b))};
}

/// A LayerNormed row. The mean must be known before the squares about it: the row is read thrice,
/// the first time waited for.
WEFT_GPU void make_layer_norm(const Worker& worker, CodeRef code) {
  const auto& product = code.product;
  const TaggedPlace row = worker.at<uint64_t>(product.row);
  const uint32_t tag = worker.tag(product.source);
  const int end = slices_of(product.k) * kSliceK;
  float sum = 0;
  for_row(worker, code.operation, row, tag, product.k, product.k,
          [&](int, f32x4 x) { sum += (x[0] + x[1]) + (x[2] + x[3]); });
  const float mean = divide_fast(team_sum(sum, 0), static_cast<float>(product.k));
  float squares = 0;
  for_row(worker, code.operation, row, tag, product.k, product.k,
          [&](int quad, f32x4 x) { squares += 4 * quad < product.k ? squares_of(x - mean) : 0; });
  const float factor = norm_factor(team_sum(squares, 1), product.k, product.epsilon);
  for_row(worker, code.operation, row, tag, product.k, end, [&](int quad, f32x4 x) {
    if (4 * quad < end) {
      const int from = __builtin_elementwise_min(quad, product.k / 4 - 1);
      const f32x4 w = load_weights(worker, product.norm_weight, from).values(product.weight_offset);
      x = (x - mean) * factor * w;
      if (product.norm_bias != kNowhere) {
        x += load_weights(worker, product.norm_bias, from).values(0);
      }
      put_row_quad(quad, 4 * quad < product.k ? x : f32x4{0, 0, 0, 0});
    }
  });
}

/// A tagged row as it is or times a norm's weights, whose factor is left to the product's end: see
/// product_factor().
WEFT_GPU void make_plain_row(const Worker& worker, CodeRef code) {
  const auto& product = code.product;
  const bool normed = ProductHead(code).form() == resident::RowForm::rms_norm;
  const int end = slices_of(product.k) * kSliceK;
  float squares = 0;
  for_row(worker, code.operation, worker.at<uint64_t>(product.row), worker.tag(product.source),
          product.k, end, [&](int quad, f32x4 x) {
            if (normed) {
              squares += squares_of(x);
              const int from = __builtin_elementwise_min(quad, product.k / 4 - 1);
              x *= load_weights(worker, product.norm_weight, from).values(product.weight_offset);
            }
            if (4 * quad < end) {
              put_row_quad(quad, x);
            }
          });
  squares = wave_reduce<Sum>(squares);
  if (lane_index() == 0) {
    shared.partial[0][wave_index()] = squares;
  }
}
/// When the row is there.
WEFT_GPU float product_factor(CodeRef code) {
  if (ProductHead(code).form() != resident::RowForm::rms_norm) {
    return 1;
  }
  float squares = 0;
#pragma unroll
  for (int wave = 0; wave < kTeamWaves; ++wave) {
    squares += shared.partial[0][wave];
  }
  return norm_factor(squares, code.product.k, code.product.epsilon);
}

}  // namespace weft::cdna
