// The threads that bring what the team reads from shared memory: codes and pages of weights.
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "engine/hopper/decode/worker.cuh"

namespace weft::hopper {

/// By one thread: brings the codes of the launch's steps, one at a time: it is far ahead.
template <class W>
__device__ __forceinline__ void fetch_codes(const W& worker) {
  auto& shared = worker.shared();
  const int count = worker.launch().steps * shared.code_count;
  for (int i = 0; i < count; ++i) {
    const int slot = i % kCodeSlots;
    const uint32_t phase = static_cast<uint32_t>(i / kCodeSlots) & 1;
    while (!shared.code_done[slot].try_wait(phase ^ 1)) {
      if (worker.team_ended()) {
        return;
      }
    }
    Barrier& there = shared.code_there[slot];
    there.arrive_expect(sizeof(Code));
    load_bytes(&shared.codes[slot], &worker.in_memory(i % shared.code_count), sizeof(Code), there);
    while (!there.try_wait(phase)) {
    }
  }
}

// How a code's weights lie in the stream: where two forms are all there are, a flag is enough.
__device__ inline bool form_of(const CodePages& pages) { return pages.compressed != 0; }
__device__ inline StreamForm form_of(const AnyCodePages& pages) {
  return static_cast<StreamForm>(pages.weights);
}
__device__ inline int slice_bytes(bool compressed) {
  return compressed ? kCompressedSliceBytes : kPlainSliceBytes;
}
__device__ inline int slice_bytes(StreamForm form) { return weight_slice_bytes(form); }
__device__ inline uint32_t bytes_of_page(bool compressed) {
  return static_cast<uint32_t>(kPageSlices * slice_bytes(compressed));
}
__device__ inline uint32_t bytes_of_page(StreamForm form) {
  return static_cast<uint32_t>(page_bytes(form));
}

/// By the loader's warp: the pages of a product of drawn experts, when they are known: slice by
/// slice, as they are dealt to the team's warps. `code` in memory; `draw`: of the launch, the
/// product's. False: it is time to leave.
template <class W, class Late>
__device__ __forceinline__ bool load_drawn(const W& worker, const Code& code, uint32_t draw,
                                           SliceFeed& feed, uint64_t policy, const Late& late) {
  constexpr int kAtOnce = 4;  // pages: nothing is slowed by them, all wait for these weights
  const int lane = W::team().lane;
  // Before the draw is awaited: memory is far.
  const ProductCode& product = code.product;
  const bool flat = product.flat != 0;
  int units = code.units;
  const int k = product.k;
  const int slices = slices_of(k);  // of a unit
  const int first_slot = product.first_slot;
  const int slots = product.slots;
  const int all_experts = product.experts;
  const int fold = W::kBatch == 1 ? product.fold : 0;
  // Slices of a unit's slot, and of an expert; the first one among all slots'.
  const bool gated = code.opcode == Opcode::gated_linear;
  const bool of_union = W::kBatch > 1;  // second products are a slot's k after the other's
  // Of the expert that every token has, after the slots of a unit, and after all experts.
  const int shared = !W::kLatents || gated || of_union ? 0 : slices_of(product.shared.elements);
  const int of_slot = gated || of_union ? slices : small_quotient(slices - shared, slots);
  const int of_expert = flat    ? slices * expert_units(product)
                        : gated ? small_quotient(slices * units, slots)
                                : of_slot * (units - 1) + (of_slot >> fold);
  int first = flat ? product.first / (kUnitColumns / 2) * slices : 0;
  const StreamForm form = form_of(code);
  const int in_page = page_slices(form);
  const auto bytes = static_cast<uint32_t>(slice_bytes(form));
  const char* stream = worker.launch().streams[flat ? 0 : worker.index()] +
                       static_cast<int64_t>(product.stream) * (flat ? kSharedGrain : 16);
  const volatile Drawn<W::kBatch>& drawn = worker.drawn();
  const auto await_draw = [&] {
    const auto there = [&] {
      if constexpr (W::kBatch == 1) {
        // The team does not draw again before it has this product's pages, of which there are some:
        // the phase is this draw's, or the next one's has begun.
        return worker.drawn().known.try_wait(draw & 1);
      } else {
        return static_cast<int>(drawn.draws - draw) > 0;
      }
    };
    while (!__any_sync(~0u, there())) {
      if (__any_sync(~0u, late())) {
        return false;
      }
    }
    __threadfence_block();
    return true;
  };
  int experts = 1;  // of a union
  if constexpr (W::kBatch > 1) {
    if (!await_draw()) {
      return false;
    }
    const UnitShare share = share_of(worker, code);
    first = share.first * slices;
    units = share.count;
    experts = drawn.count;
  }
  // Of a slice: its expert's slot, and which it is among the expert's.
  const auto find = [&](int slice, int& slot, int& of_its) {
    if (of_union && !gated) {
      const int unit_of_slot = small_quotient(slice, slices);
      const int unit = small_quotient(unit_of_slot, experts);
      slot = unit_of_slot - unit * experts;
      of_its = unit * slices + slice - unit_of_slot * slices;
    } else if (gated) {
      slot = small_quotient(first + slice, of_expert);
      of_its = first + slice - slot * of_expert;
    } else {
      const int unit = small_quotient(slice, slices);
      const int in_unit = slice - unit * slices;
      const int each = of_slot >> (unit + 1 == units ? fold : 0);
      slot = small_quotient(in_unit, each);
      int of_unit = of_slot;
      if (W::kLatents && slot >= slots) {
        slot = slots;
        of_unit = shared;
      }
      of_its = unit * of_unit + in_unit - slot * each;
    }
  };
  // A lane a slice: where each lies takes one thread longer than the memory takes to bring it.
  const int shift = 31 - __clz(in_page);
  const int of_page = lane & (in_page - 1);
#pragma unroll 1
  for (int block = 0; block < units; block += kBlockUnits) {
    const SliceRuns runs = block_runs(k, units, fold, block, of_union);
    const int even = runs.each * runs.grain * kTeamWarps;  // places of slices that all warps have
    const int pitch = runs.tail_pages(shift) << shift;
    const int places = of_union ? even + pitch * runs.grain : runs.slices();
#pragma unroll 1
    for (int base = 0; base < places; base += 32) {
      const int count = min(32, places - base);
      const int place = base + min(lane, count - 1);
      int warp = place % kTeamWarps;
      int of_run = place / kTeamWarps;
      int in_its_page = min(in_page, count - (lane - of_page));
      bool there = true;
      if (of_union && place >= even) {
        const int of_tail = small_quotient(place - even, pitch);
        warp = place - even - of_tail * pitch;
        of_run = even / kTeamWarps + of_tail;
        in_its_page = min(in_page, runs.more - (warp - of_page));
        there = warp < runs.more;
      }
      int slot;
      int of_its;
      find(block * slices + runs.first(there ? warp : 0) + of_run, slot, of_its);
      SliceFeed::Part part;
      part.bytes = there ? bytes : 0;
      part.place = of_page * bytes;
      part.page_bytes = in_its_page * bytes;
      // All else is known, and room found, when one sequence's draw comes.
      const auto know = [&] {
        if (W::kBatch == 1 && block == 0 && base == 0 && !await_draw()) {
          return false;
        }
        const bool is_drawn = !W::kLatents || gated || of_union || slot < slots;
        const int64_t expert = is_drawn ? drawn.id[first_slot + slot] : all_experts;
        part.from = stream + (expert * of_expert + of_its) * bytes;
        return true;
      };
      if (!feed.put(count, shift, kAtOnce, part, policy, late, know)) {
        return false;
      }
    }
  }
  return true;
}

/// Bytes of a code's weights; of a head none in a step whose tokens are forced.
template <class W>
__device__ __forceinline__ uint32_t bytes_of(const W& worker, const typename W::Pages& code,
                                             int step) {
  return code.head != 0 && worker.forced(step)
             ? 0
             : code.slices * static_cast<uint32_t>(slice_bytes(form_of(code)));
}
template <class W>
__device__ __forceinline__ const char* stream_of(const W& worker, const typename W::Pages& code) {
  return worker.launch().streams[worker.index()] + static_cast<int64_t>(code.stream) * 16;
}
template <class W>
__device__ __forceinline__ FlightLimits flight_limits(const W& worker) {
  const Launch& launch = worker.launch();
  return {launch.pages_in_flight, launch.throttled_pages_in_flight, launch.starved_slots};
}

/// By a warp, of a worker with experts: puts the pages of the launch's steps into the ring in the
/// order in which they are used.
template <class W>
__device__ __forceinline__ void load_slices(const W& worker) {
  constexpr int kAtOnce = 2;  // pages: more would slow what the SMs tell one another
  auto& shared = worker.shared();
  const uint64_t policy = evict_first();
  SliceFeed feed(worker.ring(), flight_limits(worker));
  const auto late = [&] { return worker.team_ended(); };
  const uint32_t lane = static_cast<uint32_t>(W::team().lane);
  bool goes_on = true;
  uint32_t draw = ~0u;  // the last one
  for (int step = 0; step < worker.launch().steps && goes_on; ++step) {
    for (int i = 0; i < shared.code_count && goes_on; ++i) {
      const auto code = worker.code_pages(i);
      if (code.weights == AnyCodePages::kDraws) {
        if (code.slices == 0) {
          ++draw;
        } else {
          goes_on = load_drawn(worker, worker.in_memory(i), draw, feed, policy, late);
        }
        continue;
      }
      const uint32_t page = bytes_of_page(form_of(code));
      uint32_t left = bytes_of(worker, code, step);
      const char* from = stream_of(worker, code);
      // A lane a page.
#pragma unroll 1
      while (left > 0 && goes_on) {
        const uint32_t bytes = min(left, 32 * page);
        const uint32_t before = min(lane * page, bytes);
        const uint32_t own = min(page, bytes - before);
        goes_on = feed.put(static_cast<int>((bytes - 1) / page) + 1, 0, kAtOnce,
                           {from + before, own, 0, own}, policy, late, [] { return true; });
        from += bytes;
        left -= bytes;
      }
    }
  }
  feed.land_all();
}

/// By a thread of each loader: the same, this loader every second page.
template <class W>
__device__ __forceinline__ void load_pages(const W& worker, int loader) {
  auto& shared = worker.shared();
  const uint64_t policy = evict_first();
  PageFeed<kLoaders> feed(worker.ring(), flight_limits(worker), loader, shared.put);
  const auto late = [&] { return worker.team_ended(); };
  int& fed = shared.fed[loader];
  bool goes_on = true;
  bool own = loader == 0;  // the next page is this loader's
  for (int step = 0; step < worker.launch().steps && goes_on; ++step) {
    for (fed = 0; fed < shared.code_count && goes_on; ++fed) {
      const auto code = worker.code_pages(fed);
      const auto form = form_of(code);
      uint32_t left = bytes_of(worker, code, step);
      const char* from = stream_of(worker, code);
#pragma unroll 1
      while (left > 0 && goes_on) {
        const uint32_t bytes = min(left, bytes_of_page(form));
        if (own) {
          goes_on = feed.put(from, bytes, policy, late);
        }
        own = !own;
        from += bytes;
        left -= bytes;
      }
    }
  }
  feed.land_all();
}

}  // namespace weft::hopper
