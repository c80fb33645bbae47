// Barriers: mbarriers in shared memory, which count arrivals and bytes; clusters; registers per
// warpgroup. PTX ISA 8.5, sections "Parallel Synchronization and Communication Instructions:
// mbarrier", "barrier.cluster", "Miscellaneous Instructions: setmaxnreg".
#pragma once

#include <cstdint>

namespace weft::hopper {

/// The 32-bit address of something in shared memory. In the shared::cluster window it names this
/// block's own copy.
__device__ inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
/// The address of the same thing in block `rank` of the cluster (mapa).
__device__ inline uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

/// Waits that cannot end are a bug; better a trap than a GPU that hangs. Each try waits in hardware
/// for about a microsecond or more, so this is seconds.
inline constexpr uint32_t kMostTries = 1u << 22;
/// A function of its own: ptxas gives a kernel that ends in several places no more registers than
/// it had at its start, whatever setmaxnreg says.
__device__ __noinline__ inline void give_up() { __trap(); }

/// An mbarrier in shared memory. A phase ends when all arrivals have come and as many bytes as were
/// expected; waiting for a parity waits until the phase of that parity has ended, so that waiting
/// for parity 1 on a fresh barrier passes.
class Barrier {
 public:
  /// By one thread; then fence_barriers() and a barrier of all who use it.
  __device__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(smem_address(this))
                 : "memory");
  }
  /// Arrives when `read` is there, whose loads from shared memory this thread's warp has asked for.
  /// A plain arrival is asked for after them, but does not wait for them: where other loads hold
  /// them up it comes first, and the copy engine overwrites what they were to read. Its address
  /// depends on them instead, by blockIdx.z, which is 0 in one-dimensional grids, as the compiler
  /// cannot know.
  __device__ void arrive_after(uint32_t read) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(smem_address(this) +
                                                                              (read & blockIdx.z))
                 : "memory");
  }
  /// As so many arrivals at once.
  __device__ void arrive(uint32_t arrivals) {
    asm volatile(
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(this)),
        "r"(arrivals)
        : "memory");
  }
  /// Arrives at this barrier of block `rank` of the cluster. Not as a release at cluster scope,
  /// which would fence all of memory: what was read from a slot is ordered by the products' own
  /// wait.
  __device__ void arrive_at(uint32_t rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                     cluster_address(smem_address(this), rank))
                 : "memory");
  }
  /// Arrives, and lets the phase wait for so many bytes of copies.
  __device__ void arrive_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                     smem_address(this)),
                 "r"(bytes)
                 : "memory");
  }
  /// Arrives when this thread's earlier copy_async_4() have landed; counted as an arrival.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(this))
                 : "memory");
  }
  /// Whether the phase of this parity has ended; may wait for it a while. Acquires at the block's
  /// scope: at the cluster's it would empty the L1 cache each time.
  __device__ bool try_wait(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(smem_address(this)), "r"(parity)
        : "memory");
    return done != 0;
  }
  /// The same, without waiting at all.
  __device__ bool test(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(smem_address(this)), "r"(parity)
        : "memory");
    return done != 0;
  }
  __device__ void wait(uint32_t parity) {
    for (uint32_t tries = 0; !try_wait(parity); ++tries) {
      if (tries == kMostTries) {
        give_up();
      }
    }
  }

 private:
  uint64_t state_;
};

/// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
/// A barrier of all threads of the cluster's blocks.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// The halves of such a barrier, without ordering memory before it, which would wait for all that
/// is under way.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline void cluster_sync_relaxed() {
  cluster_arrive();
  cluster_wait();
}

/// Moves registers between warpgroups: all four warps of one raise, or lower, theirs to kCount.
template <int kCount>
__device__ void raise_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256,
                "setmaxnreg takes multiples of 8");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void lower_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256,
                "setmaxnreg takes multiples of 8");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// True in one thread of a converged warp, the same each time (elect.sync).
__device__ inline bool elect_one() {
  uint32_t chosen;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(chosen));
  return chosen != 0;
}

/// A barrier among `threads` threads (whole warps) of the block; `id` 1 to 15.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at such a barrier without waiting.
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// A place in a ring of kSlots slots and the parity of its turn.
template <int kSlots>
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace weft::hopper
