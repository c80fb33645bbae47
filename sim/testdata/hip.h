// What ROCm's headers would bring to an ordinary HIP kernel.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))

struct Index {
  unsigned x, y, z;
};
#define threadIdx                                                            \
  (Index{__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), \
         __builtin_amdgcn_workitem_id_z()})
#define blockIdx                                                               \
  (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), \
         __builtin_amdgcn_workgroup_id_z()})
#define blockDim                                                                   \
  (Index{__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), \
         __builtin_amdgcn_workgroup_size_z()})

static inline __device__ unsigned grid_dim_x() {
  // Hidden arguments begin with the numbers of workgroups.
  return ((__attribute__((address_space(4))) const unsigned*)__builtin_amdgcn_implicitarg_ptr())[0];
}
#define gridDim (Index{grid_dim_x(), 1, 1})

static inline __device__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <class T>
static inline __device__ T atomicAdd(T* p, T x) {
  return __scoped_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
static inline __device__ unsigned atomicMax(unsigned* p, unsigned x) {
  return __scoped_atomic_fetch_max(p, x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
/// The value of the lane whose number differs in the bits of `mask`.
static inline __device__ int lane_number() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
static inline __device__ float shuffle_xor(float x, int mask) {
  const int from = (lane_number() ^ mask) * 4;
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from, __builtin_bit_cast(int, x)));
}
