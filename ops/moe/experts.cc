#include "ops/moe/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/chunk_kernels.h"

namespace weft {
namespace {

constexpr std::string_view kRoute = "route";
constexpr std::string_view kMoe = "moe";
constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max() / 2;

Status check_there(std::string_view operation, std::string_view name, const void* data,
                   uintptr_t alignment) {
  if (data == nullptr) {
    return usage_error(fmt::format("{}: {} is null", operation, name));
  }
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    return usage_error(
        fmt::format("{}: {} is not aligned to {} bytes", operation, name, alignment));
  }
  return {};
}

/// A device's kernels for chunks of rows, unless they refuse: `why` of them.
template <class Why>
Result<const ChunkKernels*> kernels_for(std::string_view operation, Stream stream, Why&& why) {
  const DeviceInfo& info = stream.device->info();
  const ChunkKernels* kernels = chunk_kernels(info.arch);
  if (kernels == nullptr) {
    return no_kernel(operation, info, {});
  }
  if (const std::string_view reason = why(*kernels); !reason.empty()) {
    return no_kernel(operation, info, reason);
  }
  return kernels;
}

// --- experts ---

/// How the weights of experts are kept.
std::string_view form_of(const ExpertMatrices& w) {
  return w.scales > 0 ? "MXFP4" : name_of(w.first.dtype);
}

Status check_experts(std::string_view name, const MoeArgs& args, const ExpertMatrices& w,
                     int64_t k) {
  WEFT_TRY(check_matrix(kMoe, name, w.first, k, {args.a.dtype, DType::e4m3fn}));
  if (form_of(w) != form_of(args.gate)) {
    return usage_error(fmt::format("{}: {} is {} and gate is {}, but they must be alike", kMoe,
                                   name, form_of(w), form_of(args.gate)));
  }
  const bool codes = is_fp8(w.first.dtype);
  if ((codes || w.scales > 0) && args.a.dtype != DType::bf16) {
    return usage_error(fmt::format("{}: {} is {}, which rows in {} do not meet: they must be {}",
                                   kMoe, name, form_of(w), name_of(args.a.dtype),
                                   name_of(DType::bf16)));
  }
  if (codes != (w.block_scales != nullptr)) {
    return usage_error(fmt::format("{}: {} is {}, but its scales {}", kMoe, name, form_of(w),
                                   codes ? "are null" : "are given"));
  }
  constexpr int64_t kAlignment = 16;
  if (w.pitch % kAlignment != 0) {
    return usage_error(
        fmt::format("{}: from an expert's {} to the next one's are {} bytes, but "
                    "must be a multiple of {}",
                    kMoe, name, w.pitch, kAlignment));
  }
  return {};
}

Status check_bias(std::string_view name, const ConstVector& bias, DType format) {
  if (bias.data != nullptr && bias.dtype != format) {
    return usage_error(fmt::format("{}: {} is {}, but must be {}", kMoe, name, name_of(bias.dtype),
                                   name_of(format)));
  }
  return {};
}

/// That experts which rows have drawn are there, and no row has one twice.
Status check_ids(const MoeArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const std::span ids(args.ids + r * args.chosen, static_cast<size_t>(args.chosen));
    for (auto id = ids.begin(); id != ids.end(); ++id) {
      if (*id < 0 || *id >= args.experts) {
        return usage_error(fmt::format("{}: row {} of ids has expert {}, but there are {}", kMoe, r,
                                       *id, args.experts));
      }
      if (std::find(ids.begin(), id, *id) != id) {
        return usage_error(fmt::format(
            "{}: row {} of ids has expert {} twice, but a row's must differ", kMoe, r, *id));
      }
    }
  }
  return {};
}

/// Both products, and the memory that they want in a workspace of which they take `bytes`.
struct OnDevice {
  PrefillExpertsUp up;
  PrefillExpertsDown down;
  size_t bytes = kCounterBytes;  // which stay zero

  explicit OnDevice(const MoeArgs& args) {
    const auto place = [&](int64_t count) -> void* {
      const size_t at = bytes;
      bytes += round_up(static_cast<size_t>(count), size_t{256});
      return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(args.workspace.data) + at);
    };
    const int64_t slots = args.rows * args.chosen;
    const PrefillDraw drawn{.ids = args.ids,
                            .weights = args.weights,
                            .experts = args.experts,
                            .chosen = args.chosen,
                            .order = static_cast<int32_t*>(place(
                                moe_order_elements(args.rows, args.chosen, args.experts) * 4))};
    const Matrix between{place(slots * args.inner * static_cast<int64_t>(size_of(args.a.dtype))),
                         args.a.dtype, args.inner};
    up = {.a = args.a,
          .drawn = drawn,
          .gate = args.gate,
          .up = args.up,
          .gate_bias = args.gate_bias,
          .up_bias = args.up_bias,
          .n = args.inner,
          .k = args.hidden,
          .limit = args.limit,
          .out = between};
    down = {.a = {between.data, between.dtype, between.stride},
            .drawn = drawn,
            .sorted = true,
            .weight = args.down,
            .bias = args.down_bias,
            .n = args.hidden,
            .k = args.inner,
            .out = args.out,
            .products = static_cast<float*>(place(slots * args.hidden * 4))};
  }
};

Result<const ChunkKernels*> moe_kernels(const OnDevice& moe, Stream stream) {
  return kernels_for(kMoe, stream, [&](const ChunkKernels& kernels) {
    const std::string_view why = kernels.refuse_experts_up(moe.up);
    return why.empty() ? kernels.refuse_experts_down(moe.down) : why;
  });
}

/// Both products, and what stands between them, which a workspace begins with.
struct OnCpu {
  ExpertsUpArgs up;
  ExpertsDownArgs down;
  size_t between_bytes = 0;
  size_t scratch_bytes = 0;  // behind that

  explicit OnCpu(const MoeArgs& args) {
    // Which nobody writes.
    const Drawn drawn{const_cast<int32_t*>(args.ids), const_cast<float*>(args.weights), args.chosen,
                      args.chosen};
    const Matrix between{args.workspace.data, args.a.dtype, args.inner};
    up = {.a = args.a, .drawn = drawn, .out = between, .limit = args.limit};
    down = {.a = {between.data, between.dtype, between.stride}, .drawn = drawn, .out = args.out};
    for (int64_t e = 0; e < args.experts; ++e) {
      up.experts.push_back({.a = {},
                            .gate = matrix(args.gate, e),
                            .up = matrix(args.up, e),
                            .gate_bias = bias(args.gate_bias, e, args.inner),
                            .up_bias = bias(args.up_bias, e, args.inner),
                            .n = args.inner,
                            .k = args.hidden,
                            .out = {},
                            .gate_scales = scales(args.gate, e, args.hidden),
                            .up_scales = scales(args.up, e, args.hidden)});
      down.experts.push_back({.a = {},
                              .w = matrix(args.down, e),
                              .bias = bias(args.down_bias, e, args.hidden),
                              .n = args.hidden,
                              .k = args.inner,
                              .out = {},
                              .scales = scales(args.down, e, args.inner)});
      if (args.gate.scales > 0) {
        up.gates.push_back(mx(args.gate, e, args.hidden));
        up.ups.push_back(mx(args.up, e, args.hidden));
        down.mx.push_back(mx(args.down, e, args.inner));
      }
    }
    between_bytes =
        round_up(static_cast<size_t>(args.rows * args.chosen * args.inner) * size_of(args.a.dtype),
                 size_t{256});
    scratch_bytes = std::max(cpu::experts_up_scratch_bytes(up, args.rows),
                             cpu::experts_down_scratch_bytes(down, args.rows));
  }

 private:
  static ConstMatrix matrix(const ExpertMatrices& all, int64_t expert) {
    ConstMatrix own = all.first;
    own.data = static_cast<const std::byte*>(own.data) + expert * all.pitch;
    return own;
  }
  static MxMatrix mx(const ExpertMatrices& all, int64_t expert, int64_t k) {
    const auto* const codes = static_cast<const uint8_t*>(matrix(all, expert).data);
    return {codes, reinterpret_cast<const e8m0*>(codes + all.scales), k};
  }
  static WeightScales scales(const ExpertMatrices& all, int64_t expert, int64_t k) {
    if (all.block_scales == nullptr) {
      return {};
    }
    return {Scaling::block,
            all.block_scales + expert * all.block_scales_pitch / int64_t{sizeof(float)},
            scale_blocks(k)};
  }
  static ConstVector bias(const ConstVector& all, int64_t expert, int64_t n) {
    if (all.data == nullptr) {
      return {};
    }
    return {static_cast<const std::byte*>(all.data) +
                expert * n * static_cast<int64_t>(size_of(all.dtype)),
            all.dtype};
  }
};

Status check_on_cpu(const MoeArgs& args) {
  if (args.a.dtype != DType::bf16) {
    return device_error(fmt::format("{}: rows in {} are for AMD GPUs alone: the CPU has no kernel",
                                    kMoe, name_of(args.a.dtype)));
  }
  return {};
}

}  // namespace

Status check(const RouteArgs& args, int64_t rows) {
  const int64_t chosen = args.drawn.chosen;
  WEFT_TRY(check_size(kRoute, "rows", rows, 1));
  WEFT_TRY(check_size(kRoute, "experts", args.experts, 1));
  WEFT_TRY(check_at_most(kRoute, "experts", args.experts, kMostRouted));
  WEFT_TRY(check_size(kRoute, "chosen", chosen, 1));
  WEFT_TRY(check_at_most(kRoute, "slots", rows * chosen, kMostSlots));
  WEFT_TRY(check_size(kRoute, "groups", args.groups, 1));
  if (args.experts % args.groups != 0) {
    return usage_error(fmt::format("{}: groups is {}, but must divide the {} experts", kRoute,
                                   args.groups, args.experts));
  }
  WEFT_TRY(check_size(kRoute, "kept_groups", args.kept_groups, 1));
  WEFT_TRY(check_at_most(kRoute, "kept_groups", args.kept_groups, args.groups));
  WEFT_TRY(check_at_most(kRoute, "chosen", chosen, args.experts / args.groups * args.kept_groups));
  if (args.logits.dtype != DType::f32) {
    return usage_error(fmt::format("{}: logits is {}, but must be {}", kRoute,
                                   name_of(args.logits.dtype), name_of(DType::f32)));
  }
  WEFT_TRY(check_size(kRoute, "the stride of logits", args.logits.stride, args.experts));
  for (const auto& [name, data] :
       {std::pair<std::string_view, const void*>{"logits", args.logits.data},
        {"ids", args.drawn.ids},
        {"weights", args.drawn.weights}}) {
    WEFT_TRY(check_there(kRoute, name, data, alignof(float)));
  }
  if (args.correction.data != nullptr && !args.sigmoid) {
    return usage_error(
        fmt::format("{}: correction goes with the sigmoid, but the weights are a softmax", kRoute));
  }
  return {};
}

Status route(const RouteArgs& args, int64_t rows, Stream stream) {
  WEFT_TRY(check(args, rows));
  if (stream.device == nullptr) {
    cpu::route(args, {0, rows});
    return {};
  }
  WEFT_ASSIGN(
      const ChunkKernels* kernels,
      kernels_for(kRoute, stream, [&](const ChunkKernels& all) { return all.refuse_route(args); }));
  WEFT_TRY(stream.device->use());
  return kernels->route(args, rows, stream);
}

Status check(const MoeArgs& args) {
  WEFT_TRY(check_size(kMoe, "rows", args.rows, 1));
  WEFT_TRY(check_size(kMoe, "experts", args.experts, 1));
  WEFT_TRY(check_at_most(kMoe, "experts", args.experts, kMostRouted));
  WEFT_TRY(check_size(kMoe, "chosen", args.chosen, 1));
  WEFT_TRY(check_at_most(kMoe, "chosen", args.chosen, args.experts));
  WEFT_TRY(check_at_most(kMoe, "slots", args.rows * args.chosen, kMostSlots));
  const int64_t unit = args.gate.scales > 0 ? kMxBlock : 8;
  WEFT_TRY(check_size(kMoe, "hidden", args.hidden, unit, unit));
  WEFT_TRY(check_size(kMoe, "inner", args.inner, unit, unit));
  WEFT_TRY(check_matrix(kMoe, "a", args.a, args.hidden, {DType::bf16, DType::f16}));
  // Kernels count bytes of rows in 32 bits.
  const auto size = static_cast<int64_t>(size_of(args.a.dtype));
  constexpr int64_t kMost = 0xffffff00;
  WEFT_TRY(check_at_most(kMoe, "bytes of a", args.rows * args.a.stride * size, kMost));
  WEFT_TRY(check_at_most(kMoe, "bytes between the products",
                         args.rows * args.chosen * args.inner * size, kMost));
  WEFT_TRY(check_experts("gate", args, args.gate, args.hidden));
  WEFT_TRY(check_experts("up", args, args.up, args.hidden));
  WEFT_TRY(check_experts("down", args, args.down, args.inner));
  if (args.up.first.stride != args.gate.first.stride) {
    return usage_error(fmt::format("{}: the stride of up is {}, but must be gate's, {}", kMoe,
                                   args.up.first.stride, args.gate.first.stride));
  }
  WEFT_TRY(check_bias("gate_bias", args.gate_bias, args.a.dtype));
  WEFT_TRY(check_bias("up_bias", args.up_bias, args.a.dtype));
  WEFT_TRY(check_bias("down_bias", args.down_bias, args.a.dtype));
  if (!(args.limit >= 0) || (args.limit > 0 && args.gate.scales == 0)) {
    return usage_error(
        fmt::format("{}: limit is {}, but must be 0, or more with experts in MXFP4, and they are "
                    "{}",
                    kMoe, args.limit, form_of(args.gate)));
  }
  WEFT_TRY(check_matrix(kMoe, "out", args.out, args.hidden, {DType::f32, args.a.dtype}));
  WEFT_TRY(check_there(kMoe, "ids", args.ids, 16));
  return check_there(kMoe, "weights", args.weights, 16);
}

Result<size_t> moe_workspace(const MoeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    WEFT_TRY(check_on_cpu(args));
    const OnCpu moe(args);
    return moe.between_bytes + moe.scratch_bytes;
  }
  const OnDevice moe(args);
  WEFT_TRY(moe_kernels(moe, stream));
  return moe.bytes;
}

Status moe(const MoeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    WEFT_TRY(check_on_cpu(args));
    WEFT_TRY(check_ids(args));
    const OnCpu moe(args);
    WEFT_TRY(check_workspace(kMoe, args.workspace.bytes, moe.between_bytes + moe.scratch_bytes));
    const std::span scratch(static_cast<std::byte*>(args.workspace.data) + moe.between_bytes,
                            moe.scratch_bytes);
    cpu::experts_up(moe.up, {0, args.rows}, {0, args.inner}, scratch);
    cpu::experts_down(moe.down, {0, args.rows}, {0, args.hidden}, scratch);
    return {};
  }
  const OnDevice moe(args);
  WEFT_ASSIGN(const ChunkKernels* kernels, moe_kernels(moe, stream));
  WEFT_TRY(check_workspace(kMoe, args.workspace.bytes, moe.bytes));
  WEFT_TRY(stream.device->use());
  WEFT_TRY(kernels->experts_up(moe.up, args.rows, stream));
  return kernels->experts_down(moe.down, args.rows, stream);
}

}  // namespace weft
