// Between two steps: who publishes what of the next token, and how every worker comes to know it.
#pragma once

#include "engine/cdna/decode/worker.hip.h"

namespace weft::cdna {

using resident::Draw;

/// Whether all workers publish which of their logits are the best, and each takes the best of all
/// for the step's next token: nobody samples.
WEFT_GPU bool all_publish(const Worker& worker, int step) {
  const auto& sampling = worker.arguments->sampling;
  return !worker.forced(step) && sampling.temperature == 0 && sampling.repetition_penalty == 1;
}

/// A Draw is two words that are each written and read whole.
WEFT_GPU Global<uint64_t> draws_of(const Worker& worker, uint32_t number) {
  return (Global<uint64_t>)(reinterpret_cast<uintptr_t>(worker.arguments->draws) +
                            static_cast<uintptr_t>(number & 1) * worker.arguments->workers *
                                sizeof(Draw));
}
/// By one thread, when what the worker wrote in the step has arrived: what is known here of the
/// next token, to all workers.
WEFT_GPU void publish(const Worker& worker, const Candidate& best) {
  const uint32_t number = worker.arguments->first_draw + static_cast<uint32_t>(worker.step);
  const bool reports = workgroup_index() == 0;
  const bool stop =
      reports && load_shared_word<uint32_t>((Global<const uint32_t>)reinterpret_cast<uintptr_t>(
                     worker.arguments->stop)) != 0;
  const uint32_t token = static_cast<uint32_t>(best.id) | (stop ? Draw::kStop : 0);
  const auto to = draws_of(worker, number) + 2 * workgroup_index();
  store_shared_word<uint64_t>(
      to, __builtin_bit_cast(uint32_t, best.logit) | static_cast<uint64_t>(number) << 32);
  store_shared_word<uint64_t>(to + 1, token | static_cast<uint64_t>(number) << 32);
}

/// The best of the team's, in each thread; when there is something for it to be the best of.
WEFT_GPU Candidate team_best(Candidate best) {
#pragma unroll
  for (int distance = 1; distance < kWaveLanes; distance *= 2) {
    best.offer(across(best.logit, distance), across(best.id, distance));
  }
  barrier();  // all have read what was there before
  if (lane_index() == 0) {
    shared.best_logit[wave_index()] = best.logit;
    shared.best_id[wave_index()] = best.id;
  }
  barrier();
  best = {};
#pragma unroll
  for (int wave = 0; wave < kTeamWaves; ++wave) {
    best.offer(shared.best_logit[wave], shared.best_id[wave]);
  }
  return best;
}

/// By the team, when worker.step steps have been run: the token that the last of them drew, to LDS.
/// Whatever all have stored in these steps is seen from here on.
WEFT_GPU void await_token(const Worker& worker) {
  const auto& launch = *worker.arguments;
  const int drawn = worker.step - 1;  // the step that drew it
  Candidate best;
  bool stop = false;
  if (drawn >= 0) {
    const uint32_t number = launch.first_draw + static_cast<uint32_t>(drawn);
    const int count = all_publish(worker, drawn) ? launch.workers : 1;
    const auto from = draws_of(worker, number);
    for (int base = wave_index() * kWaveLanes; base < count; base += kTeamThreads) {
      const int i = __builtin_elementwise_min(base + lane_index(), count - 1);
      uint64_t words[2];
      worker.await(-1, -1, [&] {
        words[0] = load_shared_word<uint64_t>(from + 2 * i);
        words[1] = load_shared_word<uint64_t>(from + 2 * i + 1);
        // A later number: who has nothing to do has been left behind.
        return static_cast<int32_t>(static_cast<uint32_t>(words[0] >> 32) - number) >= 0 &&
               static_cast<int32_t>(static_cast<uint32_t>(words[1] >> 32) - number) >= 0;
      });
      const auto token = static_cast<uint32_t>(words[1]);
      stop = stop || any_lane((token & Draw::kStop) != 0);
      best.offer(__builtin_bit_cast(float, static_cast<uint32_t>(words[0])),
                 static_cast<int32_t>(token & ~Draw::kStop));
    }
  }
  if (lane_index() == 0) {
    shared.stop[wave_index()] = stop ? 1 : 0;
  }
  best = team_best(best);
  acquire();
  if (thread_index() == 0) {
    int32_t token = best.id == Candidate::kNone ? 0 : best.id;  // nobody's: time to give up
    bool ended = worker.told_to_leave();
    if (drawn < 0 || worker.forced(drawn)) {
      token =
          ((Global<const int32_t>)reinterpret_cast<uintptr_t>(launch.tokens))[worker.position()];
    } else {
      for (int i = 0; i < launch.eos_count; ++i) {
        ended = ended || launch.eos[i] == token;
      }
    }
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      ended = ended || shared.stop[wave] != 0;
    }
    shared.token = token;
    shared.ended = ended ? 1 : 0;
  }
  barrier();
}

/// By one thread of the worker that tells the host: the token that the step before drew.
WEFT_GPU void report_token(const Worker& worker) {
  const auto& launch = *worker.arguments;
  const int count = worker.step - 1 - launch.forced_steps;  // tokens before this one
  ((Global<int32_t>)reinterpret_cast<uintptr_t>(launch.tokens))[worker.position()] = shared.token;
  const auto mailbox = (Global<resident::Mailbox>)reinterpret_cast<uintptr_t>(launch.mailbox);
  __hip_atomic_store(&mailbox->token[count], shared.token, __ATOMIC_RELAXED,
                     __HIP_MEMORY_SCOPE_SYSTEM);
  await_stores();
  __hip_atomic_store(&mailbox->tokens[0], static_cast<uint32_t>(count) + 1, __ATOMIC_RELAXED,
                     __HIP_MEMORY_SCOPE_SYSTEM);
}

}  // namespace weft::cdna
