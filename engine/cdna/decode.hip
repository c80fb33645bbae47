// The resident kernel on CDNA: a workgroup on each compute unit follows its list of codes
// (engine/resident/code.h), many steps in one launch. Activations are exchanged as words of two
// values and a tag, loaded and stored at device scope; whoever reads waits for the words
// themselves. Keys and values are stored at device scope, too, and read as data in later steps:
// what is published between two steps says that they have arrived.
#define WEFT_MADE_HERE  // see arch/cdna/gpu.hip.h
#include "engine/cdna/decode/product.hip.h"
#include "engine/cdna/decode/sample.hip.h"

using namespace weft::cdna;

namespace {

WEFT_GPU Global<uint32_t> counter(const Worker& worker, int event) {
  return (Global<uint32_t>)reinterpret_cast<uintptr_t>(worker.arguments->counters) +
         static_cast<int64_t>(event) * weft::resident::kCounterStride;
}

/// By the team: the code's events.
WEFT_GPU void await_events(const Worker& worker, CodeRef code) {
  const auto event_signals = constant(worker.arguments->event_signals);
  if (wave_index() == 0) {
    for (int i = 0; i < Head(code).waits(); ++i) {
      const int wait = code.wait[i];
      const int event = wait & ~weft::resident::kPreviousStep;
      const auto steps = static_cast<uint32_t>(
          worker.step + ((wait & weft::resident::kPreviousStep) != 0 ? 0 : 1));
      const uint32_t wanted = steps * event_signals[event];
      const auto at = (Global<const uint32_t>)counter(worker, event);
      worker.await(code.operation, event, [&] { return load_shared_word<uint32_t>(at) >= wanted; });
    }
  }
  barrier();
  acquire();
}
/// By the team, after its stores: the code's events.
WEFT_GPU void signal_events(const Worker& worker, CodeRef code) {
  await_stores();
  barrier();
  if (thread_index() == 0) {
    for (int i = 0; i < Head(code).signals(); ++i) {
      __hip_atomic_fetch_add(counter(worker, code.signal[i]), 1U, __ATOMIC_RELAXED,
                             __HIP_MEMORY_SCOPE_AGENT);
    }
  }
}

/// What is published of the next token stands for the head's events.
WEFT_GPU bool eventless(const Worker& worker, CodeRef code) {
  return Head(code).head() && all_publish(worker, worker.step);
}
/// Whether this worker tells the host of tokens.
WEFT_GPU bool reports() { return workgroup_index() == 0; }

/// By the team: a code's work. `best`: of this thread's logits. False: the sequence has ended.
WEFT_GPU bool run(const Worker& worker, CodeRef code, Stream& stream, Candidate& best) {
  const bool skipped = Head(code).head() && worker.forced(worker.step);
  switch (Head(code).opcode()) {
    case Opcode::begin_step: {
      const bool goes_on = await_tokens(worker);
      if (reports() && worker.step > worker.arguments->forced_steps && thread_index() == 0) {
        report_tokens(worker);
      }
      if (!goes_on) {
        return false;
      }
      rope_angles(worker, code);
      break;
    }
    case Opcode::embed:
      embed(worker, code);
      break;
    case Opcode::norm_add:
      for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
        norm_add(worker.made_here(), *made_here(&code), sequence);
      }
      break;
    case Opcode::linear:
    case Opcode::gated_linear:
      barrier();  // LDS is free
      make_rows(worker, code, RowPart(code, 0));
      if (skipped) {
        // Where the head is not wanted its row is waited for all the same: the step is not over
        // before, and others would write the next one's.
        for (int part = 1; part < ProductHead(code).parts(); ++part) {
          make_rows(worker, code, RowPart(code, part));
        }
      } else {
        barrier();
        best = multiply_rows(worker.made_here(), *made_here(&code), stream);
      }
      break;
    case Opcode::attention:
      if constexpr (kLatents) {
        attend_latents(worker, code);
      } else {
        attend(worker, code);
      }
      break;
    case Opcode::combine:
      combine(worker.made_here(), *made_here(&code));
      break;
    case Opcode::route:
      if constexpr (kExperts) {
        if (route(worker, code) == DrawOf::experts) {
          stream.take_drawn(worker.made_here());
        }
      }
      break;
    case Opcode::sample:
      if (!all_publish(worker, worker.step)) {
        barrier();  // LDS is free
        sample(worker, code);
      }
      break;
  }
  return true;
}

}  // namespace

#if !defined(WEFT_DECODE)
#define WEFT_DECODE decode
#endif
extern "C" __global__ __launch_bounds__(kTeamThreads, 2) void WEFT_DECODE(DecodeLaunch) {
  Worker worker = Worker{}.made_here();
  Stream stream(worker);
  while (worker.step < worker.arguments->steps) {
    worker = worker.made_here();
    Candidate best;
    auto next = constant(worker.arguments->codes) +
                constant(worker.arguments->code_begin)[workgroup_index()];
    bool more = true;
    while (more) {
      next = made_here(next);
      worker = worker.made_here();
      if (Head(*next).waits() != 0 && !eventless(worker, *next)) {
        await_events(worker, *next);
      }
      if (!run(worker.made_here(), *made_here(next), stream, best)) {
        return;
      }
      worker = worker.made_here();
      next = made_here(next);
      if (Head(*next).signals() != 0 && !eventless(worker, *next)) {
        signal_events(worker, *next);
      }
      more = !Head(*next).ends_step();
      ++next;
    }
    worker = worker.made_here();
    if (all_publish(worker, worker.step)) {
      best = kSeveral ? wave_best(best) : team_best(best);
      await_stores();
      barrier();
      if (kSeveral ? lane_index() == 0 && wave_index() < worker.sequences() : thread_index() == 0) {
        publish(worker, kSeveral ? wave_index() : 0, best);
      }
    }
    ++worker.step;
  }
  worker = worker.made_here();
  if (reports() && worker.arguments->steps > worker.arguments->forced_steps) {
    await_tokens(worker);
    if (thread_index() == 0) {
      report_tokens(worker);
    }
  }
}
