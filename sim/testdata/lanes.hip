// Lanes of registers that were written and lanes that were not (sim/lanes_test.cc): some lanes
// write v20, and what all lanes then take of it goes to memory.
#include "sim/testdata/hip.h"

extern "C" {

/// As unoptimised code keeps scalar registers: one lane for each, in a register of which no other
/// lane means anything.
__global__ void spilled_scalar(int* out, int x, int lane) {
  int y;
  asm volatile(
      "v_writelane_b32 v20, %1, 5\n"
      "s_mov_b32 s20, %2\n"
      "s_nop 4\n"
      "v_readlane_b32 s20, v20, s20\n"
      "s_mov_b32 %0, s20\n"
      : "=s"(y)
      : "s"(x), "s"(lane)
      : "v20", "s20");
  out[y & 63] = y;
}

/// The first active lane's value, where no other has one.
__global__ void first_lane(int* out, unsigned long active) {
  int y;
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, 8\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, %1\n"
      "s_nop 4\n"
      "v_readfirstlane_b32 %0, v20\n"
      "s_mov_b64 exec, s[20:21]\n"
      : "=s"(y)
      : "s"(active)
      : "v20", "s20", "s21");
  out[threadIdx.x] = y;
}

/// Only lanes of `active` write v20; then all of them take lane `from`'s.
__global__ void broadcast(int* out, unsigned long active, int from) {
  int y;
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %1\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, s[20:21]\n"
      "v_mov_b32 v21, %2\n"
      "ds_bpermute_b32 v21, v21, v20\n"
      "s_waitcnt lgkmcnt(0)\n"
      "v_mov_b32 %0, v21\n"
      : "=v"(y)
      : "s"(active), "v"(4 * from)
      : "v20", "v21", "s20", "s21");
  out[threadIdx.x] = y;
}

/// Each lane takes what its mirror image in 16 lanes has.
__global__ void mirror(int* out, unsigned long active) {
  int y;
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %1\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, s[20:21]\n"
      "s_nop 4\n"
      "v_mov_b32_dpp %0, v20 row_mirror row_mask:0xf bank_mask:0xf\n"
      : "=v"(y)
      : "s"(active)
      : "v20", "s20", "s21");
  out[threadIdx.x] = y;
}

/// The same by a pattern of the LDS: lanes l and l ^ 1.
__global__ void neighbours(int* out, unsigned long active) {
  int y;
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %1\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, s[20:21]\n"
      "ds_swizzle_b32 %0, v20 offset:0x041f\n"
      "s_waitcnt lgkmcnt(0)\n"
      : "=v"(y)
      : "s"(active)
      : "v20", "s20", "s21");
  out[threadIdx.x] = y;
}

/// Registers change places, and with them which lanes mean something.
__global__ void swapped(int* out, unsigned long active, int which) {
  int x;
  int y;
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %2\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, s[20:21]\n"
      "v_mov_b32 v21, 11\n"
      "s_nop 4\n"
      "v_swap_b32 v20, v21\n"
      "v_mov_b32 %0, v20\n"
      "v_mov_b32 %1, v21\n"
      : "=v"(x), "=v"(y)
      : "s"(active)
      : "v20", "v21", "s20", "s21");
  out[threadIdx.x] = which == 0 ? x : y;
}

/// Matrices take all lanes, whatever EXEC says.
__global__ void matrix(float* out, unsigned long active) {
  typedef float Sums __attribute__((ext_vector_type(4)));
  Sums sums = {};
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %1\n"
      "v_mov_b32 v20, 1.0\n"
      "s_mov_b64 exec, s[20:21]\n"
      "s_nop 4\n"
      "v_mfma_f32_16x16x4_f32 %0, v20, v20, %0\n"
      "s_nop 15\n"
      : "+v"(sums)
      : "s"(active)
      : "v20", "s20", "s21");
  out[threadIdx.x] = sums[0];
}

/// gfx950: the upper half of one register changes places with the lower half of another.
__global__ void swapped_halves(int* out, unsigned long active, int which) {
  int x = 0;
  int y = 0;
#if defined(__gfx950__)
  asm volatile(
      "s_mov_b64 s[20:21], exec\n"
      "s_mov_b64 exec, %2\n"
      "v_mov_b32 v20, 77\n"
      "s_mov_b64 exec, s[20:21]\n"
      "v_mov_b32 v21, 11\n"
      "s_nop 4\n"
      "v_permlane32_swap_b32 v20, v21\n"
      "v_mov_b32 %0, v20\n"
      "v_mov_b32 %1, v21\n"
      : "=v"(x), "=v"(y)
      : "s"(active)
      : "v20", "v21", "s20", "s21");
#else
  (void)active;
#endif
  out[threadIdx.x] = which == 0 ? x : y;
}

}  // extern "C"
