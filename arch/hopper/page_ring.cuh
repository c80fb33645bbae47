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

/// A place in the ring: each reader has one, a loader one or two.
struct PageCursor {
  int slot = 0;
  uint32_t phase = 0;

  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ void retreat(int slots) {
    phase ^= slot == 0 ? 1 : 0;
    slot = (slot == 0 ? slots : slot) - 1;
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

/// A ring as its loaders see it, kept in registers.
class LoadersRing {
 public:
  __device__ LoadersRing(const PageRing& ring, const FlightLimits& limits)
      : pages_(smem_address(ring.pages)),
        full_(smem_address(ring.full)),
        to_empty_(smem_address(ring.empty) - smem_address(ring.full)),
        slots_(ring.slots),
        page_bytes_(ring.page_bytes),
        limits_(limits) {}

 protected:
  __device__ char* page(int slot) const {
    return static_cast<char*>(__cvta_shared_to_generic(pages_ + slot * page_bytes_));
  }
  __device__ Barrier& full(int slot) const { return barrier(full_ + slot * sizeof(Barrier)); }
  __device__ Barrier& empty(int slot) const {
    return barrier(full_ + to_empty_ + slot * sizeof(Barrier));
  }

  const uint32_t pages_, full_, to_empty_;
  const int slots_;
  const int page_bytes_;
  const FlightLimits limits_;

 private:
  __device__ static Barrier& barrier(uint32_t address) {
    return *static_cast<Barrier*>(__cvta_shared_to_generic(address));
  }
};

/// A loader's end of the ring, of one thread. kLoaders take turns at the pages. What it needs stays
/// in registers.
template <int kLoaders>
class PageFeed : LoadersRing {
 public:
  /// `put`: [kLoaders], zeros, in shared memory: pages that each has put into the ring.
  __device__ PageFeed(const PageRing& ring, const FlightLimits& limits, int loader,
                      const uint32_t* put)
      : LoadersRing(ring, limits),
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
  __device__ void land() {
    while (!full(oldest_.slot).try_wait(oldest_.phase)) {
    }
    oldest_.advance(kLoaders, slots_);
    --flying_;
  }

  PageCursor next_;    // to fill
  PageCursor oldest_;  // of those on their way
  const uint32_t own_put_, before_put_;
  const uint32_t ahead_;  // pages that the loader before this one puts before this one's first
  uint32_t count_ = 0;
  int flying_ = 0;
};

/// The one loader's end of a ring, of a whole warp, for pages that are made of slices from wherever
/// they lie. A look at the barriers takes a warp as long as six copies (265 ns, and 40 a copy, on
/// an H100), so it looks after several pages at once, some lanes for each.
class SliceFeed : LoadersRing {
 public:
  __device__ SliceFeed(const PageRing& ring, const FlightLimits& limits)
      : LoadersRing(ring, limits) {}

  /// What a lane brings.
  struct Part {
    const char* from;
    uint32_t bytes;       ///< may be 0
    uint32_t place;       ///< in its page
    uint32_t page_bytes;  ///< of all parts of its page
  };
  /// Fills the next slots, as they become empty: of the first `lanes` lanes, each 1 << shift that
  /// follow one another are of one page. `at_once`: pages that are put together where there is room
  /// for them, at most as many as there are slots. `know`: called once when the first have room,
  /// completes `part`, which it may wait for. False: late() or know() said to stop.
  template <class Late, class Know>
  __device__ __forceinline__ bool put(int lanes, int shift, int at_once, const Part& part,
                                      uint64_t policy, const Late& late, const Know& know) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    int done = 0;  // lanes
    while (done < lanes) {
      if (!await_room(late)) {
        return false;
      }
      const int ahead = (lane - done) >> shift;  // pages
      PageCursor its = next_;
      its.jump(min(max(ahead, 0), at_once), slots_);
      const bool ready = ahead <= 0 || (ahead < at_once && may_put(its));
      const uint32_t waiting = ~__ballot_sync(~0u, ready && lane < lanes);
      int end = waiting == 0 ? 32 : __ffs(waiting) - 1;
      end = end < lanes ? end >> shift << shift : end;  // whole pages
      if (done == 0 && !know()) {
        return false;
      }
      if (lane >= done && lane < end) {
        if ((lane & ((1 << shift) - 1)) == 0) {
          full(its.slot).arrive_expect(part.page_bytes);
        }
        // Bytes may be counted before they are expected: the phase lasts until the arrival.
        if (part.bytes != 0) {
          load_bytes(page(its.slot) + part.place, part.from, part.bytes, full(its.slot), policy);
        }
      }
      __syncwarp();
      next_.jump((end - done + (1 << shift) - 1) >> shift, slots_);
      done = end;
    }
    return true;
  }
  /// Until nothing is on its way: a CTA may not end before.
  __device__ void land_all() const {
    PageCursor last = next_;
    for (int i = 0; i < slots_; ++i) {
      last.retreat(slots_);
      while (!full(last.slot).try_wait(last.phase)) {
      }
    }
  }

 private:
  /// The last page that must have landed before this one is put, so that few enough are on their
  /// way.
  __device__ __forceinline__ PageCursor landed_before(PageCursor put) const {
    int most = limits_.starved;
    if (limits_.starved_slots > 0) {
      PageCursor last = put;  // slots become free in order
      last.jump(limits_.starved_slots - 1, slots_);
      most = empty(last.slot).test(last.phase ^ 1) ? limits_.starved : limits_.throttled;
    }
    put.slot -= most;
    const bool around = put.slot < 0;
    put.slot += around ? slots_ : 0;
    put.phase ^= around ? 1 : 0;
    return put;
  }
  /// Waits until the next page may be put. A barrier that nobody has used yet has ended phase 1:
  /// the first round waits for nothing.
  template <class Late>
  __device__ __forceinline__ bool await_room(const Late& late) const {
    const auto ended = [&](Barrier& barrier, uint32_t phase) {
      while (!__any_sync(~0u, barrier.try_wait(phase))) {
        if (__any_sync(~0u, late())) {
          return false;
        }
      }
      return true;
    };
    if (!ended(empty(next_.slot), next_.phase ^ 1)) {
      return false;
    }
    const PageCursor landed = landed_before(next_);
    return ended(full(landed.slot), landed.phase);
  }
  /// Whether another may be. What lanes see of pages beyond one that may not means nothing.
  __device__ __forceinline__ bool may_put(const PageCursor& put) const {
    const PageCursor landed = landed_before(put);
    return empty(put.slot).test(put.phase ^ 1) && full(landed.slot).test(landed.phase);
  }

  PageCursor next_;  // to fill
};

}  // namespace weft::hopper
