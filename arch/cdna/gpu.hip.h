// The ground that AMD kernels stand on: qualifiers, types, and what a wave knows of itself. Kernels
// are compiled with no ROCm installed (cmake/Cdna.cmake), so the few names that its headers would
// give are here. Instruction names: CDNA3 and CDNA4 instruction set manuals.
#pragma once

#include "arch/cdna/target.h"
#include "base/divide.h"

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
/// Of a kernel: its workgroups have at most so many threads, and the compiler may spend registers
/// as if so many waves at least shared a SIMD.
#define __launch_bounds__(threads, waves) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
/// Of everything else: kernels have no calls.
#define WEFT_GPU static __device__ __attribute__((always_inline)) inline

namespace weft::cdna {

/// What this code is being compiled for.
#if defined(__gfx950__)
inline constexpr Target kTarget = Target::gfx950;
#else
inline constexpr Target kTarget = Target::gfx942;
#endif

/// kCount numbers in consecutive registers.
template <class T, int kCount>
using Vector = T __attribute__((ext_vector_type(kCount)));
using u32x2 = Vector<uint32_t, 2>;
using u32x3 = Vector<uint32_t, 3>;
using u32x4 = Vector<uint32_t, 4>;
using f32x4 = Vector<float, 4>;
using f32x8 = Vector<float, 8>;
/// bf16 and f16 as the compiler knows them: conversions round to nearest even, NaN stays NaN.
using bf16_t = __bf16;
using f16_t = _Float16;

// Where WEFT_MADE_HERE is defined, what follows from indices is worked out anew at each place: a
// kernel of many parts has no registers to keep what each of them might want.
WEFT_GPU int thread_index() {
  auto thread = static_cast<int>(__builtin_amdgcn_workitem_id_x());
#if defined(WEFT_MADE_HERE)
  asm volatile("" : "+v"(thread));
  __builtin_assume(thread >= 0 && thread < kMaxWorkgroupThreads);
#endif
  return thread;
}
WEFT_GPU int lane_index() { return thread_index() % kWaveLanes; }
/// The same for all lanes, and known to be so: what follows from it is computed once a wave.
WEFT_GPU int wave_index() { return __builtin_amdgcn_readfirstlane(thread_index() / kWaveLanes); }
WEFT_GPU int workgroup_index() {
  auto group = static_cast<int>(__builtin_amdgcn_workgroup_id_x());
#if defined(WEFT_MADE_HERE)
  asm volatile("" : "+s"(group));
  __builtin_assume(group >= 0);
#endif
  return group;
}

/// Waits for this wave's LDS accesses and then for the other waves of the workgroup; LDS that they
/// wrote before may be read after it. Says nothing of global memory.
WEFT_GPU void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

/// While it lives, this wave goes before others of its SIMD when both could issue.
class Priority {
 public:
  __device__ __attribute__((always_inline)) Priority() { __builtin_amdgcn_s_setprio(1); }
  __device__ __attribute__((always_inline)) ~Priority() { __builtin_amdgcn_s_setprio(0); }
};

/// T at an address `bytes` after a pointer.
template <class T>
WEFT_GPU T& at(void* base, int64_t bytes) {
  return *reinterpret_cast<T*>(static_cast<char*>(base) + bytes);
}
template <class T>
WEFT_GPU const T& at(const void* base, int64_t bytes) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(base) + bytes);
}

/// A kernel's argument, read again where this is asked for: not all of it has scalar registers from
/// the kernel's beginning to its end.
template <class T>
WEFT_GPU auto& kernel_argument() {
  using Constant = const __attribute__((address_space(4))) T;
  auto* p = (Constant*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(p));
  return *p;
}

using weft::ceil_div;  // kernels stand outside of the namespace

}  // namespace weft::cdna
