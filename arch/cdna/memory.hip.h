// Memory through buffer resources: an access beyond the end reads zeros or writes nothing, so that
// ragged edges need no branches and loads stay in flight together (manual, section "Vector Memory
// Buffer Instructions").
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

/// What a lane of a load straight to LDS can bring at most.
inline constexpr int kLdsLoadBytes = kTarget == Target::gfx950 ? 16 : 4;

/// Element `index`, the same for all lanes, of what this launch does not write.
template <class T>
WEFT_GPU T constant_at(const T* base, int64_t index) {
  using Constant = const __attribute__((address_space(4))) T;
  return *(Constant*)(base + index);
}

/// A raw buffer of up to 2^32 - 1 bytes. Base and size must be the same for all lanes.
class Buffer {
 public:
  __device__ __attribute__((always_inline)) Buffer(const void* base, uint32_t bytes)
      : resource_(__builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, kRaw32Bit)) {
  }

  /// 16 bytes at offset + uniform. The range check looks at `offset` alone; `uniform` must be the
  /// same for all lanes.
  __device__ __attribute__((always_inline)) u32x4 load(uint32_t offset,
                                                       uint32_t uniform = 0) const {
    return __builtin_amdgcn_raw_buffer_load_b128(resource_, offset, uniform, 0);
  }
  /// The same of what is read once: other lines stay in the caches.
  __device__ __attribute__((always_inline)) u32x4 load_once(uint32_t offset,
                                                            uint32_t uniform) const {
    return __builtin_amdgcn_raw_buffer_load_b128(resource_, offset, uniform, kNonTemporal);
  }
  /// 12 bytes, as load_once().
  __device__ __attribute__((always_inline)) u32x3 load_three_once(uint32_t offset,
                                                                  uint32_t uniform) const {
    return __builtin_amdgcn_raw_buffer_load_b96(resource_, offset, uniform, kNonTemporal);
  }
  /// 8 bytes, as load_once().
  __device__ __attribute__((always_inline)) u32x2 load_pair_once(uint32_t offset,
                                                                 uint32_t uniform) const {
    return __builtin_amdgcn_raw_buffer_load_b64(resource_, offset, uniform, kNonTemporal);
  }
  /// 8 bytes, as load().
  __device__ __attribute__((always_inline)) u32x2 load_pair(uint32_t offset,
                                                            uint32_t uniform = 0) const {
    return __builtin_amdgcn_raw_buffer_load_b64(resource_, offset, uniform, 0);
  }
  __device__ __attribute__((always_inline)) uint32_t load_word(uint32_t offset,
                                                               uint32_t uniform = 0) const {
    return __builtin_amdgcn_raw_buffer_load_b32(resource_, offset, uniform, 0);
  }
  __device__ __attribute__((always_inline)) uint32_t load_half(uint32_t offset,
                                                               uint32_t uniform = 0) const {
    return __builtin_amdgcn_raw_buffer_load_b16(resource_, offset, uniform, 0);
  }
  __device__ __attribute__((always_inline)) uint32_t load_byte(uint32_t offset,
                                                               uint32_t uniform = 0) const {
    return __builtin_amdgcn_raw_buffer_load_b8(resource_, offset, uniform, 0);
  }
  /// kLdsLoadBytes a lane straight to LDS: lane l's to `lds` + kLdsLoadBytes l. `lds` must be the
  /// same for all lanes. Done when wait_for_loads() returns.
  __device__ __attribute__((always_inline)) void load_to_lds(
      __attribute__((address_space(3))) void* lds, uint32_t offset, uint32_t uniform) const {
    __builtin_amdgcn_raw_ptr_buffer_load_lds(resource_, lds, kLdsLoadBytes, offset, uniform, 0, 0);
  }
  template <class T>
  __device__ __attribute__((always_inline)) void store(T value, uint32_t offset) const {
    if constexpr (sizeof(T) == 16) {
      __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(u32x4, value), resource_, offset, 0,
                                             0);
    } else {
      static_assert(sizeof(T) == 8, "stores are of 8 or 16 bytes");
      __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(u32x2, value), resource_, offset, 0,
                                            0);
    }
  }

 private:
  static constexpr int kNonTemporal = 2;        // the instruction's bit nt
  static constexpr int kRaw32Bit = 0x00020000;  // word 3: DATA_FORMAT 32, no stride, no swizzle
  __amdgpu_buffer_rsrc_t resource_;
};

/// Waits for all loads of this wave, those to LDS among them.
WEFT_GPU void wait_for_loads() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

}  // namespace weft::cdna
