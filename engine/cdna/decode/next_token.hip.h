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
WEFT_GPU Global<uint64_t> draws_of(const Worker& worker, int sequence, uint32_t number) {
  const int row = static_cast<int>(number & 1) * worker.sequences() + sequence;
  return (Global<uint64_t>)(reinterpret_cast<uintptr_t>(worker.arguments->draws) +
                            static_cast<uintptr_t>(row) * worker.arguments->workers * sizeof(Draw));
}
/// By one thread, when what the worker wrote in the step has arrived: what is known here of a
/// sequence's next token, to all workers.
WEFT_GPU void publish(const Worker& worker, int sequence, const Candidate& best) {
  const uint32_t number = worker.arguments->first_draw + static_cast<uint32_t>(worker.step);
  // One of those who publish knows what the host wants.
  const bool asks = !all_publish(worker, worker.step) || workgroup_index() == 0;
  const bool stop =
      asks && (load_shared_word<uint32_t>(
                   (Global<const uint32_t>)reinterpret_cast<uintptr_t>(worker.arguments->stop)) >>
                   sequence &
               1) != 0;
  const uint32_t token = static_cast<uint32_t>(best.id) | (stop ? Draw::kStop : 0);
  const auto to = draws_of(worker, sequence, number) + 2 * workgroup_index();
  store_shared_word<uint64_t>(
      to, __builtin_bit_cast(uint32_t, best.logit) | static_cast<uint64_t>(number) << 32);
  store_shared_word<uint64_t>(to + 1, token | static_cast<uint64_t>(number) << 32);
}

/// The best of the wave's, in each lane.
WEFT_GPU Candidate wave_best(Candidate best) {
#pragma unroll
  for (int distance = 1; distance < kWaveLanes; distance *= 2) {
    best.offer(across(best.logit, distance), across(best.id, distance));
  }
  return best;
}
/// The best of the team's, in each thread; when there is something for it to be the best of.
WEFT_GPU Candidate team_best(Candidate best) {
  best = wave_best(best);
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

/// What is published of the token that a step drew, looked at by waves `wave` .. of `waves`.
WEFT_GPU Candidate await_draws(const Worker& worker, int sequence, int drawn, int wave, int waves,
                               bool& stop) {
  const auto& launch = *worker.arguments;
  const uint32_t number = launch.first_draw + static_cast<uint32_t>(drawn);
  const bool all = all_publish(worker, drawn);
  const int count = all ? launch.workers : 1;
  auto from = draws_of(worker, sequence, number);
  if (kSeveral && !all) {
    from += 2 * (sequence % launch.workers);  // who samples it
  }
  Candidate best;
  for (int base = wave * kWaveLanes; base < count; base += waves * kWaveLanes) {
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
  return best;
}
/// By one thread: the token that a sequence's step begins with, to LDS.
WEFT_GPU void take_token(const Worker& worker, int sequence, const Candidate& best, bool stop) {
  const auto& launch = *worker.arguments;
  const int drawn = worker.step - 1;
  int32_t token = best.id == Candidate::kNone ? 0 : best.id;  // nobody's: time to give up
  if (drawn < 0 || worker.forced(drawn)) {
    token = ((Global<const int32_t>)worker.tokens(sequence))[worker.position(sequence)];
  } else {
    for (int i = 0; i < launch.eos_count; ++i) {
      stop = stop || launch.eos[i] == token;
    }
  }
  shared.token[sequence] = token;
  shared.ended[sequence] =
      drawn < 0 ? launch.ended >> sequence & 1 : shared.ended[sequence] | (stop ? 1 : 0);
}

/// By the team, when worker.step steps have been run: the tokens that the last of them drew, to
/// LDS. Whatever all have stored in these steps is seen from here on. False: it is time to leave.
WEFT_GPU bool await_tokens(const Worker& worker) {
  const int drawn = worker.step - 1;  // the step that drew them
  Candidate best;
  bool stop = false;
  if constexpr (kSeveral) {  // a wave a sequence
    const int sequence = wave_index();
    if (sequence < worker.sequences() && drawn >= 0) {
      best = wave_best(await_draws(worker, sequence, drawn, 0, 1, stop));
    }
    acquire();
    barrier();  // all have read what was there before
    if (sequence < worker.sequences() && lane_index() == 0) {
      take_token(worker, sequence, best, stop);
    }
  } else {
    if (drawn >= 0) {
      best = await_draws(worker, 0, drawn, wave_index(), kTeamWaves, stop);
    }
    if (lane_index() == 0) {
      shared.stop[wave_index()] = stop ? 1 : 0;
    }
    best = team_best(best);
    acquire();
    if (thread_index() == 0) {
      for (int wave = 0; wave < kTeamWaves; ++wave) {
        stop = stop || shared.stop[wave] != 0;
      }
      take_token(worker, 0, best, stop);
    }
  }
  if (thread_index() == 0) {
    shared.leave = worker.told_to_leave() ? 1 : 0;
  }
  barrier();
  bool all_ended = true;
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    all_ended = all_ended && shared.ended[sequence] != 0;
  }
  return !all_ended && shared.leave == 0;
}

/// By one thread of the worker that tells the host: the tokens that the step before drew.
WEFT_GPU void report_tokens(const Worker& worker) {
  const auto& launch = *worker.arguments;
  const int count = worker.step - 1 - launch.forced_steps;  // tokens before these
  const auto mailbox = (Global<resident::Mailbox>)reinterpret_cast<uintptr_t>(launch.mailbox);
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    const int position = launch.position[sequence] + worker.step;
    if (!kSeveral || (position >= 0 && position <= launch.shape.capacity)) {
      worker.tokens(sequence)[position] = shared.token[sequence];
    }
    __hip_atomic_store(&mailbox->token[sequence * launch.steps + count], shared.token[sequence],
                       __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  await_stores();
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    __hip_atomic_store(&mailbox->tokens[sequence], static_cast<uint32_t>(count) + 1,
                       __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
}

}  // namespace weft::cdna
