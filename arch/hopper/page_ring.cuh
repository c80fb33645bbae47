// A ring of pages in shared memory between loaders, which keep bulk copies in flight, and the warps
// of a team, of which one or several read a page. The loaders run ahead of the arithmetic
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
  int page_bytes;  ///< from a slot to the next

  /// By one thread, before the team and the loaders begin.
  __device__ void init(int readers) const {
    for (int i = 0; i < slots; ++i) {
      full[i].init(1);
      empty[i].init(readers);
    }
    fence_barriers();
  }
};

/// A place in the ring: each warp has one, a loader two.
struct PageCursor {
  int slot = 0;
  uint32_t phase = 0;

  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  /// By at most a whole ring.
  __device__ void jump(int pages, int slots) {
    slot += pages;
    const bool around = slot >= slots;
    slot -= around ? slots : 0;
    phase ^= around ? 1 : 0;
  }
  __device__ void advance(int pages, int slots) {
    slot += pages;
    while (slot >= slots) {
      slot -= slots;
      phase ^= 1;
    }
  }
};

/// How many pages may be on their way at once. Many while much of the ring is empty, and the
/// team starved of weights. Few otherwise: what streams in slows what the SMs tell one another.
struct FlightLimits {
  int starved;        ///< of a loader, while at least `starved_slots` slots are free
  int throttled;      ///< otherwise
  int starved_slots;  ///< at most as many as there are; 0: always starved
};

/// A loader's end of the ring, of one thread. kLoaders take turns at the pages. What it needs stays
/// in registers.
template <int kLoaders>
class PageFeed {
 public:
  /// `put`: [kLoaders], zeros, in shared memory: pages that each has put into the ring.
  __device__ PageFeed(const PageRing& ring, const FlightLimits& limits, int loader,
                      const uint32_t* put)
      : pages_(smem_address(ring.pages)),
        full_(smem_address(ring.full)),
        to_empty_(smem_address(ring.empty) - smem_address(ring.full)),
        slots_(ring.slots),
        page_bytes_(ring.page_bytes),
        limits_(limits),
        next_{loader, 0},
        oldest_{loader, 0},
        own_put_(smem_address(put + loader)),
        before_put_(smem_address(put + (loader + kLoaders - 1) % kLoaders)),
        ahead_(loader == 0 ? 0 : 1) {}

  /// Fills this loader's next slot, when it is empty, with `bytes` from `from`, after the loader
  /// before it has filled its own: what a reader has seen arrive tells how far all are. False:
  /// late() said to stop.
  template <class Late>
  __device__ bool put(const char* from, uint32_t bytes, uint64_t policy, Late late) {
    if (!make_room(bytes, late)) {
      return false;
    }
    load_bytes(page(next_.slot), from, bytes, full(next_.slot), policy);
    advance();
    return true;
  }
  /// The same of a page of `count` slices of `bytes` each, that may lie apart, by a whole warp
  /// whose lane 0 has the feed: lane first + i has slice i's place.
  template <class Late>
  __device__ bool put_slices(int lane, int first, int count, const char* from, uint32_t bytes,
                             uint64_t policy, Late late) {
    const bool room = lane == 0 && make_room(count * bytes, late);
    if (!__shfl_sync(~0u, room, 0)) {
      return false;
    }
    const int slot = __shfl_sync(~0u, next_.slot, 0);
    const int slice = lane - first;
    if (slice >= 0 && slice < count) {
      load_bytes(static_cast<char*>(page(slot)) + slice * bytes, from, bytes, full(slot), policy);
    }
    __syncwarp();
    if (lane == 0) {
      advance();
    }
    return true;
  }
  /// Until nothing is on its way: a CTA may not end before.
  __device__ void land_all() {
    while (flying_ > 0) {
      land();
    }
  }

 private:
  /// Waits until the next page may be put, and announces its bytes.
  template <class Late>
  __device__ __forceinline__ bool make_room(uint32_t bytes, const Late& late) {
    // A barrier that nobody has used yet has ended phase 1: the first round waits for nothing.
    while (!empty(next_.slot).try_wait(next_.phase ^ 1)) {
      if (late()) {
        return false;
      }
    }
    int most = limits_.starved;
    if (limits_.starved_slots > 0) {
      int last = next_.slot + limits_.starved_slots - 1;  // slots become free in order
      uint32_t phase = next_.phase ^ 1;
      if (last >= slots_) {
        last -= slots_;
        phase ^= 1;
      }
      most = empty(last).test(phase) ? limits_.starved : limits_.throttled;
    }
    while (flying_ >= most) {
      land();
    }
    while (load_shared_word(before_put_) < count_ + ahead_) {
      if (late()) {
        return false;
      }
    }
    full(next_.slot).arrive_expect(bytes);
    return true;
  }
  /// The page is on its way.
  __device__ __forceinline__ void advance() {
    store_shared_word(own_put_, ++count_);
    next_.advance(kLoaders, slots_);
    ++flying_;
  }
  __device__ void* page(int slot) const {
    return __cvta_shared_to_generic(pages_ + slot * page_bytes_);
  }
  __device__ Barrier& full(int slot) const { return barrier(full_ + slot * sizeof(Barrier)); }
  __device__ static Barrier& barrier(uint32_t address) {
    return *static_cast<Barrier*>(__cvta_shared_to_generic(address));
  }
  __device__ Barrier& empty(int slot) const {
    return barrier(full_ + to_empty_ + slot * sizeof(Barrier));
  }
  __device__ void land() {
    while (!full(oldest_.slot).try_wait(oldest_.phase)) {
    }
    oldest_.advance(kLoaders, slots_);
    --flying_;
  }

  const uint32_t pages_, full_, to_empty_;
  const int slots_;
  const int page_bytes_;
  const FlightLimits limits_;
  PageCursor next_;    // to fill
  PageCursor oldest_;  // of those on their way
  const uint32_t own_put_, before_put_;
  const uint32_t ahead_;  // pages that the loader before this one puts before this one's first
  uint32_t count_ = 0;
  int flying_ = 0;
};

}  // namespace weft::hopper
