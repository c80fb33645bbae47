// Rows of activations outside of products: embeddings, the angles of RoPE, norms on outputs.
#pragma once

#include "engine/hopper/decode/worker.cuh"
#include "ops/rmsnorm/hopper.cuh"

namespace weft::hopper {

template <class W>
__device__ __forceinline__ void embed(const W& worker, const EmbedCode& code) {
  const Team team = worker.team();
#pragma unroll 1
  for (int sequence = code.first; sequence < code.last; ++sequence) {
    const auto* row = at<const __nv_bfloat16>(worker, code.table) +
                      static_cast<int64_t>(worker.shared().token[sequence]) * code.columns;
    Tagged* to = row_at(worker, code.out, sequence, code.columns);
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int base = team.thread; 4 * base < code.columns; base += kAtOnce * Team::kThreads) {
      uint2 quads[kAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * Team::kThreads;
        if (4 * i < code.columns) {
          quads[j] = __ldg(reinterpret_cast<const uint2*>(row) + i);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * Team::kThreads;
        if (4 * i < code.columns) {
          const float4 x = widen4(quads[j]);
          store_tagged(to + 2 * i, x.x * code.scale, x.y * code.scale, worker.tag(code.version));
          store_tagged(to + 2 * i + 1, x.z * code.scale, x.w * code.scale,
                       worker.tag(code.version));
        }
      }
    }
  }
}

/// The angles of RoPE at the sequences' positions, to shared memory.
template <class W>
__device__ __forceinline__ void rope_angles(const W& worker, const BeginStepCode& code) {
  const int half = worker.launch().shape.rope_half;
#pragma unroll 1
  for (int rope = 0; rope < worker.launch().shape.ropes; ++rope) {
#pragma unroll 1
    for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
      const auto position = static_cast<float>(worker.position_of(sequence));
      float2* angles = worker.angles(rope, sequence);
      const float* frequencies = at<const float>(worker, code.inverse_frequencies) +
                                 (sequence * worker.launch().shape.ropes + rope) * half;
      for (int i = worker.team().thread; i < half; i += Team::kThreads) {
        // The angle is rounded to f32, as checkpoints were trained with; then exact.
        const float angle = position * __ldg(frequencies + i);
        double sine;
        double cosine;
        sincos(static_cast<double>(angle), &sine, &cosine);
        angles[i] = {code.scale[rope] * static_cast<float>(cosine),
                     code.scale[rope] * static_cast<float>(sine)};
      }
    }
  }
}

/// 1 / sqrt(mean of squares) of a tagged row of `count` elements, by the team.
template <class W>
__device__ float row_norm(const W& worker, const Code& code, const Tagged* x, Version version,
                          int count, float epsilon) {
  auto late = worker.late(code);
  float squares = 0;
  constexpr int kAtOnce = 2;  // quads of a thread on their way
#pragma unroll 1
  for (int first = worker.team().thread; 4 * first < count; first += kAtOnce * Team::kThreads) {
    const auto from = [&](int i) { return x + 2 * (first + i * Team::kThreads); };
    const auto there = [&](int i) { return 4 * (first + i * Team::kThreads) < count; };
    TaggedQuad quads[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (there(i)) {
        quads[i] = load_tagged_quad(from(i));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (there(i)) {
        squares += squares_of(await_quad(quads[i], from(i), worker.tag(version), late));
      }
    }
  }
  squares = team_sum(worker.team(), squares, 0);
  worker.team().sync();  // the next sum takes the same place
  return norm_factor(squares, count, epsilon);
}

/// Adds a normed row to the residual, which each worker keeps for itself.
template <class W>
__device__ __forceinline__ void norm_add(const W& worker, const Code& code) {
  const NormAddCode& norm = code.norm_add;
#pragma unroll 1
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    const Tagged* x = row_at(worker, norm.x, sequence, norm.columns);
    const float factor =
        row_norm(worker, code, x, norm.source, norm.columns, norm.epsilon) * norm.scale;
    // This thread wrote it before.
    Tagged* residual = row_at(worker, norm.residual, sequence, norm.columns);
    for (int i = worker.team().thread; 4 * i < norm.columns; i += Team::kThreads) {
      const float4 w = load_weight4(at<const __nv_bfloat16>(worker, norm.weight), i,
                                    W::kGeneral ? norm.weight_offset : 0);
      const float4 y = load_tagged_quad(x + 2 * i).values();
      const float4 before = load_tagged_quad(residual + 2 * i).values();
      store_tagged(residual + 2 * i, before.x + factor * w.x * y.x, before.y + factor * w.y * y.y,
                   worker.tag(norm.version));
      store_tagged(residual + 2 * i + 1, before.z + factor * w.z * y.z,
                   before.w + factor * w.w * y.w, worker.tag(norm.version));
    }
  }
}

/// Waits until the whole rows of a product are there.
template <class W>
__device__ __forceinline__ void await_row(const W& worker, const Code& code) {
  const ProductCode& product = code.product;
  auto late = worker.late(code);
#pragma unroll 1
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    for (int i = worker.team().thread; 4 * i < product.k; i += Team::kThreads) {
      const Tagged* from = row_at(worker, product.row, sequence, product.k) + 2 * i;
      await_quad(load_tagged_quad(from), from, worker.tag(product.source), late);
    }
  }
}

}  // namespace weft::hopper
