// mla_layer: a decode step of multi-head latent attention with its projections, as the AMD
// developer challenge of 2025 states it (problem `amd-mla-decode`). Each sequence has `prefill`
// cached rows [latent: 512 | key before RoPE: 64] and one more token x:
//
//   row prefill of the cache = kv_down x
//   q = q_up (q_down x), of a head [128 | 64]; RoPE turns the 64 as of position prefill
//   a cached row's keys of a head = [K latent | 64, turned as of the row's position], values V
//   latent, with the head's rows K, then V, of kv_up
//   y = o softmax(q . keys / sqrt(192)) values
//
// There is no norm and no bias, and values are not turned. Computed in the absorbed form (ops/mla,
// ops/mla_decode): K^T q instead of K latent, V (sum of latents) instead of V latent, so that no
// key or value is made. q_down x, q, what RoPE gives, K^T q, the sum of latents, its product with
// V, the new row and y are rounded to bf16; sums are f32, and the softmax.
//
// RoPE turns elements (i, i + 32) by an angle that is computed in bf16: position times frequency,
// the position, the frequency base^(-i / 32), the base 10000, their product, its cosine and its
// sine each rounded to bf16. Positions above 256 so share angles, which no exact angle reproduces.
#pragma once

#include <cstddef>
#include <span>

#include "base/range.h"
#include "ops/gemm_bf16/op.h"
#include "ops/kernel.h"
#include "ops/matrix.h"
#include "ops/mla_decode/op.h"

namespace weft {

inline constexpr int64_t kLayerNope = 128;   ///< of a head's query, which RoPE leaves
inline constexpr int64_t kLayerValue = 128;  ///< of a head's value
/// With which a tile's new rows are within the 4 GiB that a store on AMD reaches.
inline constexpr int64_t kLayerCapacity = 16384;
inline constexpr int64_t kLayerHeadRows = kLayerNope + kLayerValue;  ///< of kv_up
inline constexpr int64_t kLayerQuery = kLayerNope + kLatentTurned;

/// All are bf16, matrices as Hugging Face stores weights; pointers are aligned to 16 bytes and
/// strides multiples of 16 bytes.
struct MlaLayerArgs {
  int64_t batch = 0;      ///< sequences, 1 to kLatentSequences
  int64_t dim = 0;        ///< of the model, a multiple of 8
  int64_t q_rank = 0;     ///< of the queries' latent, a multiple of 8
  int64_t heads = 0;      ///< 1 to kLatentHeads
  int64_t prefill = 0;    ///< rows that each sequence's cache has; below capacity
  int64_t capacity = 0;   ///< rows that each has room for, at most kLayerCapacity
  ConstMatrix x;          ///< [batch, dim]
  ConstMatrix q_down;     ///< [q_rank, dim]
  ConstMatrix q_up;       ///< [heads * 192, q_rank]
  ConstMatrix kv_down;    ///< [576, dim]
  ConstMatrix kv_up;      ///< [heads * 256, 512]
  ConstMatrix o;          ///< [dim, heads * 128]
  void* cache = nullptr;  ///< [batch][capacity][576]: row `prefill` of each is written
  /// [prefill + 1][64]: of each position the cosines, then the sines, as mla_layer_angles() gives
  /// them.
  const void* angles = nullptr;
  bool constant_weights = false;  ///< nothing in flight writes them: see Kernel
  Matrix out;                     ///< y, [batch, dim]
  Workspace workspace;
};

/// A head's rows of kv_up: the keys', or the values'.
inline ConstMatrix layer_keys(const ConstMatrix& kv_up, int64_t head) {
  const int64_t row = head * kLayerHeadRows;
  return {static_cast<const bf16*>(kv_up.data) + row * kv_up.stride, kv_up.dtype, kv_up.stride};
}
inline ConstMatrix layer_values(const ConstMatrix& kv_up, int64_t head) {
  ConstMatrix values = layer_keys(kv_up, head);
  values.data = static_cast<const bf16*>(values.data) + kLayerNope * kv_up.stride;
  return values;
}

/// Angles of positions [0, positions): to[positions * 64], on the host.
void mla_layer_angles(int64_t positions, bf16* to);

/// Error (usage): which of the conditions above does not hold.
Status check(const MlaLayerArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h): on a device seven kernels.
Status mla_layer(const MlaLayerArgs& args, Stream stream);
Result<size_t> mla_layer_workspace(const MlaLayerArgs& args, Stream stream);

/// As an operand of what comes after.
inline ConstMatrix to_const(const Matrix& m) { return {m.data, m.dtype, m.stride}; }

/// What stands between the operations that a layer is made of. All in bf16, but for the lengths.
struct MlaLayerBuffers {
  Matrix latent;               ///< q_down x: [batch, q_rank]
  Matrix q;                    ///< [batch, heads * 192]
  Matrix queries;              ///< absorbed and turned: [batch, heads * 576]
  Matrix seen;                 ///< sums of latents: [batch, heads * 512]
  Matrix values;               ///< [batch, heads * 128]
  int32_t* lengths = nullptr;  ///< [batch]: keys of each

  /// In memory that is aligned to 256 bytes, of which they take mla_layer_buffer_bytes().
  MlaLayerBuffers(const MlaLayerArgs& args, void* memory);
};
size_t mla_layer_buffer_bytes(const MlaLayerArgs& args);

/// The operations, each with the workspace given.
struct MlaLayerSteps {
  MlaLayerSteps(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Workspace workspace);
  GemmBf16Args kv_down, q_down, q_up, o;
  MlaDecodeArgs attention;
};

/// What an architecture has of its own, beside gemm_bf16 and mla_decode.
struct MlaLayerKernels {
  /// buffers.queries of buffers.q, and buffers.lengths.
  Status (*queries)(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream);
  /// buffers.values of buffers.seen.
  Status (*values)(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream);
};
const MlaLayerKernels* mla_layer_kernels(Arch arch);

namespace reference {
/// Of sequences: y[sequences.size()][dim] and the cache's new rows[sequences.size()][576].
/// `rounded` says whether what is rounded to bf16 between is; keys as RoPE turns them and the new
/// rows always are.
void mla_layer(const MlaLayerArgs& args, Range sequences, bool rounded, double* y, double* rows);
}  // namespace reference
namespace cpu {
/// Steps that each need the one before complete.
inline constexpr int kMlaLayerSteps = 6;
/// Part `index` of `count` about equal ones of a step. Parts may run at once, each with a scratch
/// of its own, aligned to 64.
void mla_layer(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, int step, int64_t index,
               int64_t count, std::span<std::byte> scratch);
size_t mla_layer_scratch_bytes(const MlaLayerArgs& args);
}  // namespace cpu
namespace hopper {
extern const MlaLayerKernels mla_layer;  // NOLINT: named as the operation
}
namespace cdna {
extern const MlaLayerKernels mla_layer;  // NOLINT: named as the operation
}

}  // namespace weft
