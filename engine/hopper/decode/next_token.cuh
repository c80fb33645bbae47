// Between two steps: who publishes what of the next token, and how every worker comes to know it.
#pragma once

#include "engine/hopper/decode/worker.cuh"

namespace weft::hopper {

/// Whether all workers publish which of their logits are the best, and each takes the best of all
/// for the step's next token: nobody samples.
template <class W>
__device__ bool all_publish(const W& worker, int step) {
  const SamplingOptions& sampling = worker.launch().sampling;
  return !worker.forced(step) && sampling.temperature == 0 && sampling.repetition_penalty == 1;
}
/// Whether a code's events are needless: what is published of the next token stands for them.
template <class W>
__device__ bool eventless(const W& worker, const Code& code) {
  return code.head != 0 && all_publish(worker, worker.step());
}

template <class W>
__device__ Draw* draws(const W& worker, int sequence, uint32_t number) {
  return worker.launch().draws +
         (static_cast<int>(number & 1) * worker.sequences() + sequence) * worker.launch().workers;
}
/// By one thread, which has fenced what the worker wrote in the step: what is known here of a
/// sequence's next token, to all workers.
template <class W>
__device__ void publish(const W& worker, int step, int sequence, const Candidate& best) {
  static_assert(Draw::kNoToken == static_cast<uint32_t>(Candidate::kNone));
  const uint32_t number = worker.launch().first_draw + static_cast<uint32_t>(step);
  const bool stop =
      (load_shared_word(smem_address(&worker.shared().stop_requests)) >> sequence & 1) != 0;
  store_words(draws(worker, sequence, number) + worker.index(),
              {__float_as_uint(best.logit), number,
               static_cast<uint32_t>(best.id) | (stop ? Draw::kStop : 0), number});
}

/// By a warp: waits for what is published of a sequence's next token after a step, and takes the
/// best. `stop`: somebody wants the sequence ended.
template <class W>
__device__ __forceinline__ Candidate await_draws(const W& worker, int sequence, int step,
                                                 bool& stop) {
  constexpr int kAtOnce = 5;  // of a lane: those of all SMs
  auto late = worker.late();
  const uint32_t number = worker.launch().first_draw + static_cast<uint32_t>(step);
  const bool all = all_publish(worker, step);
  const int count = all ? worker.launch().workers : 1;
  const Draw* from =
      draws(worker, sequence, number) + (all ? 0 : sequence % worker.launch().workers);
  Candidate best;
  stop = false;
#pragma unroll 1
  for (int base = worker.team().lane; base < count; base += 32 * kAtOnce) {
    uint4 words[kAtOnce] = {};
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + 32 * i < count) {
          words[i] = load_words(from + base + 32 * i);
          // A later number: who has nothing to do has been left behind.
          there = there && static_cast<int>(words[i].y - number) >= 0 &&
                  static_cast<int>(words[i].w - number) >= 0;
        }
      }
    } while (!there && !late());
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool here = base + 32 * i < count && words[i].w == number;
      const uint32_t token = words[i].z & ~Draw::kStop;
      stop = stop || (here && (words[i].z & Draw::kStop) != 0);
      if (here && token != Draw::kNoToken) {
        best.offer(__uint_as_float(words[i].x), static_cast<int32_t>(token));
      }
    }
  }
  __syncwarp();
  stop = __any_sync(~0u, stop);
  return warp_best(best);
}

/// By a warp: the token that a sequence's step begins with, to shared memory.
template <class W>
__device__ __forceinline__ void await_token(const W& worker, int sequence) {
  auto& shared = worker.shared();
  const int drawn = worker.step() - 1;  // the step that drew it
  bool stop = false;
  Candidate best;
  if (drawn >= 0) {
    best = await_draws(worker, sequence, drawn, stop);
  }
  if (worker.team().lane == 0) {
    int32_t token = best.id == Candidate::kNone ? 0 : best.id;  // nobody's: time to give up
    if (drawn < 0 || worker.forced(drawn)) {
      token = __ldcg(worker.tokens_of(sequence) + worker.position_of(sequence));
    } else {
      for (int i = 0; i < worker.launch().eos_count; ++i) {
        stop = stop || worker.launch().eos[i] == token;
      }
    }
    const bool reports = shared.reports != 0 && drawn >= 0;
    if (reports) {
      auto late = worker.late();
      while (!shared.token_reported.try_wait(static_cast<uint32_t>(worker.step()) & 1) && !late()) {
      }
    }
    shared.token[sequence] = token;
    shared.sequence_ended[sequence] |= stop ? 1 : 0;
    if (reports) {
      shared.token_there.arrive();
    }
  }
  __syncwarp();
}

/// By the team, when step() steps have been run: the tokens that the last of them drew. False: it
/// is time to leave, in every thread.
template <class W>
__device__ __forceinline__ bool await_tokens(const W& worker) {
  auto& shared = worker.shared();
  worker.team().sync();  // all have read what was there before
  const int sequence = worker.team().warp;
  if (sequence < worker.sequences()) {
    await_token(worker, sequence);
  }
  if (worker.team().thread == 0) {
    shared.leave = worker.gave_up() ? 1 : 0;
  }
  worker.team().sync();
  bool all_ended = true;
  for (int s = 0; s < worker.sequences(); ++s) {
    all_ended = all_ended && shared.sequence_ended[s] != 0;
  }
  const bool leaves = all_ended || shared.leave != 0;
  if (leaves && worker.team().thread == 0) {
    shared.team_ended = 1;
  }
  return !leaves;
}

/// Draws a sequence's next token from its logits, unless it is forced, and publishes it.
template <class W>
__device__ __forceinline__ void sample(const W& worker, const SampleCode& code) {
  if (all_publish(worker, worker.step())) {
    return;
  }
  const Launch& launch = worker.launch();
  const int row = code.sequence;
  Candidate drawn;
  if (!worker.forced(worker.step())) {
    SamplingOptions options = launch.sampling;
    if (options.temperature == 0) {  // greedy with a penalty: the best of what it leaves
      options.temperature = 1;
      options.top_k = 1;
      options.top_p = 1;
      options.min_p = 0;
    }
    uint32_t* seen = launch.seen + row * ((code.vocabulary + 31) / 32);
    float* logits = at<float>(worker, code.logits) + static_cast<int64_t>(row) * code.vocabulary;
    drawn.id =
        sample_row(worker.team(), logits, code.vocabulary, options, seen,
                   __ldg(launch.uniforms + row * launch.steps + worker.step()),
                   static_cast<uint2*>(launch.kept) + static_cast<int64_t>(row) * code.vocabulary,
                   *reinterpret_cast<SampleScratch*>(worker.scratch()));
    if (worker.team().thread == 0) {
      seen[drawn.id / 32] |= 1u << (drawn.id % 32);
    }
  }
  if (worker.team().thread == 0) {
    fence_gpu();
    publish(worker, worker.step(), row, drawn);
  }
}

}  // namespace weft::hopper
