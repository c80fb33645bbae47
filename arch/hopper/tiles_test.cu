// The tile vocabulary on a GPU: copies, products and stores against plain loops on the host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "arch/hopper/copy.cuh"
#include "arch/hopper/gemm.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/resident.cuh"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/test_memory.h"
#include "arch/hopper/wgmma.cuh"

namespace weft::hopper {
namespace {

bool no_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}
#define NEEDS_GPU()                                \
  if (no_gpu()) {                                  \
    GTEST_SKIP() << "there is no NVIDIA GPU here"; \
  }

/// One tile: out[64, kN] = a[64, 64] b[kN, 64], loaded, multiplied and stored by the vocabulary.
template <int kN>
__global__ void __launch_bounds__(128)
    one_tile(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
             const __grid_constant__ CUtensorMap out) {
  extern __shared__ char memory[];
  char* base = memory + (1024 - smem_address(memory) % 1024) % 1024;
  char* a_tile = base;
  char* b_tile = a_tile + 64 * kRowBytes;
  char* staging = b_tile + ceil_div(kN, 8) * 8 * kRowBytes;
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(1);
    fence_barriers();
    full.arrive_expect((64 + kN) * kRowBytes);
    load_tile(a_tile, a, 0, 0, full);
    load_tile(b_tile, b, 0, 0, full);
  }
  __syncthreads();
  full.wait(0);
  float sums[kN / 2];
  begin_row_products<Bf16>(sums, tile_descriptor(a_tile), tile_descriptor(b_tile), false);
  wgmma_wait<0>();
  hold(sums);
  const int warp = threadIdx.x / 32;
  store_rows<kN>(staging + warp * staging_bytes<kN>(), out, warp * 16, 0, sums, threadIdx.x % 32);
  if (threadIdx.x % 32 == 0) {
    wait_stores_read<0>();
  }
}

template <int kN>
void expect_one_tile() {
  // Rows beyond 61 and columns beyond kN - 8 lie outside the tensors.
  constexpr int kRows = 61;
  constexpr int kColumns = kN - 8;
  constexpr int kK = 56;
  std::mt19937 random(kN);
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t count) {
    std::vector<__nv_bfloat16> values(count);
    for (auto& value : values) {
      value = __float2bfloat16(normal(random));
    }
    return values;
  };
  const auto a = fill(kRows * kK);
  const auto b = fill(kColumns * kK);
  const Memory<__nv_bfloat16> a_there(a);
  const Memory<__nv_bfloat16> b_there(b);
  const Memory<__nv_bfloat16> out(kRows * kColumns);
  const auto map = [](const void* data, int rows, int columns, int box_rows) {
    auto result =
        tensor_map({data, MapFormat::bf16, rows, columns, columns * 2, box_rows, 64, true});
    EXPECT_TRUE(result.ok());
    return *result;
  };
  const auto there = out_map<kN>(out.data(), kRows, kColumns, kColumns);
  ASSERT_TRUE(there.ok());
  ASSERT_TRUE(launch_kernel(one_tile<kN>, {.blocks = 1, .threads = 128, .shared_bytes = 160 << 10},
                            map(a_there.data(), kRows, kK, 64),
                            map(b_there.data(), kColumns, kK, kN), *there)
                  .ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto got = out.read();
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      double sum = 0;
      double magnitude = 0;
      for (int k = 0; k < kK; ++k) {
        const double term =
            static_cast<double>(__bfloat162float(a[r * kK + k])) * __bfloat162float(b[c * kK + k]);
        sum += term;
        magnitude += std::fabs(term);
      }
      // One rounding to bf16, and f32 sums of 56 exact products.
      ASSERT_NEAR(__bfloat162float(got[r * kColumns + c]), sum,
                  std::fabs(sum) * 0x1p-8 + magnitude * 0x1p-18)
          << r << " " << c;
    }
  }
}

TEST(HopperTiles, LoadMultiplyStore) {
  NEEDS_GPU();
  expect_one_tile<16>();
  expect_one_tile<64>();
  expect_one_tile<96>();
  expect_one_tile<128>();
  expect_one_tile<144>();
  expect_one_tile<192>();
}

/// Each lane gathers 4 bytes, or zeros, and the barrier counts the copies.
__global__ void gather(const float* from, float* to, int valid) {
  __shared__ float piece[32];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(32);
    fence_barriers();
  }
  __syncwarp();
  copy_async_4(&piece[threadIdx.x], from + 3 * threadIdx.x, static_cast<int>(threadIdx.x) < valid);
  full.arrive_after_copies();
  full.wait(0);
  to[threadIdx.x] = piece[31 - threadIdx.x];
}

TEST(HopperTiles, GatheredPieces) {
  NEEDS_GPU();
  std::vector<float> values(96);
  for (int i = 0; i < 96; ++i) {
    values[i] = static_cast<float>(i) + 0.5F;
  }
  const Memory<float> from(values);
  const Memory<float> to(32);
  gather<<<1, 32>>>(from.data(), to.data(), 20);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto got = to.read();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(got[31 - i], i < 20 ? values[3 * i] : 0);
  }
}

__global__ void compare_quotients(int end, int* wrong) {
  const int b = static_cast<int>(blockIdx.x) + 1;
  for (int a = static_cast<int>(threadIdx.x); a < end; a += static_cast<int>(blockDim.x)) {
    if (small_quotient(a, b) != a / b) {
      atomicAdd(wrong, 1);
    }
  }
}

/// Every number that it is for, by every divisor up to 2048.
TEST(HopperResident, SmallQuotientsAreExactSlow) {
  NEEDS_GPU();
  Memory<int> wrong(std::vector<int>{0});
  compare_quotients<<<2048, 256>>>(1 << 20, wrong.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(wrong.read().front(), 0);
}

}  // namespace
}  // namespace weft::hopper
