#include "ops/moe_layer/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/built.h"
#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/moe/prefill.h"

namespace weft {
namespace {

constexpr std::string_view kName = "moe_layer";

/// Lays the buffers one after the other; what they take.
size_t place_buffers(const MoeLayerArgs& args, void* memory, bool on_device,
                     MoeLayerBuffers& buffers) {
  size_t at = 0;
  const auto take = [&](int64_t bytes) -> void* {
    void* const place = memory != nullptr ? static_cast<std::byte*>(memory) + at : nullptr;
    at += round_up(static_cast<size_t>(bytes), size_t{256});
    return place;
  };
  const int64_t slots = args.rows * args.slots_of_row();
  const auto matrix = [&](int64_t columns) -> Matrix {
    return {take(slots * columns * static_cast<int64_t>(sizeof(f16))), DType::f16, columns};
  };
  buffers.drawn = {.ids = const_cast<int32_t*>(args.ids),        // which then nobody writes
                   .weights = const_cast<float*>(args.weights),  // likewise
                   .chosen = args.chosen,
                   .stride = args.slots_of_row()};
  if (args.ids == nullptr) {
    buffers.logits = static_cast<float*>(take(args.rows * args.experts * 4));
    buffers.drawn.ids = static_cast<int32_t*>(take(slots * 4));
    buffers.drawn.weights = static_cast<float*>(take(slots * 4));
  }
  buffers.between = matrix(args.inner);
  if (on_device) {
    buffers.order = static_cast<int32_t*>(
        take(moe_order_elements(args.rows, args.slots_of_row(), args.all()) * 4));
    buffers.products = matrix(args.hidden);
  }
  return at;
}

/// That experts which rows have drawn are there.
Status check_ids(const MoeLayerArgs& args) {
  for (int64_t i = 0; args.ids != nullptr && i < args.rows * args.slots_of_row(); ++i) {
    if (args.ids[i] < 0 || args.ids[i] >= args.all()) {
      return usage_error(fmt::format("{}: row {} has drawn expert {}, but there are {}", kName,
                                     i / args.slots_of_row(), args.ids[i], args.all()));
    }
  }
  return {};
}

}  // namespace

Status check(const MoeLayerArgs& args) {
  WEFT_TRY(check_size(kName, "rows", args.rows, 1));
  WEFT_TRY(check_size(kName, "hidden", args.hidden, 8, 8));
  WEFT_TRY(check_size(kName, "inner", args.inner, 8, 8));
  WEFT_TRY(check_size(kName, "chosen", args.chosen, 1));
  WEFT_TRY(check_size(kName, "experts", args.experts, args.chosen));
  WEFT_TRY(
      check_at_most(kName, "experts, the shared one included,", args.all(), kMostLayerExperts));
  WEFT_TRY(check_at_most(kName, "slots", args.rows * args.slots_of_row(),
                         std::numeric_limits<int32_t>::max() / 2));
  WEFT_TRY(check_matrix(kName, "x", args.x, args.hidden, {DType::f16}));
  if (args.ids == nullptr) {
    WEFT_TRY(check_matrix(kName, "router", args.router, args.hidden, {DType::f16}));
  } else if (args.weights == nullptr || reinterpret_cast<uintptr_t>(args.ids) % 16 != 0) {
    return usage_error(
        fmt::format("{}: ids must be aligned to 16 bytes, and come with weights", kName));
  }
  WEFT_TRY(check_matrix(kName, "out", args.out, args.hidden, {DType::f16}));
  for (const auto& [name, matrices, columns] : {std::tuple{"gate", &args.gate, args.inner},
                                                {"up", &args.up, args.inner},
                                                {"down", &args.down, args.hidden}}) {
    if (std::ssize(*matrices) != args.all()) {
      return usage_error(fmt::format("{}: there are {} matrices `{}`, but must be {}", kName,
                                     matrices->size(), name, args.all()));
    }
    for (const ConstMatrix& each : *matrices) {
      WEFT_TRY(check_matrix(kName, name, each, columns, {DType::f16}));
    }
  }
  return {};
}

PlanKey plan_key(const MoeLayerArgs& args) { return {args.rows, args.inner, args.hidden, "f16"}; }

MoeLayerBuffers::MoeLayerBuffers(const MoeLayerArgs& args, void* memory, bool on_device) {
  place_buffers(args, memory, on_device, *this);
}

size_t moe_layer_buffer_bytes(const MoeLayerArgs& args, bool on_device) {
  MoeLayerBuffers none(args, nullptr, on_device);
  return place_buffers(args, nullptr, on_device, none);
}

const Kernel<MoeLayerArgs>* moe_layer_kernel(Arch arch) { return WEFT_KERNEL_OF(moe_layer)(arch); }

Result<size_t> moe_layer_workspace(const MoeLayerArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return moe_layer_buffer_bytes(args, false) + cpu::moe_layer_scratch_bytes(args);
  }
  return workspace_bytes(kName, moe_layer_kernel(stream.device->info().arch), args, stream);
}

Status moe_layer(const MoeLayerArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device != nullptr) {
    return launch(kName, moe_layer_kernel(stream.device->info().arch), args, stream);
  }
  const size_t buffer_bytes = moe_layer_buffer_bytes(args, false);
  const size_t scratch = cpu::moe_layer_scratch_bytes(args);
  WEFT_TRY(check_workspace(kName, args.workspace.bytes, buffer_bytes + scratch));
  WEFT_TRY(check_ids(args));
  auto* const memory = static_cast<std::byte*>(args.workspace.data);
  const MoeLayerBuffers buffers(args, memory, false);
  for (int step = 0; step < cpu::kMoeLayerSteps; ++step) {
    cpu::moe_layer(args, buffers, step, 0, 1, {memory + buffer_bytes, scratch});
  }
  return {};
}

}  // namespace weft
