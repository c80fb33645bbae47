// One CTA per SM walks its worker's codes, step after step. Eight warps form the team that
// computes; two threads beside them are loaders (where there are experts a warp is the loader):
// they walk the same codes, know every weight byte of the step in order, and keep the ring of pages
// full. They never wait for an activation, but for the draw of experts. Another thread fetches the
// codes, and one is the publisher, which tells other workers of the best logits and the host of
// tokens. What workers tell one another carries tags, so whoever needs it waits for the data
// itself; logits that are sampled and rows of several sequences that come as operands alone have
// events, counters in global memory: a wait polls them with acquire loads, a signal is a release
// addition after the team's stores. Every spin has an end: a worker that waits too long writes what
// it waited for and everybody leaves.
//
// Between two steps stands what workers publish of the next token (Draw): each waits for it, of all
// workers or of the one that samples, and takes the best for itself. Before a worker publishes it,
// it fences what it has written, and after it has read it, what it will read: rows of the KV cache
// have no tags.
#pragma once

#include "engine/hopper/decode/attention.cuh"
#include "engine/hopper/decode/experts.cuh"
#include "engine/hopper/decode/latent.cuh"
#include "engine/hopper/decode/loader.cuh"
#include "engine/hopper/decode/next_token.cuh"
#include "engine/hopper/decode/product.cuh"
#include "engine/hopper/decode/publisher.cuh"
#include "engine/hopper/decode/row.cuh"
#include "engine/hopper/decode/worker.cuh"

namespace weft::hopper {

/// Registers of a thread after they are moved. A raise waits until others of the CTA have given up
/// as many (PTX ISA, "setmaxnreg"): together no more than the CTA began with, or it waits for ever.
struct Registers {
  int team;
  int loaders;
};
template <bool kExperts>
constexpr Registers kRegisters = kExperts ? Registers{232, 40} : Registers{240, 24};
constexpr int kFirstRegisters = 65536 / kThreads / 8 * 8;  // of a thread, as ptxas gives them

template <class W>
__device__ __forceinline__ void attend_by_heads(const W& worker, const Code& code) {
  const ModelShape& shape = worker.launch().shape;
  if (W::kGeneral && code.attention.soft_cap > 0) {
    attend_to<0, false>(worker, code);
  } else if (shape.head_dim == 64 && shape.kv_f32) {
    attend_to<64, true>(worker, code);
  } else if (shape.head_dim == 64) {
    attend_to<64, false>(worker, code);
  } else if (shape.head_dim == 128 && !shape.kv_f32) {
    attend_to<128, false>(worker, code);
  } else {
    attend_to<0, false>(worker, code);
  }
}

template <class W>
__device__ __forceinline__ void attend(const W& worker, const Code& code) {
  if constexpr (W::kLatents) {
    LatentAttention<W>(worker, code).run();
  } else {
    attend_by_heads(worker, code);
  }
}

/// Runs a code that is not a product, with a view of its own that is made from the launch's copy in
/// shared memory: what it needs would otherwise stay in registers where the weights go by. False:
/// it is time to leave.
template <class W>
__device__ __forceinline__ bool run_apart(const Code* code) {
  W worker(W::shared().launch, 0);
  worker.begin_step();
  switch (code->opcode) {
    case Opcode::begin_step:
      rope_angles(worker, code->begin_step);
      if (!await_tokens(worker)) {
        return false;
      }
      if (worker.shared().embeds == 0) {
        fence_gpu();
      }
      break;
    case Opcode::embed:
      embed(worker, code->embed);
      fence_gpu();  // nobody waits for this
      break;
    case Opcode::norm_add:
      norm_add(worker, *code);
      break;
    case Opcode::attention:
      attend(worker, *code);
      break;
    case Opcode::combine:
      combine(worker, *code);
      break;
    case Opcode::sample:
      sample(worker, code->sample);
      break;
    case Opcode::route:
      if constexpr (W::kExperts) {
        if (W::kBatch > 1 || code->route.next_row != NextRow::none) {
          make_row_ahead(worker, code->route.next_row);
        }
        route(worker, *code);
      }
      break;
    case Opcode::linear:
    case Opcode::gated_linear:
      break;  // the caller's
  }
  if constexpr (W::kExperts && W::kBatch > 1) {
    if (code->opcode != Opcode::route && worker.team().lane == 0) {
      worker.shared().normed_row[worker.team().warp] = {};  // these work where it lay
    }
  }
  return true;
}

/// A code, from its waits to its signals. False: it is time to leave.
template <class W>
__device__ __forceinline__ bool run_code(W& worker, const Code& code, const CodeHead& todo) {
  worker.stamp(0);
  if (todo.waits != 0 && !eventless(worker, code)) {
    worker.wait(code);
  }
  worker.stamp(1);
  const bool skipped = todo.head != 0 && worker.forced(worker.step());
  if (todo.units > 0 && skipped) {
    await_row(worker, code);  // the step is not over before: others would write the next one's rows
  } else if (todo.units > 0) {
    product(worker, code);
  } else if (todo.opcode == Opcode::sample || !skipped) {
    if (!run_apart<W>(&code)) {
      return false;
    }
  }
  worker.stamp(2);
  return true;
}

/// By the team: all steps.
template <class W>
__device__ __forceinline__ void compute(W& worker) {
  auto& shared = worker.shared();
  while (worker.step() < worker.launch().steps) {
    worker.begin_step();
    bool more = shared.code_count > 0;
    for (int next = shared.code[worker.team().warp]; more; ++next) {
      const int slot = next & (kCodeSlots - 1);
      const Code& code = shared.codes[slot];
      worker.await_code(slot, static_cast<uint32_t>(next) / kCodeSlots & 1);
      // What there is to do, in one load: each of its own would take as long.
      if (!run_code(worker, code, worker.head_of(code))) {
        return;
      }
      const CodeHead done = worker.head_of(code);
      next =
          shared.code[worker.team().warp];  // again: kept, it would take a register from products
      if (done.signals != 0 && !eventless(worker, code)) {
        worker.signal(code);
      }
      worker.stamp(3);
      __syncwarp();
      if (worker.team().lane == 0) {
        shared.code_done[next & (kCodeSlots - 1)].arrive();
        shared.code[worker.team().warp] = next + 1;
      }
      more = done.ends_step == 0;
    }
    __syncwarp();  // all have read it
    if (worker.team().lane == 0) {
      ++shared.step[worker.team().warp];
    }
    __syncwarp();
  }
  if (shared.reports != 0 && !await_tokens(worker)) {
    return;
  }
  // The publisher must have seen the last code's end, to which each warp comes by itself, before it
  // learns that nothing more will.
  worker.team().sync();
  if (worker.team().thread == 0) {
    shared.team_ended = 1;
  }
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ Launch launch) {
  Worker<kTraced, kBatch, kGeneral, kExperts, kLatents> worker(launch);
  constexpr Registers kOwn = kRegisters<kExperts>;
  static_assert(kOwn.team * Team::kThreads + kOwn.loaders * (kThreads - Team::kThreads) <=
                kFirstRegisters * kThreads);
  if (threadIdx.x < Team::kThreads) {
    raise_registers<kOwn.team>();
    compute(worker);
  } else {
    lower_registers<kOwn.loaders>();
    static_assert(kLoaders == 2);
    const int thread = static_cast<int>(threadIdx.x) - Team::kThreads;
    if constexpr (kExperts) {
      if (thread < 32) {
        load_slices(worker);
      }
    } else if (thread == 0 || thread == 96) {
      load_pages(worker, thread == 0 ? 0 : 1);
    }
    if (thread == 32) {
      fetch_codes(worker);
    } else if (thread == 64) {
      publish_tokens(worker);
    }
  }
  // All end here: ptxas gives a kernel with several ends no more registers than it began with.
  __syncthreads();
}

struct Kernel {
  const void* function;
  int64_t (*shared_bytes)(const Launch& launch);
};
template <bool kTraced, int kBatch, bool kGeneral, bool kExperts = false, bool kLatents = false>
Kernel kernel() {
  return {
      reinterpret_cast<const void*>(&decode_kernel<kTraced, kBatch, kGeneral, kExperts, kLatents>),
      [](const Launch& launch) -> int64_t { return Layout<kBatch>(launch).total; }};
}
template <bool kTraced, bool kGeneral, bool kExperts = false, bool kLatents = false>
Kernel kernel(int batch) {
  static_assert(batch_of(kMostSequences) == 8);
  if constexpr (!kExperts) {  // whose one sequence is another file's
    if (batch == 1) {
      return kernel<kTraced, 1, kGeneral>();
    }
  }
  return batch <= 4 ? kernel<kTraced, 4, kGeneral, kExperts, kLatents>()
                    : kernel<kTraced, 8, kGeneral, kExperts, kLatents>();
}

/// In decode_general.cu.
Kernel general_kernel(int batch, bool traced);
/// In decode_experts.cu: of one sequence.
Kernel experts_kernel(bool general, bool traced);
/// In decode_experts_several.cu.
Kernel several_experts_kernel(int batch, bool general, bool traced);
/// In decode_latents.cu: of one sequence, with experts or without.
Kernel latents_kernel(bool general, bool traced);
/// In decode_latents_several.cu: likewise.
Kernel several_latents_kernel(int batch, bool general, bool traced);

}  // namespace weft::hopper
