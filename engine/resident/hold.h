// How often a runner's device holds the weights, and whether a resident kernel runs its steps.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "engine/resident/arena.h"

namespace weft::resident {

/// What a device has room for besides weights, caches and activations of steps: a prompt's
/// activations.
inline constexpr int64_t kBesideWeights = int64_t{1} << 30;

/// What the decision is made by.
struct HoldChoice {
  Hold first = Hold::twice;  ///< what is tried first
  bool fixed = false;        ///< is what the caller wishes, whatever there is room for
};

/// Decides. lay_out(hold) makes the arena; lower() lowers the steps for it, and says why if they
/// cannot be; launches(why) then says whether kernels of prompts can be launched for them, which
/// `refusal` tells the caller, or else the error; has_room() says whether the device has memory for
/// what was laid out and lowered.
template <class LayOut, class Lower, class Launches, class HasRoom>
Status decide_hold(const HoldChoice& choice, std::optional<Error>& refusal, const LayOut& lay_out,
                   const Lower& lower, const Launches& launches, const HasRoom& has_room) {
  lay_out(choice.first);
  if (const Status lowered = lower(); !lowered.ok()) {
    WEFT_TRY(launches(lowered.error()));
    refusal = lowered.error();
    lay_out(Hold::twice);  // which is once: nothing is packed
    return {};
  }
  if (choice.first == Hold::twice && !choice.fixed && !has_room()) {
    lay_out(Hold::once);
    return lower();
  }
  return {};
}

}  // namespace weft::resident
