// A ring of pages in shared memory between one loader, which keeps bulk copies in flight, and the
// warps of a team, of which one or several read a page. The loader runs ahead of the arithmetic
// through every wait of the program: that is what hides the waits.
#pragma once

#include "arch/hopper/copy.cuh"
#include "arch/hopper/resident.cuh"

namespace weft::hopper {

struct PageRing {
  char* pages;     ///< shared, 128-byte aligned: slots pages of equal size
  Barrier* full;   ///< [slots]: the copy has landed
  Barrier* empty;  ///< [slots]: its readers are done
  int slots;

  /// By one thread, before the team and the loader begin.
  __device__ void init(int readers) const {
    for (int i = 0; i < slots; ++i) {
      full[i].init(1);
      empty[i].init(readers);
    }
    fence_barriers();
  }
};

/// A place in the ring: each warp has one, the loader two.
struct PageCursor {
  int slot = 0;
  uint32_t phase = 0;

  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ void advance(int pages, int slots) {
    slot += pages;
    while (slot >= slots) {
      slot -= slots;
      phase ^= 1;
    }
  }
};

/// How many pages may be on their way at once. Many while much of the ring is empty: then the team
/// waits for weights. Few otherwise: what streams in slows what the SMs tell one another.
struct FlightLimits {
  int hungry;        ///< while at least `hungry_slots` slots are free; fewer than there are slots
  int calm;          ///< otherwise
  int hungry_slots;  ///< at most as many as there are
};

/// The loader's end of the ring, of one thread. It must bring a page every 800 cycles or so, all
/// its waits included: what it needs stays in registers.
template <int kPageBytes>
class PageFeed {
 public:
  __device__ PageFeed(const PageRing& ring, const FlightLimits& limits)
      : pages_(smem_address(ring.pages)),
        full_(smem_address(ring.full)),
        to_empty_(smem_address(ring.empty) - smem_address(ring.full)),
        slots_(ring.slots),
        limits_(limits) {}

  /// Fills the next slot, when it is empty, with `bytes` from `from`; false: late() said to stop.
  template <class Late>
  __device__ bool put(const char* from, uint32_t bytes, uint64_t policy, Late late) {
    // A barrier that nobody has used yet has ended phase 1: the first round waits for nothing.
    while (!empty(next_.slot).try_wait(next_.phase ^ 1)) {
      if (late()) {
        return false;
      }
    }
    int last = next_.slot + limits_.hungry_slots - 1;  // slots become free in order
    uint32_t phase = next_.phase ^ 1;
    if (last >= slots_) {
      last -= slots_;
      phase ^= 1;
    }
    const int most = empty(last).test(phase) ? limits_.hungry : limits_.calm;
    while (flying_ >= most) {
      land();
    }
    Barrier& full = barrier(full_ + next_.slot * sizeof(Barrier));
    full.arrive_expect(bytes);
    load_bytes(__cvta_shared_to_generic(pages_ + next_.slot * kPageBytes), from, bytes, full,
               policy);
    next_.advance(slots_);
    ++flying_;
    return true;
  }
  /// Until nothing is on its way: a CTA may not end before.
  __device__ void land_all() {
    while (flying_ > 0) {
      land();
    }
  }

 private:
  __device__ static Barrier& barrier(uint32_t address) {
    return *static_cast<Barrier*>(__cvta_shared_to_generic(address));
  }
  __device__ Barrier& empty(int slot) const {
    return barrier(full_ + to_empty_ + slot * sizeof(Barrier));
  }
  __device__ void land() {
    while (!barrier(full_ + oldest_.slot * sizeof(Barrier)).try_wait(oldest_.phase)) {
    }
    oldest_.advance(slots_);
    --flying_;
  }

  const uint32_t pages_, full_, to_empty_;
  const int slots_;
  const FlightLimits limits_;
  PageCursor next_;    // to fill
  PageCursor oldest_;  // of those on their way
  int flying_ = 0;
};

}  // namespace weft::hopper
