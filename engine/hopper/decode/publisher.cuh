// The thread that publishes what the team need not wait for.
#pragma once

#include "engine/hopper/decode/next_token.cuh"

namespace weft::hopper {

/// Tells the host of the tokens of the sequences that the worker samples, of those that have not
/// ended (`ended`: a bit each).
template <class W>
__device__ __forceinline__ void report_tokens(const W& worker, int step, uint32_t& ended) {
  const Launch& launch = worker.launch();
#pragma unroll 1
  for (int s = worker.index(); s < worker.sequences() && !worker.forced(step);
       s += launch.workers) {
    const auto token =
        static_cast<int32_t>(load_shared_word(smem_address(&worker.shared().token[s])));
    worker.tokens_of(s)[worker.position_at(step, s) + 1] = token;
    if ((ended >> s & 1) == 0) {  // otherwise it is idle
      ended |= load_shared_word(smem_address(&worker.shared().sequence_ended[s])) << s;
      const int count = step - launch.forced_steps;  // tokens before this one
      Mailbox* mailbox = launch.mailbox;
      *static_cast<volatile int32_t*>(&mailbox->token[s * launch.steps + count]) = token;
      store_release_system(&mailbox->tokens[s], static_cast<uint32_t>(count) + 1);
    }
  }
}

/// By one thread: publishes what the worker's best logits are, and reports the tokens that it
/// samples. Before the head's products are done, what the team has written until then is fenced,
/// which takes as long as an exchange.
template <class W>
__device__ __forceinline__ void publish_tokens(const W& worker) {
  const Launch& launch = worker.launch();
  auto& shared = worker.shared();
  // Whether a barrier's phase has ended, before the team has.
  const auto await = [&](Barrier& barrier, uint32_t phase) {
    while (!barrier.try_wait(phase & 1)) {
      if (worker.team_ended() && !barrier.test(phase & 1)) {
        return false;
      }
    }
    return true;
  };
  const bool has_head = shared.codes_before_head < shared.code_count;
  uint32_t ended = launch.ended;
  for (int step = 0; step < launch.steps; ++step) {
    // In every step: of a phase that is further off only the parity would be seen.
    const int last = step * shared.code_count + shared.codes_before_head - 1;
    if (last >= 0 &&
        !await(shared.code_done[last % kCodeSlots], static_cast<uint32_t>(last / kCodeSlots))) {
      return;
    }
    if (all_publish(worker, step)) {
      fence_gpu();
    }
    if (has_head && !worker.forced(step) &&
        !await(shared.best_there, static_cast<uint32_t>(step - launch.forced_steps))) {
      return;
    }
    for (int s = 0; s < worker.sequences() && all_publish(worker, step); ++s) {
      publish(worker, step, s, has_head ? shared.best_of_all[s] : Candidate{});
    }
    if (shared.reports == 0) {
      continue;
    }
    if (!await(shared.token_there, static_cast<uint32_t>(step))) {
      return;
    }
    report_tokens(worker, step, ended);
    store_shared_word(smem_address(&shared.stop_requests), load_system(launch.stop));
    shared.token_reported.arrive();
  }
}

}  // namespace weft::hopper
