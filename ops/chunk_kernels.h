// An architecture's kernels for a chunk's rows (ops/<op>/hopper_prefill.h, cdna_prefill.h), by
// which prompts are fed and texts scored. layernorm(), whose kernels stand alone too, is found by
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "arch/device.h"
#include "ops/attention/op.h"
#include "ops/embed/op.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"
#include "ops/linear/prefill.h"
#include "ops/mla/op.h"
#include "ops/mla/prefill.h"
#include "ops/mla_prompt/prefill.h"
#include "ops/moe/prefill.h"
#include "ops/rmsnorm/op.h"
#include "ops/rope_angles/op.h"
#include "ops/rope_append/op.h"
#include "ops/row_places.h"
#include "ops/token_logprob/op.h"

namespace weft {

/// What such kernels take and want, as is known where they are not built too.
struct ChunkLimits {
  int64_t head_dim = 0;      ///< at most
  bool sinks = false;        ///< of attention
  int64_t route_groups = 0;  ///< of experts, at most
  int64_t latent_row = 0;    ///< elements of latent rows, at most
  /// Null, or why latent_prompt cannot take such operands, pointers aside; empty: it can.
  std::string_view (*refuse_latent_prompt)(const LatentAttentionArgs&) = nullptr;
  bool widened = false;        ///< weights in eight bits, which are widened for each product
  bool whole_columns = false;  ///< of f32 rows too products have a multiple of 8 columns
  /// Rows of `product` (PrefillScratch) that a linear operation of up to `rows` rows in bf16 wants,
  /// where something `bends` the product (a bias, a factor, ...), it is added to out, or out is not
  /// f32.
  int64_t (*scratch_rows)(bool bends, bool accumulate, DType out, int64_t rows) = nullptr;
};
const ChunkLimits& chunk_limits(Arch arch);

/// A second copy of products' weights for few rows; null functions where there is none. What they
/// do: ops/linear/hopper_tiles.h.
struct TiledKernels {
  int64_t (*linear_bytes)(const LinearArgs&) = nullptr;
  int64_t (*gated_bytes)(const GatedLinearArgs&) = nullptr;
  Status (*make_linear)(const LinearArgs&, char* to, uint32_t* refused, Stream) = nullptr;
  Status (*make_gated)(const GatedLinearArgs&, char* to, uint32_t* refused, Stream) = nullptr;
  bool (*takes_linear)(const LinearArgs&, int64_t rows, bool whole_k, Stream) = nullptr;
  bool (*takes_gated)(const GatedLinearArgs&, int64_t rows, bool whole_k, Stream) = nullptr;
  Status (*gated)(const GatedLinearArgs&, const char* tiles, int64_t rows, Stream) = nullptr;
};

/// Kernels take rows [0, rows) of their arguments, all on the device, and have errors of kind
/// device (the launch failed). A refusal says why operands cannot be taken; empty: they can.
struct ChunkKernels {
  template <class Args>
  using Refuse = std::string_view (*)(const Args&);
  template <class Args>
  using Launch = Status (*)(const Args&, int64_t rows, Stream);
  /// Rows at positions first, first + 1, ..., or as `places` says.
  template <class Args>
  using LaunchAt = Status (*)(const Args&, int64_t rows, int64_t first, Stream,
                              const RowPlaces& places);

  Refuse<EmbedArgs> refuse_embed = nullptr;
  Launch<EmbedArgs> embed = nullptr;
  LaunchAt<RopeAnglesArgs> rope_angles = nullptr;
  Refuse<RmsNormArgs> refuse_rmsnorm = nullptr;
  Launch<RmsNormArgs> rmsnorm = nullptr;  ///< of groups, counted apart
  /// Bytes of workspace, for any number of rows. Its counters are zero before the first use.
  Result<size_t> (*linear_workspace)(const LinearArgs&, Stream) = nullptr;
  Refuse<LinearArgs> refuse_linear = nullptr;
  Status (*linear)(const LinearArgs&, int64_t rows, const PrefillScratch&, Stream) = nullptr;
  Refuse<GatedLinearArgs> refuse_gated_linear = nullptr;
  Launch<GatedLinearArgs> gated_linear = nullptr;
  Refuse<RopeAppendArgs> refuse_rope_append = nullptr;
  LaunchAt<RopeAppendArgs> rope_append = nullptr;
  Refuse<AttentionArgs> refuse_attention = nullptr;
  /// The cache holds the keys and values of all positions before first + rows.
  Status (*attention)(const AttentionArgs&, int64_t rows, int64_t first, Stream) = nullptr;
  Launch<TokenLogprobArgs> token_logprob = nullptr;
  Refuse<RouteArgs> refuse_route = nullptr;
  Launch<RouteArgs> route = nullptr;
  Refuse<PrefillExpertsUp> refuse_experts_up = nullptr;
  Launch<PrefillExpertsUp> experts_up = nullptr;
  Refuse<PrefillExpertsDown> refuse_experts_down = nullptr;
  Launch<PrefillExpertsDown> experts_down = nullptr;
  /// Of rows of sequences of their own. Without a workspace a row's bits depend on no other row.
  Status (*step_attention)(const AttentionArgs&, int64_t rows, const RowPlaces& places,
                           const Workspace&, Stream) = nullptr;
  Refuse<LatentAppendArgs> refuse_latent_append = nullptr;
  LaunchAt<LatentAppendArgs> latent_append = nullptr;
  Refuse<LatentQueriesArgs> refuse_latent_queries = nullptr;
  Launch<LatentQueriesArgs> latent_queries = nullptr;
  Refuse<PrefillLatentAttention> refuse_latent_attention = nullptr;
  LaunchAt<PrefillLatentAttention> latent_attention = nullptr;
  /// Bytes of workspace, for up to so many rows. Its counters are zero before the first use.
  Result<size_t> (*latent_workspace)(const PrefillLatentAttention&, int64_t rows, Stream) = nullptr;
  Refuse<LatentValuesArgs> refuse_latent_values = nullptr;
  Launch<LatentValuesArgs> latent_values = nullptr;
  /// Null, or attention of a prompt's rows over latent rows that are multiplied out, for what
  /// ChunkLimits::refuse_latent_prompt takes, and its bytes of workspace for up to so many rows,
  /// whose counters it leaves alone. A row's bits depend on no other row.
  Status (*latent_prompt)(const PrefillLatentPrompt&, int64_t rows, int64_t first,
                          Stream) = nullptr;
  size_t (*latent_prompt_workspace)(const PrefillLatentPrompt&, int64_t rows) = nullptr;
  /// Null, or gated_linear where a row's bits may depend on how many rows there are.
  Launch<GatedLinearArgs> gated_linear_soon = nullptr;
  /// Null, or whether normed_rope_append takes such heads, if rope_append does.
  bool (*norms_heads)(const RopeAppendArgs&) = nullptr;
  Status (*normed_rope_append)(const RopeAppendArgs&, const HeadNorms&, int64_t rows, int64_t first,
                               Stream, const RowPlaces& places) = nullptr;
  /// Null, or bytes of workspace for step_attention, for any number of rows. Its counters are zero
  /// before the first use.
  size_t (*step_workspace)(const AttentionArgs&, Stream) = nullptr;
  TiledKernels tiled = {};  ///< of linear by PrefillScratch::tiles
};

/// Null: this build has none.
const ChunkKernels* chunk_kernels(Arch arch);

}  // namespace weft
