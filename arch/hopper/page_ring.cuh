// A ring of pages in shared memory between one loader, which keeps bulk copies in flight, and the
// warps of a team, which all read every page. The loader runs ahead of the arithmetic through
// every wait of the program: that is what hides the waits.
#pragma once

#include "arch/hopper/resident.cuh"

namespace weft::hopper {

struct PageRing {
  char* pages;      ///< shared, 128-byte aligned: slots pages of equal size
  uint64_t* full;   ///< [slots]: the copy has landed
  uint64_t* empty;  ///< [slots]: every warp has read it
  int slots;

  /// By one thread, before the team and the loader begin.
  __device__ void init() const {
    for (int i = 0; i < slots; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], Team::kWarps);
    }
    mbarrier_init_fence();
  }
};

/// A place in the ring: the loader has one, each warp has one.
struct PageCursor {
  int slot = 0;
  uint32_t phase = 0;

  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// Waits for a phase that is sure to come: nothing but copies and this CTA's own warps bring it.
/// Were it not to, the kernel traps.
__device__ inline void wait_page(uint64_t* barrier, uint32_t parity) {
  constexpr uint32_t kMostTries = 1u << 26;
  for (uint32_t tries = 0; !mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries == kMostTries) {
      __trap();
    }
  }
}

}  // namespace weft::hopper
