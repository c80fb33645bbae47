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

/// A place in the ring: each warp has one.
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

/// The loader's end of the ring, of one thread. It must bring a page every 800 cycles or so, all
/// its waits included: what it needs stays in registers, and the barriers' own phases count its
/// pages.
template <int kPageBytes>
class PageFeed {
 public:
  /// `in_flight`: most pages that are on their way at once, fewer than there are slots.
  __device__ PageFeed(const PageRing& ring, int in_flight)
      : pages_(made_here(smem_address(ring.pages))),
        full_(made_here(smem_address(ring.full))),
        to_empty_(made_here(smem_address(ring.empty) - smem_address(ring.full))),
        slots_(made_here(ring.slots)),
        in_flight_(made_here(in_flight)),
        oldest_(slots_ - in_flight_) {}

  /// Fills the next slot, when it is empty, with `bytes` from `from`; false: late() said to stop.
  template <class Late>
  __device__ bool put(const char* from, uint32_t bytes, uint64_t policy, Late late) {
    // A barrier that nobody has used yet has ended phase 1: the first round waits for nothing.
    while (!barrier(full_ + to_empty_ + slot_ * sizeof(Barrier)).try_wait(phase_ ^ 1)) {
      if (late()) {
        return false;
      }
    }
    land();
    Barrier& full = barrier(full_ + slot_ * sizeof(Barrier));
    full.arrive_expect(bytes);
    load_bytes(__cvta_shared_to_generic(pages_ + slot_ * kPageBytes), from, bytes, full, policy);
    next(slot_, phase_);
    return true;
  }
  /// Until nothing is on its way: a CTA may not end before.
  __device__ void land_all() {
    for (int i = 0; i < in_flight_; ++i) {
      land();
    }
  }

 private:
  __device__ static Barrier& barrier(uint32_t address) {
    return *static_cast<Barrier*>(__cvta_shared_to_generic(address));
  }
  __device__ void next(int& slot, uint32_t& phase) const {
    if (++slot == slots_) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ void land() {
    while (!barrier(full_ + oldest_ * sizeof(Barrier)).try_wait(oldest_phase_)) {
    }
    next(oldest_, oldest_phase_);
  }

  uint32_t pages_, full_, to_empty_;
  int slots_, in_flight_;
  int slot_ = 0;
  uint32_t phase_ = 0;
  int oldest_;  // the slot that was filled in_flight_ pages ago
  uint32_t oldest_phase_ = 1;
};

}  // namespace weft::hopper
