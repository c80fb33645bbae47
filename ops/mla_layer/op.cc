#include "ops/mla_layer/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/built.h"
#include "base/divide.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "mla_layer";

/// Where the buffers lie, one after the other.
class Places {
 public:
  explicit Places(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  Matrix matrix(int64_t rows, int64_t columns) {
    return {take(rows * columns * static_cast<int64_t>(sizeof(bf16))), DType::bf16, columns};
  }
  void* take(int64_t bytes) {
    void* const place = memory_ != nullptr ? memory_ + at_ : nullptr;
    at_ += round_up(static_cast<size_t>(bytes), size_t{256});
    return place;
  }
  size_t bytes() const { return at_; }

 private:
  std::byte* memory_;
  size_t at_ = 0;
};

size_t place_buffers(const MlaLayerArgs& args, void* memory, MlaLayerBuffers& buffers) {
  Places places(memory);
  buffers.latent = places.matrix(args.batch, args.q_rank);
  buffers.q = places.matrix(args.batch, args.heads * kLayerQuery);
  buffers.queries = places.matrix(args.batch, args.heads * kLatentRow);
  buffers.seen = places.matrix(args.batch, args.heads * kLatentRank);
  buffers.values = places.matrix(args.batch, args.heads * kLayerValue);
  buffers.lengths = static_cast<int32_t*>(places.take(args.batch * 4));
  return places.bytes();
}

GemmBf16Args product(const MlaLayerArgs& args, const ConstMatrix& a, const ConstMatrix& b,
                     int64_t n, int64_t k, const Matrix& out, Workspace workspace) {
  return {.m = args.batch,
          .n = n,
          .k = k,
          .a = a,
          .b = b,
          .out = out,
          .constant_b = args.constant_weights,
          .workspace = workspace};
}

/// Bytes that the operations want of a workspace that they have in turn.
Result<size_t> shared_workspace(const MlaLayerSteps& steps, Stream stream) {
  WEFT_ASSIGN(size_t bytes, mla_decode_workspace(steps.attention, stream));
  for (const GemmBf16Args* each : {&steps.kv_down, &steps.q_down, &steps.q_up, &steps.o}) {
    WEFT_ASSIGN(const size_t some, gemm_bf16_workspace(*each, stream));
    bytes = std::max(bytes, some);
  }
  return round_up(bytes, size_t{256});
}

}  // namespace

void mla_layer_angles(int64_t positions, bf16* to) {
  constexpr int64_t kHalf = kLatentTurned / 2;
  const auto rounded = [](double x) { return to_float(to_bf16(static_cast<float>(x))); };
  const double base = rounded(10000);
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < kHalf; ++i) {
      const double frequency = rounded(std::pow(base, -static_cast<double>(i) / kHalf));
      const double angle = rounded(rounded(static_cast<double>(position)) * frequency);
      to[position * kLatentTurned + i] = to_bf16(static_cast<float>(std::cos(angle)));
      to[position * kLatentTurned + kHalf + i] = to_bf16(static_cast<float>(std::sin(angle)));
    }
  }
}

Status check(const MlaLayerArgs& args) {
  WEFT_TRY(check_size(kName, "batch", args.batch, 1));
  WEFT_TRY(check_at_most(kName, "batch", args.batch, kLatentSequences));
  WEFT_TRY(check_size(kName, "dim", args.dim, 8, 8));
  WEFT_TRY(check_size(kName, "q_rank", args.q_rank, 8, 8));
  WEFT_TRY(check_size(kName, "heads", args.heads, 1));
  WEFT_TRY(check_at_most(kName, "heads", args.heads, kLatentHeads));
  WEFT_TRY(check_size(kName, "prefill", args.prefill, 0));
  WEFT_TRY(check_size(kName, "capacity", args.capacity, args.prefill + 1));
  WEFT_TRY(check_at_most(kName, "capacity", args.capacity, kLayerCapacity));
  WEFT_TRY(check_matrix(kName, "x", args.x, args.dim, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "q_down", args.q_down, args.dim, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "q_up", args.q_up, args.q_rank, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "kv_down", args.kv_down, args.dim, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "kv_up", args.kv_up, kLatentRank, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "o", args.o, args.heads * kLayerValue, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "out", args.out, args.dim, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "cache", ConstMatrix{args.cache, DType::bf16, kLatentRow},
                        kLatentRow, {DType::bf16}));
  return check_matrix(kName, "angles", ConstMatrix{args.angles, DType::bf16, kLatentTurned},
                      kLatentTurned, {DType::bf16});
}

MlaLayerBuffers::MlaLayerBuffers(const MlaLayerArgs& args, void* memory) {
  place_buffers(args, memory, *this);
}

size_t mla_layer_buffer_bytes(const MlaLayerArgs& args) {
  MlaLayerBuffers none(args, nullptr);
  return place_buffers(args, nullptr, none);
}

MlaLayerSteps::MlaLayerSteps(const MlaLayerArgs& args, const MlaLayerBuffers& buffers,
                             Workspace workspace) {
  // The new row of each sequence, where it belongs.
  const Matrix rows{static_cast<bf16*>(args.cache) + args.prefill * kLatentRow, DType::bf16,
                    args.capacity * kLatentRow};
  kv_down = product(args, args.x, args.kv_down, kLatentRow, args.dim, rows, workspace);
  q_down = product(args, args.x, args.q_down, args.q_rank, args.dim, buffers.latent, workspace);
  q_up = product(args, to_const(buffers.latent), args.q_up, args.heads * kLayerQuery, args.q_rank,
                 buffers.q, workspace);
  o = product(args, to_const(buffers.values), args.o, args.dim, args.heads * kLayerValue, args.out,
              workspace);
  attention.batch = args.batch;
  attention.tokens = 1;
  attention.heads = args.heads;
  attention.q = to_const(buffers.queries);
  attention.cache = {.rows = args.cache,
                     .blocks = args.batch,
                     .block_rows = args.capacity,
                     .block_stride = args.capacity,
                     .angles = args.angles};
  attention.lengths = buffers.lengths;
  attention.scale = 1 / std::sqrt(static_cast<float>(kLayerQuery));
  attention.out = buffers.seen;
  attention.workspace = workspace;
}

const MlaLayerKernels* mla_layer_kernels(Arch arch) { return WEFT_KERNEL_OF(mla_layer)(arch); }

Result<size_t> mla_layer_workspace(const MlaLayerArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  const size_t buffer_bytes = mla_layer_buffer_bytes(args);
  if (stream.device == nullptr) {
    return buffer_bytes + cpu::mla_layer_scratch_bytes(args);
  }
  const DeviceInfo& info = stream.device->info();
  if (mla_layer_kernels(info.arch) == nullptr) {
    return no_kernel(kName, info, {});
  }
  // Buffers somewhere: only their shapes matter.
  const MlaLayerBuffers buffers(args, args.cache);
  WEFT_ASSIGN(const size_t shared, shared_workspace(MlaLayerSteps(args, buffers, {}), stream));
  return shared + buffer_bytes;
}

Status mla_layer(const MlaLayerArgs& args, Stream stream) {
  WEFT_ASSIGN(const size_t needs, mla_layer_workspace(args, stream));
  WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
  const size_t shared = needs - mla_layer_buffer_bytes(args);
  auto* const memory = static_cast<std::byte*>(args.workspace.data);
  const MlaLayerBuffers buffers(args, memory + shared);
  if (stream.device == nullptr) {
    for (int step = 0; step < cpu::kMlaLayerSteps; ++step) {
      cpu::mla_layer(args, buffers, step, 0, 1, {memory, shared});
    }
    return {};
  }
  const MlaLayerSteps steps(args, buffers, {memory, shared});
  const MlaLayerKernels& kernels = *mla_layer_kernels(stream.device->info().arch);
  WEFT_TRY(stream.device->use());
  WEFT_TRY(gemm_bf16(steps.kv_down, stream));
  WEFT_TRY(gemm_bf16(steps.q_down, stream));
  WEFT_TRY(gemm_bf16(steps.q_up, stream));
  WEFT_TRY(kernels.queries(args, buffers, stream));
  WEFT_TRY(mla_decode(steps.attention, stream));
  WEFT_TRY(kernels.values(args, buffers, stream));
  return gemm_bf16(steps.o, stream);
}

}  // namespace weft
