// gated_linear for few rows on sm_90a, which reading the weights takes the time of: a block has 16
// columns of gate and of up, so that even of a few thousand columns all multiprocessors read some.
// Its four warps share k; their sums meet in shared memory, in order.
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/resident.cuh"
#include "base/divide.h"
#include "ops/gated_linear/hopper_prefill.h"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 16;  ///< of gate, and of up
constexpr int kDepth = 64;    ///< elements of k of a stage: a row is 128 bytes
constexpr int kPieces = kDepth / 8;
constexpr int kStages = 8;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStageBytes = (kRows + 2 * kColumns) * kRowBytes;
static_assert(kDepth == 16 * kWarps, "a warp has 16 elements of a stage's k");

/// Where 16 bytes of a row are.
__device__ int at(int row, int piece) { return row * kRowBytes + ((piece ^ row % kPieces) * 16); }

__global__ void __launch_bounds__(kThreads)
    gated_linear_few(const __grid_constant__ GatedLinearArgs args, int rows) {
  begin_in_turn();
  extern __shared__ __align__(128) char memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const auto n = static_cast<int>(args.n);
  const auto k = static_cast<int>(args.k);
  const int steps = ceil_div(k, kDepth);
  const auto copy = [&](int step) {
    if (step < steps) {
      char* const stage = memory + step % kStages * kStageBytes;
      const int piece = thread % kPieces;
      const int from = step * kDepth + piece * 8;
#pragma unroll
      for (int i = 0; i < (kRows + 2 * kColumns) * kPieces / kThreads; ++i) {
        const int row = thread / kPieces + i * (kThreads / kPieces);
        const int column = first_column + (row - kRows) % kColumns;
        const ConstMatrix& m = row < kRows ? args.a : row < kRows + kColumns ? args.gate : args.up;
        const bool there = from < k && (row < kRows ? row < rows : column < n);
        copy_async_16(stage + at(row, piece),
                      static_cast<const uint16_t*>(m.data) +
                          (there ? (row < kRows ? row : column) * m.stride + from : 0),
                      there);
      }
    }
    commit_copies();
  };

  float sums[2 * kColumns / 8][4] = {};
  for (int step = 0; step < kStages - 1; ++step) {
    copy(step);
  }
  for (int step = 0; step < steps; ++step) {
    await_copies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    const uint32_t stage = smem_address(memory + step % kStages * kStageBytes);
    const uint4 a = load_matrices_x4(stage + at(lane % 16, 2 * warp + lane / 16));
#pragma unroll
    for (int j = 0; j < 2 * kColumns / 8; j += 2) {
      const int row = kRows + (j + lane / 16) * 8 + lane % 8;
      const uint4 b = load_matrices_x4(stage + at(row, 2 * warp + lane / 8 % 2));
      mma_bf16(sums[j], a, b.x, b.y);
      mma_bf16(sums[j + 1], a, b.z, b.w);
    }
  }
  await_copies<0>();
  __syncthreads();  // all stages have been read

  auto* const parts = reinterpret_cast<float(*)[kRows][2 * kColumns]>(memory);  // [warp]
#pragma unroll
  for (int j = 0; j < 2 * kColumns / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(&parts[warp][half * 8 + lane / 4][j * 8 + lane % 4 * 2]) = {
          sums[j][2 * half], sums[j][2 * half + 1]};
    }
  }
  __syncthreads();
  const int row = thread / (kColumns / 2);
  const int own = thread % (kColumns / 2) * 2;
  const int column = first_column + own;
  if (row >= rows || column >= n) {
    return;
  }
  float x[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float both[2] = {};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const ConstVector& bias = which == 0 ? args.gate_bias : args.up_bias;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        both[which] += parts[w][row][which * kColumns + own + c];
      }
      both[which] += bias.data != nullptr ? load_x1(bias, column + c) : 0.0f;
    }
    x[c] = gate_with(args.activation, 0, both[0], both[1]);
  }
  *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.out.data) + row * args.out.stride +
                               column) = pack_bf16x2(x[0], x[1]);
}

}  // namespace

Status prefill_gated_linear_soon(const GatedLinearArgs& args, int64_t rows, Stream stream) {
  if (args.a.dtype != DType::bf16 || rows > kRows || args.k % 8 != 0) {
    return prefill_gated_linear(args, rows, stream);
  }
  return launch_kernel(gated_linear_few,
                       {.blocks = static_cast<int>(ceil_div(args.n, int64_t{kColumns})),
                        .threads = kThreads,
                        .shared_bytes = kStages * kStageBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, static_cast<int>(rows));
}

}  // namespace weft::hopper
