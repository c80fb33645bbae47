#include "ops/chunk_kernels.h"

#include "base/built.h"
#include "base/check.h"
#include "ops/attention/cdna_prefill.h"
#include "ops/attention/hopper_prefill.h"
#include "ops/embed/cdna_prefill.h"
#include "ops/embed/hopper_prefill.h"
#include "ops/gated_linear/cdna_prefill.h"
#include "ops/gated_linear/hopper_prefill.h"
#include "ops/linear/cdna_prefill.h"
#include "ops/linear/hopper_prefill.h"
#include "ops/linear/hopper_tiles.h"
#include "ops/mla/cdna_prefill.h"
#include "ops/mla/hopper_prefill.h"
#include "ops/mla_prompt/hopper_prefill.h"
#include "ops/moe/cdna.h"
#include "ops/moe/cdna_prefill.h"
#include "ops/moe/hopper_prefill.h"
#include "ops/rmsnorm/cdna_prefill.h"
#include "ops/rmsnorm/hopper_prefill.h"
#include "ops/rope_angles/cdna_prefill.h"
#include "ops/rope_angles/hopper_prefill.h"
#include "ops/rope_append/cdna_prefill.h"
#include "ops/rope_append/hopper_prefill.h"
#include "ops/token_logprob/cdna_prefill.h"
#include "ops/token_logprob/hopper_prefill.h"

// What every architecture has.
#define WEFT_CHUNK_KERNELS(ARCH)                                                                   \
  .refuse_embed = ARCH::refuse_prefill_embed, .embed = ARCH::prefill_embed,                        \
  .rope_angles = ARCH::prefill_rope_angles, .refuse_rmsnorm = ARCH::refuse_prefill_rmsnorm,        \
  .rmsnorm = ARCH::prefill_rmsnorm, .linear_workspace = ARCH::prefill_linear_workspace,            \
  .refuse_linear = ARCH::refuse_prefill_linear, .linear = ARCH::prefill_linear,                    \
  .refuse_gated_linear = ARCH::refuse_prefill_gated_linear,                                        \
  .gated_linear = ARCH::prefill_gated_linear,                                                      \
  .refuse_rope_append = ARCH::refuse_prefill_rope_append,                                          \
  .rope_append = ARCH::prefill_rope_append, .refuse_attention = ARCH::refuse_prefill_attention,    \
  .attention = ARCH::prefill_attention, .token_logprob = ARCH::prefill_token_logprob,              \
  .refuse_route = ARCH::refuse_prefill_route, .route = ARCH::prefill_route,                        \
  .refuse_experts_up = ARCH::refuse_prefill_experts, .experts_up = ARCH::prefill_experts_up,       \
  .refuse_experts_down = ARCH::refuse_prefill_experts, .experts_down = ARCH::prefill_experts_down, \
  .step_attention = ARCH::step_attention, .refuse_latent_append = refuse_latents,                  \
  .latent_append = ARCH::prefill_latent_append,                                                    \
  .refuse_latent_queries = ARCH::refuse_prefill_latents,                                           \
  .latent_queries = ARCH::prefill_latent_queries, .refuse_latent_attention = refuse_latents,       \
  .latent_attention = ARCH::prefill_latent_attention,                                              \
  .latent_workspace = ARCH::prefill_latent_workspace,                                              \
  .refuse_latent_values = ARCH::refuse_prefill_latents,                                            \
  .latent_values = ARCH::prefill_latent_values

namespace weft {

const ChunkLimits& chunk_limits(Arch arch) {
  static constexpr ChunkLimits kHopper{.head_dim = hopper::kMostPrefillHeadDim,
                                       .sinks = true,
                                       .route_groups = hopper::kMostRouteGroups,
                                       .latent_row = kMostLatentRow,
                                       .refuse_latent_prompt = hopper::refuse_prefill_latent_prompt,
                                       .widened = true,
                                       .scratch_rows = hopper::prefill_linear_scratch_rows};
  static constexpr ChunkLimits kCdna{
      .head_dim = cdna::kMostPrefillHeadDim,
      .sinks = true,
      .route_groups = cdna::kMoeGroups,
      .latent_row = kMostLatentRow,
      .widened = true,
      .whole_columns = true,
      .scratch_rows = [](bool, bool, DType, int64_t) -> int64_t { return 0; }};
  WEFT_CHECK(arch != Arch::cpu);
  return arch == Arch::hopper ? kHopper : kCdna;
}

const ChunkKernels* chunk_kernels(Arch arch) {
  if constexpr (built::kCuda) {
    static constexpr ChunkKernels kHopper{
        WEFT_CHUNK_KERNELS(hopper),
        .latent_prompt = hopper::prefill_latent_prompt,
        .latent_prompt_workspace = hopper::prefill_latent_prompt_workspace,
        .gated_linear_soon = hopper::prefill_gated_linear_soon,
        .norms_heads = hopper::norms_heads,
        .normed_rope_append = hopper::prefill_normed_rope_append,
        .tiled = {.linear_bytes = hopper::tiles_bytes,
                  .gated_bytes = hopper::tiles_bytes,
                  .make_linear = hopper::make_tiles,
                  .make_gated = hopper::make_tiles,
                  .takes_linear = hopper::takes_tiles,
                  .takes_gated = hopper::takes_tiles,
                  .gated = hopper::tiled_gated_linear}};
    if (arch == Arch::hopper) {
      return &kHopper;
    }
  }
  if constexpr (built::kCdna) {
    static constexpr ChunkKernels kCdna{WEFT_CHUNK_KERNELS(cdna),
                                        .step_workspace = cdna::step_attention_workspace};
    if (arch == Arch::cdna) {
      return &kCdna;
    }
  }
  return nullptr;
}

}  // namespace weft
