// A worker's shared memory in the resident kernel: what every part of it sees.
#pragma once

#include <type_traits>

#include "engine/hopper/launch.h"
#include "ops/linear/hopper.cuh"
#include "ops/sample/hopper.cuh"

namespace weft::hopper {

constexpr int kThreads = Team::kThreads + 128;  // registers are moved between groups of four warps
constexpr int kMostHeadDim = 256;
constexpr int kCodeSlots = 4;  // codes in shared memory at once

/// What the loader needs of a code.
struct CodePages {
  uint32_t stream;  ///< see ProductCode, likewise the others
  uint32_t slices : 30;
  uint32_t head : 1;
  uint32_t compressed : 1;
};
/// The same where weights may have any form (W::kGeneral), or are of experts.
struct AnyCodePages {
  uint32_t stream;
  uint32_t slices : 29;
  uint32_t head : 1;
  uint32_t weights : 2;  ///< StreamForm; or kDraws: a product of drawn experts, or, with no slices,
                         ///< their draw

  static constexpr uint32_t kDraws = 3;
};
static_assert(sizeof(CodePages) == sizeof(AnyCodePages));

constexpr int kMostRanked = Team::kThreads;  // experts that are drawn by their ranks

/// What a worker has drawn of a layer's experts: see RouteCode.
struct DrawnExperts {
  alignas(16) uint32_t keys[kMostRanked];  ///< of experts: see draw_key()
  float logits[kMostRanked];
  static constexpr uint32_t kArrivals = kMostChosen;
  Barrier known;                   ///< a phase a draw: the experts' numbers are there
  uint32_t of_warp[Team::kWarps];  ///< experts that the threads of a warp have drawn
  int32_t id[kMostChosen];
  float weight[kMostChosen];  ///< f32, by slot
  float shared_weight;        ///< of the expert that every token has
};

/// What several sequences have drawn of a layer's experts, and all experts that any of them has.
template <int kBatch>
struct DrawnUnion {
  static constexpr int kMost = kBatch * kMostChosenOfSeveral;

  uint32_t draws;                               ///< of the launch so far: the loader waits for them
  int32_t count;                                ///< of `id`
  int32_t id[kMost];                            ///< ascending
  float weight[kBatch][kMostChosenOfSeveral];   ///< f32, by a sequence's slot
  uint16_t own[kBatch][kMostChosenOfSeveral];   ///< likewise, the expert
  uint8_t place[kBatch][kMostChosenOfSeveral];  ///< likewise, where `id` has it
  int8_t slot[kMost][kBatch];                   ///< that an expert has of a sequence; -1: none
  float shared_weight[kBatch];                  ///< see DrawnExperts
  /// A bit for each expert: in word i those that are a lane's i-th (draw_experts()).
  uint32_t wanted[kBatch][kMostExperts / 32];
  uint32_t wanted_by_any[kMostExperts / 32];
  /// Of a block's columns of first products: gate's and up's, bf16.
  uint32_t biases[kBlockUnits * (kUnitColumns / 2)];
};
template <int kBatch>
using Drawn = std::conditional_t<kBatch == 1, DrawnExperts, DrawnUnion<kBatch>>;

/// A normed row of several sequences that lies where products take it, with its squares.
struct NormedRow {
  Place row = kNowhere;  ///< that was normed
  Place norm = kNowhere;
  uint32_t tag = 0;
  bool f16 = false;  ///< as MXFP4 takes it; otherwise in bf16
};

/// What lies at the beginning of shared memory, all of fixed size.
template <int kBatch>
struct Shared {
  Code codes[kCodeSlots];
  Barrier code_there[kCodeSlots];
  Barrier code_done[kCodeSlots];
  ProductState products[Team::kWarps];
  int code_count;                   ///< in a step
  int code[Team::kWarps];           ///< the one that the warp runs, of all steps
  int step[Team::kWarps];           ///< the one that the warp is in
  int fed[kLoaders];                ///< of a step: the one whose pages a loader brings
  int32_t token[kBatch];            ///< of each sequence, that the step begins with
  uint32_t sequence_ended[kBatch];  ///< 1: it draws no more
  Barrier token_there;              ///< all sequences' are
  Barrier token_reported;           ///< and the host knows of them
  uint32_t stop_requests;           ///< Launch::stop, as the publisher last saw it
  uint32_t reports;                 ///< the worker samples, and reports tokens to the host
  int codes_before_head;            ///< of a step: until all is written but logits
  uint32_t embeds;                  ///< it looks up a token's embedding
  uint32_t put[kLoaders];           ///< pages that a loader has put into the ring
  alignas(16) float sums[kBlockSums<kBatch>];
  /// Of rows that are normed: one sequence's by thread, several sequences' by warp.
  alignas(16) float squares[kBatch][kBatch == 1 ? Team::kThreads : Team::kWarps];
  NormedRow normed_row[Team::kWarps];  ///< the last, as each warp knows; where there are experts
  float factor;                        ///< of one sequence's norm
  float scratch[2 * Team::kWarps];
  Candidate best[Team::kWarps];
  Candidate best_of_all[kBatch];  ///< of the worker's columns, for each sequence
  Barrier best_there;
  Barrier full[kMostPages];
  Barrier empty[kMostPages];
  uint32_t gave_up;     ///< somebody waited too long, here or elsewhere
  uint32_t leave;       ///< what thread 0 saw of gave_up between two steps: all act on the same
  uint32_t team_ended;  ///< the team has left: the others follow
  Launch launch;
};

/// What follows, in this order; all of it at places that only depend on the launch.
template <int kBatch>
struct Layout {
  int32_t code_pages, signals, angles, scratch, pages, drawn, total;

  __host__ __device__ explicit Layout(const Launch& launch) {
    code_pages = aligned(static_cast<int32_t>(sizeof(Shared<kBatch>)));
    signals = code_pages + aligned(launch.most_codes * static_cast<int32_t>(sizeof(CodePages)));
    angles = signals + aligned(2 * static_cast<int32_t>(launch.events));
    scratch = angles + aligned(kBatch * launch.shape.ropes * launch.shape.rope_half *
                               static_cast<int32_t>(sizeof(float2)));
    pages =
        scratch + aligned(max(launch.scratch_bytes, static_cast<int32_t>(sizeof(SampleScratch))));
    drawn = pages + launch.pages * launch.page_bytes;
    total = drawn + (launch.shape.experts || launch.latents
                         ? aligned(static_cast<int32_t>(sizeof(Drawn<kBatch>)))
                         : 0);
  }
  static constexpr int32_t aligned(int32_t bytes) {
    constexpr int32_t kAlign = 128;
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }
};

extern __shared__ __align__(1024) char memory[];

}  // namespace weft::hopper
