// What the resident kernel on Hopper is launched with.
#pragma once

#include <cstdint>

#include "engine/resident/code.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

using namespace resident;  // NOLINT(google-build-using-namespace): codes are the same everywhere

/// Threads that take turns at bringing pages: one alone brings one every 900 cycles or so. Where
/// there are experts one warp is all.
inline constexpr int kLoaders = 2;
inline constexpr int kMostPages = 16;  ///< in the ring
inline constexpr int kMostLayerNorm = 6144;
inline constexpr int kMostExperts = 512;  ///< of a layer
inline constexpr int kMostChosen = 64;    ///< of them
/// By each of several sequences.
inline constexpr int kMostChosenOfSeveral = 16;
inline constexpr int kMostGroups = 32;  ///< of experts, a lane each
inline constexpr int kLatentRank = 512;
inline constexpr int kLatentTurned = 64;
inline constexpr int kLatentHeads = 8;       ///< that a code of attention over them has at most
inline constexpr int kMostSharedRow = 4096;  ///< elements that join a row of slots
inline constexpr int kMostSlotSlices = 64;   ///< of the slots' row that a product takes at once

/// What attention over latent rows works in.
struct LatentScratch {
  static constexpr int kRow = kLatentRank + kLatentTurned;
  static constexpr int kKeys = 64;  ///< at once
  /// Pads, so that lanes of different heads meet different banks.
  static constexpr int kScorePitch = kKeys + 8;
  static constexpr int kQueryPitch = kRow / 4 + 1;

  struct alignas(16) Operand {
    uint32_t word[4];
  };
  Operand queries[kLatentHeads][kQueryPitch];  ///< an mma's operand A for four elements each
  alignas(16) uint16_t own[kRow];              ///< the step's own row, in bf16
  /// Of halves of the elements, for two turns.
  alignas(16) float scores[2][2][kLatentHeads][kScorePitch];
};

/// How the weights of a product's code lie in the stream.
constexpr StreamForm form_of(const Code& code) {
  return static_cast<StreamForm>(code.product.weights);
}

/// Units that an expert has of a flat product.
constexpr int expert_units(const ProductCode& product) {
  return units_of(product.segment[0].stride, kUnitColumns / 2);
}

struct Launch : resident::Launch {
  int32_t scratch_bytes = 0;    ///< shared memory for rows and attention
  int32_t pages = 0;            ///< in the ring
  int32_t page_bytes = 0;       ///< from a page to the next
  int32_t pages_in_flight = 0;  ///< of a loader, while `starved_slots` are free (FlightLimits)
  int32_t throttled_pages_in_flight = 0;  ///< otherwise
  int32_t starved_slots = 0;              ///< 0: always as if they were
  bool latents = false;                   ///< attention is over latent rows
};

}  // namespace weft::hopper
