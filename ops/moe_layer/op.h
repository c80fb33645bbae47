// moe_layer: a mixture of experts with its router, as the AMD developer challenge of 2025 states it
// (problem `amd-mixture-of-experts`). Of each token x:
//
//   p = softmax(router x) over all experts; the `chosen` largest are drawn, of equals those of
//   lower number
//   y_e = down_e^T (silu(gate_e^T x) * up_e^T x)
//   out = the sum of p_e y_e over the experts drawn, in ascending order, + y of the shared expert
//
// Weights are not renormalised. All is f16: router x, p, both products of the first half, silu, its
// product, y_e, p_e y_e and each partial sum of `out` are rounded to it; sums of products are f32.
// Experts' matrices lie as [in, out], transposed against nn.Linear, each where it likes. They are
// neither copied nor turned.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/matrix.h"
#include "ops/moe/op.h"

namespace weft {

/// Experts of a layer, the shared one included.
inline constexpr int64_t kMostLayerExperts = 96;

/// All are f16; pointers are aligned to 16 bytes and strides multiples of 8 elements.
struct MoeLayerArgs {
  int64_t rows = 0;     ///< tokens
  int64_t hidden = 0;   ///< of a token, a multiple of 8
  int64_t inner = 0;    ///< of what an expert makes of it, a multiple of 8
  int64_t experts = 0;  ///< that are drawn from
  int64_t chosen = 0;   ///< of a token, at most `experts`
  bool shared = false;  ///< there is an expert behind these that all tokens have, with weight 1
  ConstMatrix x;        ///< [rows, hidden]
  ConstMatrix router;   ///< [experts, hidden]; not read where `ids` is there
  std::vector<ConstMatrix> gate = {};  ///< of each expert [hidden, inner]
  std::vector<ConstMatrix> up = {};    ///< likewise
  std::vector<ConstMatrix> down = {};  ///< of each expert [inner, hidden]
  /// What the rows have drawn, the shared expert with weight 1 in each one's last slot, as
  /// MoeLayerBuffers::drawn has it; null: what `router` gives. Ids must be valid, and in a row
  /// ascending.
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  ///< likewise
  Matrix out;                      ///< [rows, hidden]
  Workspace workspace;

  int64_t all() const { return experts + (shared ? 1 : 0); }
  int64_t slots_of_row() const { return chosen + (shared ? 1 : 0); }
};

/// Multiplications and additions, without the draw.
constexpr double moe_layer_flops(double rows, double slots_of_row, double hidden, double inner,
                                 double experts) {
  return 2 * rows * hidden * (3 * slots_of_row * inner + experts);
}

/// Error (usage): which of the conditions above does not hold.
Status check(const MoeLayerArgs& args);
PlanKey plan_key(const MoeLayerArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h); on a device six kernels, or four where the rows have drawn
/// already.
Status moe_layer(const MoeLayerArgs& args, Stream stream);
Result<size_t> moe_layer_workspace(const MoeLayerArgs& args, Stream stream);
const Kernel<MoeLayerArgs>* moe_layer_kernel(Arch arch);

/// What stands between the steps. Slot s of row r, its s-th expert, is at r * slots_of_row() + s;
/// the shared expert's is the last.
struct MoeLayerBuffers {
  float* logits = nullptr;   ///< [rows, experts], rounded to f16
  Drawn drawn;               ///< of the slots; weights not rounded yet. The caller's, where given
  int32_t* order = nullptr;  ///< moe_order_elements(); of devices alone, as `products`
  Matrix between;            ///< [slots, inner]
  Matrix products;           ///< [slots, hidden]

  /// In memory that is aligned to 256 bytes, of which they take moe_layer_buffer_bytes().
  MoeLayerBuffers(const MoeLayerArgs& args, void* memory, bool on_device);
};
size_t moe_layer_buffer_bytes(const MoeLayerArgs& args, bool on_device);

namespace reference {
/// out[rows.size()][hidden]. `rounded` says whether what is rounded to f16 between is; the router's
/// products always are.
void moe_layer(const MoeLayerArgs& args, Range rows, bool rounded, double* out);
}  // namespace reference
namespace cpu {
/// Steps that each need the one before complete.
inline constexpr int kMoeLayerSteps = 3;
/// Part `index` of `count` about equal ones of a step. Parts may run at once, each with a scratch
/// of its own, aligned to 64.
void moe_layer(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, int step, int64_t index,
               int64_t count, std::span<std::byte> scratch);
size_t moe_layer_scratch_bytes(const MoeLayerArgs& args);
}  // namespace cpu
namespace hopper {
extern const Kernel<MoeLayerArgs> moe_layer;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<MoeLayerArgs> moe_layer;  // NOLINT: named as the operation
}

}  // namespace weft
