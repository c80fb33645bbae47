#include "ops/linear/hopper_tiles.h"

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

/// kWarpgroups multiply, 64 rows of the weights each, by up to kColumns rows of a.
template <int kWarpgroups, int kColumns>
struct TiledMemory {
  static constexpr int kWarps = 4 * kWarpgroups;
  static constexpr int kThreads = 32 * kWarps + 128;
  static constexpr int kRowsBytes = kColumns * kRowBytes;
  static constexpr int kWeightBytes = kWarpgroups * kTileBytes;
  static constexpr int kMost = 232448 - 1024;
  static constexpr int kFit = (kMost - 256) / (kRowsBytes + kWeightBytes);
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kRing = kStages * (kRowsBytes + kWeightBytes);
  static constexpr int kBytes = 1024 + kRing + 2 * kStages * 8;
  /// Sums, when all stages have been read: a column of a's rows after the other.
  static constexpr int kPitch = kWarpgroups * kTileRows + 4;
  static_assert(kColumns * kPitch * 4 <= kRing);
  static constexpr int kRegisters = kWarpgroups == 4 ? 120 : 232;
  static constexpr int kFeederRegisters = kWarpgroups == 4 ? 24 : 40;
  using Cursor = RingCursor<kStages>;

  char* base;  ///< aligned to 1024

  __device__ explicit TiledMemory(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* rows(int slot) const { return base + slot * kRowsBytes; }
  __device__ char* weights(int slot) const {
    return base + kStages * kRowsBytes + slot * kWeightBytes;
  }
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(base + kRing)[slot];
  }
  __device__ Barrier& empty(int slot) const { return full(kStages + slot); }
  __device__ float* sums(int column) const {
    return reinterpret_cast<float*>(base) + column * kPitch;
  }
};

/// Two groups of a unit on their way to registers, and what the unit lists, a word a lane.
struct PackedUnit {
  uint4 low[kUnitGroups];
  uint2 high[kUnitGroups];
  uint32_t extra = 0;

  /// `tile` is in shared memory.
  __device__ __forceinline__ void load(uint32_t tile, int unit, int lane) {
    const uint32_t from = tile + kListBytes + unit * kUnitBytes;
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      low[g] = load_shared_bits(from + g * kCompressedGroupBytes + lane * 16);
      high[g] = load_shared_pair(from + g * kCompressedGroupBytes + kLowBytes + lane * 8);
    }
    extra = 0;
    load_shared_if(lane < kUnitListed, tile + (unit * kUnitListed + lane) * 4, extra);
  }
  /// The operands A of the tile's four products.
  __device__ __forceinline__ void unpack(int lane, uint32_t (&a)[2 * kUnitGroups][4]) const {
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      const uint4 operands[2] = {packed_operand(low[g].x, low[g].y, high[g].x),
                                 packed_operand(low[g].z, low[g].w, high[g].y)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        a[2 * g + j][0] = operands[j].x;
        a[2 * g + j][1] = operands[j].y;
        a[2 * g + j][2] = operands[j].z;
        a[2 * g + j][3] = operands[j].w;
      }
    }
    uint32_t pending = __ballot_sync(~0u, extra != 0);
#pragma unroll 1
    while (pending != 0) {
      const uint32_t listed = __shfl_sync(~0u, extra, __ffs(pending) - 1);
      pending &= pending - 1;
      const int k = static_cast<int>(listed >> 16 & 0xff);
      const int row = static_cast<int>(listed >> 24 & 0xf);
      if (lane == row % 8 * 4 + k % 8 / 2) {
        const int place = k / 16 * 4 + k / 8 % 2 * 2 + row / 8;
        const uint32_t bytes = k % 2 == 0 ? 0x3254 : 0x5410;  // that half is the weight's
#pragma unroll
        for (int i = 0; i < 8 * kUnitGroups; ++i) {
          // (In words of the machine's: the compiler would index, which registers cannot be.)
          asm("{\n.reg .pred p;\nsetp.eq.s32 p, %1, %2;\n@p prmt.b32 %0, %0, %3, %4;\n}"
              : "+r"(a[i / 4][i % 4])
              : "r"(place), "r"(i), "r"(listed), "r"(bytes));
        }
      }
    }
  }
};

/// Feeds weights, one warp. They are read once.
template <class Memory, int kWarpgroups>
__device__ void feed_weights(const Memory& memory, const Tiled& work, int begin, int end) {
  const bool chosen = elect_one();
  const uint64_t once = evict_first();
  const int64_t pitch = int64_t{work.k_tiles} * kTileBytes;
  const char* from = work.tiles + int64_t{blockIdx.x / work.parts} * kWarpgroups * pitch +
                     int64_t{begin} * kTileBytes;
  typename Memory::Cursor cursor;
  for (int k = begin; k < end; ++k, cursor.advance(), from += kTileBytes) {
    memory.empty(cursor.slot).wait(cursor.parity ^ 1);
    if (chosen) {
      Barrier& full = memory.full(cursor.slot);
      full.arrive_expect(Memory::kWeightBytes);
      for (int i = 0; i < kWarpgroups; ++i) {
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

/// Two neighbouring sums of all parts, in order, of the rows `row` and `row + 1` of the block's
/// weights.
template <class Memory>
__device__ float2 gather(const Memory& memory, int parts, int column, int row) {
  const uint32_t own = smem_address(memory.sums(column) + row);
  float2 sum = load_remote_pair(cluster_address(own, 0));
  for (int part = 1; part < parts; ++part) {
    const float2 more = load_remote_pair(cluster_address(own, part));
    sum.x += more.x;
    sum.y += more.y;
  }
  return sum;
}

/// kActivation: none where the product is all, else of gate's.
template <int kWarpgroups, int kColumns, Activation kActivation>
__global__ void __launch_bounds__(TiledMemory<kWarpgroups, kColumns>::kThreads, 1)
    multiply_tiles(const __grid_constant__ CUtensorMap a, const __grid_constant__ Tiled work) {
  using Memory = TiledMemory<kWarpgroups, kColumns>;
  let_next_begin();
  extern __shared__ __align__(1024) char shared[];
  const Memory memory(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const auto tile = static_cast<int>(blockIdx.x) / work.parts;
  const auto part = static_cast<int>(blockIdx.x) % work.parts;
  const int begin = work.k_tiles * part / work.parts;
  const int end = work.k_tiles * (part + 1) / work.parts;
  if (warp == Memory::kWarps && elect_one()) {
    prefetch_map(a);
    for (int slot = 0; slot < Memory::kStages; ++slot) {
      memory.full(slot).init(2);
      memory.empty(slot).init(Memory::kWarps);
    }
    fence_barriers();
  }
  __syncthreads();
  if (warp != Memory::kWarps) {  // weights are not written meanwhile
    wait_for_earlier();
  }

  if (warp >= Memory::kWarps) {
    lower_registers<Memory::kFeederRegisters>();
    if (warp == Memory::kWarps) {
      feed_weights<Memory, kWarpgroups>(memory, work, begin, end);
    } else if (warp == Memory::kWarps + 1) {
      feed_rows(memory, a, work.rows, begin, end);
    }
    __syncwarp();
    if (work.parts > 1) {  // as the others do below
      cluster_sync();
      cluster_sync();
    }
    return;
  }
  raise_registers<Memory::kRegisters>();
  const int warpgroup = warp / 4;
  const int unit = warp % 4;
  const int first_row = warp * kUnitColumns;  // of the block's
  const char* const exponents = work.exponents + tile * kWarpgroups * kTileRows + first_row;
  const auto scale_of = [&](int row) {
    return __uint_as_float(uint32_t{static_cast<uint8_t>(exponents[row])} << 23);
  };
  const float scales[2] = {scale_of(lane / 4), scale_of(lane / 4 + 8)};
  float sums[kColumns / 2];
  typename Memory::Cursor cursor;
  int last = -1;
  for (int k = begin; k < end; ++k, cursor.advance()) {
    memory.full(cursor.slot).wait(cursor.parity);
    PackedUnit packed;
    packed.load(smem_address(memory.weights(cursor.slot)) + warpgroup * kTileBytes, unit, lane);
    wgmma_wait<0>();
    hold(sums);
    if (last >= 0 && lane == 0) {
      memory.empty(last).arrive();
    }
    last = cursor.slot;
    uint32_t operands[2 * kUnitGroups][4];
    packed.unpack(lane, operands);
    const uint64_t rows = tile_descriptor(memory.rows(cursor.slot));
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 2 * kUnitGroups; ++j) {
      wgmma_registers<kColumns, false>(sums, operands[j], advance(rows, j * kWgmmaRowBytes),
                                       k > begin || j > 0);
    }
    wgmma_commit();
    hold(sums);
  }
  wgmma_wait<0>();
  hold(sums);

  named_sync(1, 32 * Memory::kWarps);  // all stages have been read
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    memory.sums(column)[first_row + lane / 4 + i / 2 % 2 * 8] = sums[i] * scales[i / 2 % 2];
  }
  if (work.parts > 1) {
    cluster_sync();
  } else {
    named_sync(1, 32 * Memory::kWarps);
  }
  constexpr bool kGated = kActivation != Activation::none;
  constexpr int kOut = kWarpgroups * kTileRows / (kGated ? 2 : 1);  // columns of out
  const int most = ceil_div(kColumns, work.parts);
  const int column_end = min((part + 1) * most, work.rows);
  const int64_t first = int64_t{tile} * kOut;
  for (int at = part * most * (kOut / 2) + static_cast<int>(threadIdx.x);
       at < column_end * (kOut / 2); at += 32 * Memory::kWarps) {
    const int column = at / (kOut / 2);
    const int c = at % (kOut / 2) * 2;
    float2 x;
    if constexpr (kGated) {
      const int row = c / 8 * kUnitColumns + c % 8;
      const float2 gate = gather(memory, work.parts, column, row);
      const float2 up = gather(memory, work.parts, column, row + 8);
      const auto gated = [](float g, float u) {
        return u * __fdividef(g, 1 + __expf(-exponent_of<kActivation>(g)));
      };
      x = {gated(gate.x, up.x), gated(gate.y, up.y)};
    } else {
      x = gather(memory, work.parts, column, c);
    }
    const int64_t place = column * work.stride + first + c;
    if (kGated || work.rounds) {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(work.out) + place) =
          pack_bf16x2(x.x, x.y);
    } else {
      auto* const to = reinterpret_cast<float2*>(static_cast<float*>(work.out) + place);
      if (work.accumulate) {
        const float2 old = *to;
        x = {old.x + x.x, old.y + x.y};
      }
      *to = x;
    }
  }
  if (work.parts > 1) {
    cluster_sync();  // others read this block's sums
  }
}

template <int kWarpgroups, int kColumns, Activation kActivation>
Status launch_tiles(const ConstMatrix& a, int64_t k, const Tiled& work, int64_t tile_rows,
                    Stream stream) {
  WEFT_ASSIGN(const CUtensorMap rows, tensor_map({.data = a.data,
                                                  .format = MapFormat::bf16,
                                                  .rows = work.rows,
                                                  .columns = k,
                                                  .stride_bytes = a.stride * 2,
                                                  .box_rows = work.rows,
                                                  .box_columns = kTileK}));
  using Memory = TiledMemory<kWarpgroups, kColumns>;
  return launch_kernel(multiply_tiles<kWarpgroups, kColumns, kActivation>,
                       {.blocks = static_cast<int>(tile_rows / kWarpgroups) * work.parts,
                        .threads = Memory::kThreads,
                        .cluster = work.parts,
                        .shared_bytes = Memory::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       rows, work);
}

template <int kWarpgroups, Activation kActivation>
Status launch_columns(const ConstMatrix& a, int64_t k, const Tiled& work, int64_t tile_rows,
                      Stream stream) {
  const auto launch = work.rows <= 32   ? launch_tiles<kWarpgroups, 32, kActivation>
                      : work.rows <= 64 ? launch_tiles<kWarpgroups, 64, kActivation>
                                        : launch_tiles<kWarpgroups, 128, kActivation>;
  return launch(a, k, work, tile_rows, stream);
}

/// `n`: rows of the operand A.
TileShares shares_of(int64_t n, int64_t k, Stream stream) {
  return share_tiles(n / kTileRows, k / kTileK, stream.device->info().units);
}

template <Activation kActivation>
Status launch(const ConstMatrix& a, const Matrix& out, bool accumulate, int64_t n, int64_t k,
              const char* tiles, int64_t rows, Stream stream) {
  const int64_t tile_rows = n / kTileRows;
  const int64_t k_tiles = k / kTileK;
  const TileShares shares = shares_of(n, k, stream);
  const Tiled work{.tiles = tiles,
                   .exponents = tiles + tile_rows * k_tiles * kTileBytes,
                   .k_tiles = static_cast<int>(k_tiles),
                   .parts = shares.parts,
                   .rows = static_cast<int>(rows),
                   .out = out.data,
                   .stride = out.stride,
                   .accumulate = accumulate,
                   .rounds = out.dtype == DType::bf16};
  return shares.warpgroups == 4 ? launch_columns<4, kActivation>(a, k, work, tile_rows, stream)
                                : launch_columns<2, kActivation>(a, k, work, tile_rows, stream);
}

/// Bytes of the tiles of n rows of the operand A.
int64_t bytes_of(int64_t n, int64_t k, bool packs) {
  return packs && n > 0 && k > 0 && n % (2 * kTileRows) == 0 && k % kTileK == 0
             ? n / kTileRows * (k / kTileK) * kTileBytes + n
             : 0;
}

Status make(const TiledRows& rows, int64_t n, char* to, uint32_t* refused, Stream stream) {
  return launch_kernel(pack_tiles,
                       {.blocks = static_cast<int>(n / kUnitColumns),
                        .threads = kPackThreads,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       rows, to, to + n / kTileRows * (rows.k / kTileK) * kTileBytes, refused);
}

}  // namespace

TileShares share_tiles(int64_t tile_rows, int64_t k_tiles, int units) {
  constexpr int64_t kFewest = 4;  // tiles along k in a part: more than the first ones' way takes
  TileShares best{2, 1};
  int64_t most = 0;
  // Of as many blocks those that have k whole, then those with more rows, which read less of a.
  for (const TileShares& shares :
       {TileShares{4, 1}, {2, 1}, {4, 2}, {2, 2}, {4, 4}, {2, 4}, {4, 8}, {2, 8}}) {
    const int64_t blocks = tile_rows / shares.warpgroups * shares.parts;
    const bool fits = tile_rows % shares.warpgroups == 0 &&
                      (shares.parts == 1 || blocks <= units && k_tiles / shares.parts >= kFewest);
    if (fits && std::min<int64_t>(blocks, units) > most) {
      most = std::min<int64_t>(blocks, units);
      best = shares;
    }
  }
  return best;
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

bool tiles_have_whole_k(const LinearArgs& args, Stream stream) {
  return shares_of(args.n, args.k, stream).parts == 1;
}
bool tiles_have_whole_k(const GatedLinearArgs& args, Stream stream) {
  return shares_of(2 * args.n, args.k, stream).parts == 1;
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
