#include "ops/linear/hopper_tiles.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/resident.cuh"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/wgmma.cuh"
#include "base/divide.h"
#include "ops/hopper_activation.cuh"
#include "ops/linear/forms/packed/hopper.cuh"
#include "ops/linear/forms/packed/hopper_pack.cuh"

namespace weft::hopper {
namespace {

constexpr int kTileRows = 64;
constexpr int kTileK = kRowBytes / Bf16::kBytes;
constexpr int kUnits = kTileRows / kUnitColumns;  ///< of a tile
constexpr int kUnitListed = 8;                    ///< weights that a unit of a tile may list
constexpr int kListBytes = kUnits * kUnitListed * 4;
constexpr int kUnitGroups = kTileK / kGroupK;
constexpr int kUnitBytes = kUnitGroups * kCompressedGroupBytes;
constexpr int kTileBytes = kListBytes + kUnits * kUnitBytes;
constexpr int kBlockTiles = 2;   ///< one above the other, that a block multiplies at a time
constexpr int kMostParts = 8;    ///< of k, a block of a cluster each
constexpr int kSharedRows = 32;  ///< rows of a at most where blocks share k

// --- Making tiles

/// Rows of the operand A: of a unit the first half from `upper`, the second from `lower`.
struct TiledRows {
  const uint16_t* upper;  ///< bf16 [.., k]
  const uint16_t* lower;
  int64_t step;  ///< rows from a unit's to the next one's
  int64_t stride;
  int k;

  __device__ const uint16_t* row(int unit, int r) const {
    return (r < kUnitColumns / 2 ? upper : lower) + (unit * step + r % (kUnitColumns / 2)) * stride;
  }
};

/// A block a unit.
__global__ void __launch_bounds__(kPackThreads)
    pack_tiles(TiledRows rows, char* tiles, char* exponents, uint32_t* refused) {
  constexpr int kAtOnce = kPackThreads / 32 / kUnitGroups;  // tiles
  __shared__ int firsts[kUnitColumns];
  __shared__ ListedWeights<kUnitListed> listed_weights[kAtOnce];
  const auto unit = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  find_windows(kUnitColumns, rows.k, firsts, [&](int row, int k) {
    return __ldg(reinterpret_cast<const uint2*>(rows.row(unit, row) + k));
  });
  if (thread < kUnitColumns) {
    const int first = firsts[thread];
    exponents[unit * kUnitColumns + thread] =
        static_cast<char>(first == 0 ? kZeroScale : scale_exponent(first));
  }
  const int k_tiles = rows.k / kTileK;
  const int of_tile = unit % kUnits;
  for (int first = 0; first < k_tiles; first += kAtOnce) {
    if (thread < kAtOnce) {
      listed_weights[thread].count = 0;
    }
    __syncthreads();
    const int mine = warp / kUnitGroups;
    const int group = warp % kUnitGroups;
    char* const tile = tiles + (int64_t{unit / kUnits} * k_tiles + first + mine) * kTileBytes;
    if (first + mine < k_tiles) {
      store_group(tile + kListBytes + of_tile * kUnitBytes + group * kCompressedGroupBytes, lane,
                  [&](int j, int number, int second) {
                    const int row = lane / 4 + number % 2 * (kUnitColumns / 2);
                    const int k = group * kGroupK + j * 16 + number / 2 * 8 + lane % 4 * 2 + second;
                    return listed_weights[mine].code(
                        __ldg(rows.row(unit, row) + int64_t{first + mine} * kTileK + k),
                        firsts[row], row, k, refused);
                  });
    }
    __syncthreads();
    if (group == 0 && first + mine < k_tiles) {
      listed_weights[mine].store(lane, reinterpret_cast<uint32_t*>(tile) + of_tile * kUnitListed);
    }
    __syncthreads();
  }
}

// --- Products

/// A product's weights and where it goes.
struct Tiled {
  const char* tiles;
  const char* exponents;
  int k_tiles;
  int parts;
  int rows;
  void* out;  ///< [rows, n]: f32, added to where `accumulate`; bf16 where `rounds`
  int64_t stride;
  bool accumulate;
  bool rounds;
};

/// A cluster's blocks share out the sums of all: each has those of `each` eighths of a's rows, of
/// which there are `eighths`, to add up and store.
struct SumShares {
  int each;
  constexpr SumShares(int eighths, int parts) : each(ceil_div(eighths, parts)) {}
  constexpr int owner(int eighth) const { return eighth / each; }
};
/// Sums that a block gets of others at most.
constexpr int most_sums(int eighths) {
  int most = 0;
  for (int parts = 2; parts <= kMostParts; parts *= 2) {
    const int sums = (parts - 1) * SumShares(eighths, parts).each;
    most = sums > most ? sums : most;
  }
  return most;
}

/// Two warpgroups multiply, 64 rows of the weights each, by up to kColumns rows of a. Where sums
/// are few, two blocks have room on a multiprocessor: while one ends, the next kernel's already
/// reads its weights.
template <int kColumns>
struct TiledMemory {
  static constexpr int kWarps = 4 * kBlockTiles;
  static constexpr int kThreads = 32 * (kWarps + 2);
  static constexpr int kRowsBytes = kColumns * kRowBytes;
  static constexpr int kWeightBytes = kBlockTiles * kTileBytes;
  static constexpr int kBlocks = kColumns <= 64 ? 2 : 1;  ///< on a multiprocessor
  static constexpr int kMost = 233472 / kBlocks - 1024;
  static constexpr int kSlack = 1024;  // to align to that
  /// Sums of eight of a's rows that a block gets from the others of its cluster: for each of them,
  /// at most, a quad a thread.
  static constexpr int kQuadBytes = 32 * kWarps * 16;
  static constexpr int kSumBytes =
      kColumns <= kSharedRows ? most_sums(kColumns / 8) * kQuadBytes : 0;
  static constexpr int kStages = (kMost - kSlack - kSumBytes - 128) / (kRowsBytes + kWeightBytes);
  static constexpr int kRing = kStages * (kRowsBytes + kWeightBytes);
  static constexpr int kBytes = kSlack + kRing + kSumBytes + (2 * kStages + 1) * 8;
  static_assert(kStages >= 3 && kBytes <= kMost);
  using Cursor = RingCursor<kStages>;

  char* base;  ///< aligned to 1024

  __device__ explicit TiledMemory(char* memory)
      : base(memory + (kSlack - smem_address(memory) % kSlack) % kSlack) {}
  __device__ char* rows(int slot) const { return base + slot * kRowsBytes; }
  __device__ char* weights(int slot) const {
    return base + kStages * kRowsBytes + slot * kWeightBytes;
  }
  __device__ float4* sums(int quad) const {
    return reinterpret_cast<float4*>(base + kRing + quad * kQuadBytes);
  }
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(base + kRing + kSumBytes)[slot];
  }
  __device__ Barrier& empty(int slot) const { return full(kStages + slot); }
  __device__ Barrier& gathered() const { return full(2 * kStages); }
};

/// The operands A of both products of a group of a unit, in shared memory.
__device__ __forceinline__ void unpack_group(uint32_t group, int lane, uint32_t (&a)[2][4]) {
  const uint4 low = load_shared_bits(group + lane * 16);
  const uint2 high = load_shared_pair(group + kLowBytes + lane * 8);
  const uint4 operands[2] = {packed_operand(low.x, low.y, high.x),
                             packed_operand(low.z, low.w, high.y)};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    a[j][0] = operands[j].x;
    a[j][1] = operands[j].y;
    a[j][2] = operands[j].z;
    a[j][3] = operands[j].w;
  }
}

/// Puts what a unit lists, a word a lane, in the place of what stands for it.
__device__ __forceinline__ void put_listed(uint32_t words, int lane,
                                           uint32_t (&a)[kUnitGroups][2][4]) {
  uint32_t pending = __ballot_sync(~0u, words != 0);
#pragma unroll 1
  while (pending != 0) {
    const uint32_t listed = __shfl_sync(~0u, words, __ffs(pending) - 1);
    pending &= pending - 1;
    const int k = static_cast<int>(listed >> 16 & 0xff);
    const int row = static_cast<int>(listed >> 24 & 0xf);
    if (lane == row % 8 * 4 + k % 8 / 2) {
      const int place = k / 16 * 4 + k / 8 % 2 * 2 + row / 8;
      const uint32_t bytes = k % 2 == 0 ? 0x3254 : 0x5410;  // that half is the weight's
#pragma unroll
      for (int i = 0; i < 8 * kUnitGroups; ++i) {
        // (In the machine's words: the compiler would index, which registers cannot be.)
        asm("{\n.reg .pred p;\nsetp.eq.s32 p, %1, %2;\n@p prmt.b32 %0, %0, %3, %4;\n}"
            : "+r"(a[i / 8][i / 4 % 2][i % 4])
            : "r"(place), "r"(i), "r"(listed), "r"(bytes));
      }
    }
  }
}

/// Feeds weights, one warp. They are read once.
template <class Memory>
__device__ void feed_weights(const Memory& memory, const Tiled& work, int begin, int end) {
  const bool chosen = elect_one();
  const uint64_t once = evict_first();
  const int64_t pitch = int64_t{work.k_tiles} * kTileBytes;
  const char* from = work.tiles + int64_t{blockIdx.x / work.parts} * kBlockTiles * pitch +
                     int64_t{begin} * kTileBytes;
  typename Memory::Cursor cursor;
  for (int k = begin; k < end; ++k, cursor.advance(), from += kTileBytes) {
    memory.empty(cursor.slot).wait(cursor.parity ^ 1);
    if (chosen) {
      Barrier& full = memory.full(cursor.slot);
      full.arrive_expect(Memory::kWeightBytes);
      for (int i = 0; i < kBlockTiles; ++i) {
        load_bytes(memory.weights(cursor.slot) + i * kTileBytes, from + i * pitch, kTileBytes, full,
                   once);
      }
    }
  }
}

/// Feeds rows of a, one warp.
template <class Memory>
__device__ void feed_rows(const Memory& memory, const CUtensorMap& a, int rows, int begin,
                          int end) {
  const bool chosen = elect_one();
  typename Memory::Cursor cursor;
  for (int k = begin; k < end; ++k, cursor.advance()) {
    memory.empty(cursor.slot).wait(cursor.parity ^ 1);
    if (chosen) {
      Barrier& full = memory.full(cursor.slot);
      full.arrive_expect(rows * kRowBytes);
      load_tile(memory.rows(cursor.slot), a, k * kTileK, 0, full);
    }
  }
}

/// Where a thread's sums of eight of a's rows go: of two of them, of the weights' rows `row` and
/// row + 8 of the block. Beyond a's last row: nowhere.
template <Activation kActivation>
struct SumPlaces {
  static constexpr bool kGated = kActivation != Activation::none;

  __device__ SumPlaces(const Tiled& work, int tile, int warp, int lane)
      : work_(work),
        row_(lane % 4 * 2),
        column_((tile * kBlockTiles * kTileRows + warp * kUnitColumns) / (kGated ? 2 : 1) +
                lane / 4) {}
  /// What is added to; x, y: of the first row.
  __device__ float4 old(int eighth) const {
    float at[4] = {};
    if (!kGated && work_.accumulate) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_there(eighth, i % 2)) {
          at[i] = static_cast<const float*>(work_.out)[place(eighth, i % 2, i / 2)];
        }
      }
    }
    return {at[0], at[1], at[2], at[3]};
  }
  __device__ void store(int eighth, float4 sums) const {
    const float at[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!is_there(eighth, r)) {
        continue;
      }
      if constexpr (kGated) {
        static_cast<__nv_bfloat16*>(work_.out)[place(eighth, r, 0)] = __float2bfloat16_rn(
            at[2 + r] * __fdividef(at[r], 1 + __expf(-exponent_of<kActivation>(at[r]))));
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float sum = at[2 * half + r];
          if (work_.rounds) {
            static_cast<__nv_bfloat16*>(work_.out)[place(eighth, r, half)] =
                __float2bfloat16_rn(sum);
          } else {
            static_cast<float*>(work_.out)[place(eighth, r, half)] = sum;
          }
        }
      }
    }
  }

 private:
  __device__ bool is_there(int eighth, int r) const { return 8 * eighth + row_ + r < work_.rows; }
  __device__ int64_t place(int eighth, int r, int half) const {
    return (8 * eighth + row_ + r) * work_.stride + column_ + half * (kUnitColumns / 2);
  }

  const Tiled& work_;
  int row_;
  int column_;
};

/// kActivation: none where the product is all, else of gate's.
template <int kColumns, Activation kActivation>
__global__ void __launch_bounds__(TiledMemory<kColumns>::kThreads, TiledMemory<kColumns>::kBlocks)
    multiply_tiles(const __grid_constant__ CUtensorMap a, const __grid_constant__ Tiled work) {
  using Memory = TiledMemory<kColumns>;
  let_next_begin();
  extern __shared__ __align__(1024) char shared[];
  const Memory memory(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int parts = kColumns <= kSharedRows ? work.parts : 1;
  const auto tile = static_cast<int>(blockIdx.x) / parts;
  const auto part = static_cast<int>(blockIdx.x) % parts;
  const int begin = work.k_tiles * part / parts;
  const int end = work.k_tiles * (part + 1) / parts;
  constexpr int kEighths = kColumns / 8;
  const SumShares shares(kEighths, parts);
  if (warp == Memory::kWarps && elect_one()) {
    prefetch_map(a);
    for (int slot = 0; slot < Memory::kStages; ++slot) {
      memory.full(slot).init(2);
      memory.empty(slot).init(Memory::kWarps);
    }
    memory.gathered().init(1);
    if (part < shares.owner(kEighths - 1) + 1) {
      memory.gathered().arrive_expect((parts - 1) * shares.each * Memory::kQuadBytes);
    }
    fence_barriers();
  }
  __syncthreads();
  if (parts > 1) {
    cluster_arrive();  // others may send sums
  }
  if (warp != Memory::kWarps) {  // weights are not written meanwhile
    wait_for_earlier();
  }

  if (warp >= Memory::kWarps) {
    if (warp == Memory::kWarps) {
      feed_weights(memory, work, begin, end);
    } else {
      feed_rows(memory, a, work.rows, begin, end);
    }
    __syncwarp();
    if (parts > 1) {
      cluster_wait();  // who leaves before it would count twice
    }
    return;
  }
  const int warpgroup = warp / 4;
  const int unit = warp % 4;
  const int first_row = warp * kUnitColumns;  // of the block's
  const char* const exponents = work.exponents + tile * kBlockTiles * kTileRows + first_row;
  const auto scale_of = [&](int row) {
    return __uint_as_float(uint32_t{static_cast<uint8_t>(exponents[row])} << 23);
  };
  const float scales[2] = {scale_of(lane / 4), scale_of(lane / 4 + 8)};
  float sums[kColumns / 2];
  typename Memory::Cursor cursor;
  int last = -1;
  for (int k = begin; k < end; ++k, cursor.advance()) {
    memory.full(cursor.slot).wait(cursor.parity);
    const uint32_t tile_at = smem_address(memory.weights(cursor.slot)) + warpgroup * kTileBytes;
    uint32_t listed = 0;
    load_shared_if(lane < kUnitListed, tile_at + (unit * kUnitListed + lane) * 4, listed);
    wgmma_wait<0>();
    hold(sums);
    __syncwarp();  // all lanes have read it
    if (last >= 0 && lane == 0) {
      memory.empty(last).arrive();
    }
    last = cursor.slot;
    uint32_t operands[kUnitGroups][2][4];
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      unpack_group(tile_at + kListBytes + unit * kUnitBytes + g * kCompressedGroupBytes, lane,
                   operands[g]);
    }
    put_listed(listed, lane, operands);
    const uint64_t rows = tile_descriptor(memory.rows(cursor.slot));
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 2 * kUnitGroups; ++j) {
      wgmma_registers<kColumns, false>(sums, operands[j / 2][j % 2],
                                       advance(rows, j * kWgmmaRowBytes), k > begin || j > 0);
    }
    wgmma_commit();
    hold(sums);
  }
  wgmma_wait<0>();
  hold(sums);

#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    sums[i] *= scales[i / 2 % 2];
  }
  const auto quad = [&](int eighth) {
    const float* const at = sums + 4 * eighth;
    return float4{at[0], at[1], at[2], at[3]};
  };
  const SumPlaces<kActivation> places(work, tile, warp, lane);
  float4 old[kEighths];  // asked for all at once
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    if (shares.owner(i) == part) {
      old[i] = places.old(i);
    }
  }
  if (parts > 1) {
    cluster_wait();
#pragma unroll
    for (int i = 0; i < kEighths; ++i) {
      const int owner = shares.owner(i);
      if (owner != part) {
        const int place = (part - (part > owner ? 1 : 0)) * shares.each + i - owner * shares.each;
        store_remote(cluster_address(smem_address(memory.sums(place) + threadIdx.x), owner),
                     quad(i), cluster_address(smem_address(&memory.gathered()), owner));
      }
    }
    if (part > shares.owner(kEighths - 1)) {
      return;
    }
    memory.gathered().wait(0);
  }
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    if (shares.owner(i) == part) {
      float4 sum = {};
      for (int p = 0; p < parts; ++p) {  // in order
        const int place = (p - (p > part ? 1 : 0)) * shares.each + i - part * shares.each;
        const float4 more = p == part ? quad(i) : memory.sums(place)[threadIdx.x];
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
      }
      places.store(i, {old[i].x + sum.x, old[i].y + sum.y, old[i].z + sum.z, old[i].w + sum.w});
    }
  }
}

template <int kColumns, Activation kActivation>
Status launch_tiles(const ConstMatrix& a, int64_t k, const Tiled& work, int blocks, Stream stream) {
  WEFT_ASSIGN(const CUtensorMap rows, tensor_map({.data = a.data,
                                                  .format = MapFormat::bf16,
                                                  .rows = work.rows,
                                                  .columns = k,
                                                  .stride_bytes = a.stride * 2,
                                                  .box_rows = work.rows,
                                                  .box_columns = kTileK}));
  using Memory = TiledMemory<kColumns>;
  return launch_kernel(multiply_tiles<kColumns, kActivation>,
                       {.blocks = blocks,
                        .threads = Memory::kThreads,
                        .cluster = work.parts,
                        .shared_bytes = Memory::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       rows, work);
}

/// `n`: rows of the operand A.
int parts_of(int64_t n, int64_t k, Stream stream) {
  return tile_parts(n / kTileRows, k / kTileK, stream.device->info().units);
}

template <Activation kActivation>
Status launch(const ConstMatrix& a, const Matrix& out, bool accumulate, int64_t n, int64_t k,
              const char* tiles, int64_t rows, Stream stream) {
  const int64_t tile_rows = n / kTileRows;
  const int64_t k_tiles = k / kTileK;
  const Tiled work{.tiles = tiles,
                   .exponents = tiles + tile_rows * k_tiles * kTileBytes,
                   .k_tiles = static_cast<int>(k_tiles),
                   .parts = parts_of(n, k, stream),
                   .rows = static_cast<int>(rows),
                   .out = out.data,
                   .stride = out.stride,
                   .accumulate = accumulate,
                   .rounds = out.dtype == DType::bf16};
  const auto with = rows <= kSharedRows ? launch_tiles<32, kActivation>
                    : rows <= 64        ? launch_tiles<64, kActivation>
                                        : launch_tiles<128, kActivation>;
  return with(a, k, work, static_cast<int>(tile_rows / kBlockTiles) * work.parts, stream);
}

/// Bytes of the tiles of n rows of the operand A.
int64_t bytes_of(int64_t n, int64_t k, bool packs) {
  return packs && n > 0 && k > 0 && n % (kBlockTiles * kTileRows) == 0 && k % kTileK == 0
             ? n / kTileRows * (k / kTileK) * kTileBytes + n
             : 0;
}

/// Of more rows than kSharedRows the sums of blocks that share k take longer than the bytes save.
bool takes(int64_t n, int64_t k, int64_t rows, bool whole_k, Stream stream) {
  return parts_of(n, k, stream) == 1 ? rows <= kMostTiledRows : !whole_k && rows <= kSharedRows;
}

Status make(const TiledRows& rows, int64_t n, char* to, uint32_t* refused, Stream stream) {
  return launch_kernel(pack_tiles,
                       {.blocks = static_cast<int>(n / kUnitColumns),
                        .threads = kPackThreads,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       rows, to, to + n / kTileRows * (rows.k / kTileK) * kTileBytes, refused);
}

}  // namespace

int tile_parts(int64_t tile_rows, int64_t k_tiles, int units) {
  constexpr int64_t kFewest = 4;  // tiles along k in a part
  const int64_t blocks = tile_rows / kBlockTiles;
  int parts = 1;
  // A multiprocessor has room for two, but where all have two the next kernel's wait.
  while (2 * parts <= kMostParts && 2 * parts * blocks <= units * 3 / 2 &&
         k_tiles / (2 * parts) >= kFewest && parts * blocks < units * 3 / 4) {
    parts *= 2;
  }
  return parts;
}

int64_t tiles_bytes(const LinearArgs& args) {
  return bytes_of(args.n, args.k,
                  args.a.dtype == DType::bf16 && args.w.dtype == DType::bf16 &&
                      args.a.stride % 8 == 0 && args.w.stride == args.k &&
                      args.out.stride % 2 == 0);
}

int64_t tiles_bytes(const GatedLinearArgs& args) {
  return bytes_of(2 * args.n, args.k,
                  args.a.dtype == DType::bf16 && args.gate.dtype == DType::bf16 &&
                      args.up.dtype == DType::bf16 && args.out.dtype == DType::bf16 &&
                      args.gate_bias.data == nullptr && args.up_bias.data == nullptr &&
                      args.activation != Activation::none && args.a.stride % 8 == 0 &&
                      args.gate.stride == args.k && args.up.stride == args.k &&
                      args.out.stride % 2 == 0);
}

Status make_tiles(const LinearArgs& args, char* to, uint32_t* refused, Stream stream) {
  const auto* const w = static_cast<const uint16_t*>(args.w.data);
  constexpr int64_t kHalf = kUnitColumns / 2;
  return make({w, w + kHalf * args.w.stride, kUnitColumns, args.w.stride, static_cast<int>(args.k)},
              args.n, to, refused, stream);
}

Status make_tiles(const GatedLinearArgs& args, char* to, uint32_t* refused, Stream stream) {
  return make(
      {static_cast<const uint16_t*>(args.gate.data), static_cast<const uint16_t*>(args.up.data),
       kUnitColumns / 2, args.gate.stride, static_cast<int>(args.k)},
      2 * args.n, to, refused, stream);
}

bool takes_tiles(const LinearArgs& args, int64_t rows, bool whole_k, Stream stream) {
  return takes(args.n, args.k, rows, whole_k, stream);
}
bool takes_tiles(const GatedLinearArgs& args, int64_t rows, bool whole_k, Stream stream) {
  return takes(2 * args.n, args.k, rows, whole_k, stream);
}

Status tiled_linear(const LinearArgs& args, const char* tiles, int64_t rows, Stream stream) {
  return launch<Activation::none>(args.a, args.out, args.accumulate, args.n, args.k, tiles, rows,
                                  stream);
}

Status tiled_gated_linear(const GatedLinearArgs& args, const char* tiles, int64_t rows,
                          Stream stream) {
  const auto with = args.activation == Activation::silu ? launch<Activation::silu>
                                                        : launch<Activation::gelu_tanh>;
  return with(args.a, args.out, false, 2 * args.n, args.k, tiles, rows, stream);
}

}  // namespace weft::hopper
