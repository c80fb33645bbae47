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
  __device__ void advance(int pages, int slots) {
    slot += pages;
    while (slot >= slots) {
      slot -= slots;
      phase ^= 1;
    }
  }
};

}  // namespace weft::hopper
