// moe on AMD, the host's side.
#include "ops/moe/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/moe/cdna_prefill.h"

namespace weft::cdna {
namespace {

std::string_view refuse(const ConstMatrix& a, const ExpertMatrices& w, const ConstVector& bias,
                        int64_t n, int64_t k) {
  const bool codes = w.first.dtype == DType::e4m3fn && w.block_scales != nullptr;
  if (is_fp8(w.first.dtype) && !codes) {
    return "weights in eight bits must be e4m3fn with scales of blocks";
  }
  const bool fit = a.dtype == DType::bf16  ? w.first.dtype == DType::bf16 || codes
                   : a.dtype == DType::f16 ? w.first.dtype == DType::f16 && w.scales == 0
                                           : a.dtype == DType::f32;
  if (!fit) {
    return "rows must be f32, or weights bf16 or codes too, or both f16";
  }
  if (bias.data != nullptr && bias.dtype != w.first.dtype) {
    return "a bias must have the weights' format";
  }
  if (n % 8 != 0 || k % 8 != 0 || a.stride % 8 != 0 || w.first.stride % 8 != 0 ||
      w.pitch % 16 != 0) {
    return "n, k and strides must be multiples of 8";
  }
  if (w.scales > 0 && k % kMxBlock != 0) {
    return "k of weights in MXFP4 must be a multiple of 32";
  }
  return {};
}

MoeMatrices matrices(const ExpertMatrices& w, const ConstVector& bias) {
  const bool mx = w.scales > 0;
  return {.first = w.first.data,
          .pitch = w.pitch,
          .stride = mx ? w.first.stride / 2 : stride_bytes(w.first),
          .scales = w.scales,
          .bias = bias.data,
          .block_scales = w.block_scales,
          .block_pitch = w.block_scales_pitch};
}

/// Which kernel, and how the rows of experts are dealt: enough workgroups for those that are drawn
/// unevenly, and not one for each tile that an expert which all rows drew would have.
Status launch_product(MoeProductParams params, std::string_view which, const ConstMatrix& a,
                      const ExpertMatrices& w, DType bias, const PrefillDraw& drawn, int64_t rows,
                      Stream stream) {
  const int64_t mean = ceil_div(rows * drawn.chosen, drawn.experts);
  const bool codes = is_fp8(w.first.dtype);  // of these and of f16 there is one tile
  const bool tiles = a.dtype == DType::bf16 && !codes;
  const int64_t tile = a.dtype == DType::f16 || (tiles && mean > 32) ? 128
                       : tiles && mean <= 8                          ? kMoeFewRows
                                                                     : 32;
  const int64_t columns =
      (tile == kMoeFewRows ? kMoeFewColumns : kMoeColumns) / (params.w[1].first != nullptr ? 2 : 1);
  params.order = drawn.order;
  params.a = a.data;
  params.a_stride = stride_bytes(a);
  params.experts = static_cast<int32_t>(drawn.experts);
  params.tiles_n = static_cast<int32_t>(ceil_div(int64_t{params.n}, columns));
  params.row_blocks =
      static_cast<int32_t>(std::min(ceil_div(rows, tile), 2 * ceil_div(mean, tile)));
  params.bias_format = format_number(bias);
  const std::string kernel = fmt::format("moe_{}_{}_{}_{}", which, short_name(a.dtype),
                                         w.scales > 0 ? "mx"
                                         : codes      ? "fp8"
                                                      : short_name(w.first.dtype),
                                         tile);
  return hip_device(stream).launch(
      {.operation = "moe",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(params.tiles_n * params.experts * params.row_blocks),
       .threads = 256},
      params, stream.native);
}

}  // namespace

std::string_view refuse_prefill_experts(const PrefillExpertsUp& args) {
  if (args.out.dtype != args.a.dtype) {
    return "the result must be as the rows are";
  }
  if (args.activation == Activation::none) {
    return "the activation must be SiLU or GELU";
  }
  return args.out.stride % 4 != 0 ? "n, k and strides must be multiples of 8"
                                  : refuse(args.a, args.gate, args.gate_bias, args.n, args.k);
}
std::string_view refuse_prefill_experts(const PrefillExpertsDown& args) {
  const std::string_view why = refuse_result(args);
  return why.empty() ? refuse(args.a, args.weight, args.bias, args.n, args.k) : why;
}

std::string_view refuse_prefill_route(const RouteArgs& args) {
  return args.groups > kMoeGroups ? "experts must be of 64 groups at most" : "";
}

Status prefill_route(const RouteArgs& args, int64_t rows, Stream stream) {
  const MoeRouteParams params{.logits = static_cast<const float*>(args.logits.data),
                              .correction = args.correction.data,
                              .ids = args.drawn.ids,
                              .weights = args.drawn.weights,
                              .logits_stride = args.logits.stride,
                              .slot_stride = args.drawn.stride,
                              .rows = static_cast<int32_t>(rows),
                              .experts = static_cast<int32_t>(args.experts),
                              .chosen = static_cast<int32_t>(args.drawn.chosen),
                              .sigmoid = args.sigmoid ? 1 : 0,
                              .renormalise = args.renormalise ? 1 : 0,
                              .groups = static_cast<int32_t>(args.groups),
                              .kept_groups = static_cast<int32_t>(args.kept_groups),
                              .correction_format = format_number(args.correction.dtype),
                              .scale = args.scale};
  return hip_device(stream).launch(
      {.operation = "moe",
       .kernel = "moe_route",
       .groups_x = static_cast<uint32_t>(ceil_div(rows, int64_t{kMoeRouteRows})),
       .threads = kMoeRouteRows * kWaveLanes},
      params, stream.native);
}

Status prefill_sort(const PrefillDraw& drawn, int64_t rows, Stream stream) {
  return hip_device(stream).launch({.operation = "moe",
                                    .kernel = "moe_sort",
                                    .groups_x = static_cast<uint32_t>(drawn.experts),
                                    .threads = 256},
                                   MoeSortParams{.ids = drawn.ids,
                                                 .order = drawn.order,
                                                 .slots = static_cast<int32_t>(rows * drawn.chosen),
                                                 .experts = static_cast<int32_t>(drawn.experts)},
                                   stream.native);
}

Status prefill_experts_up(const PrefillExpertsUp& args, int64_t rows, Stream stream) {
  MoeProductParams params{};
  params.out = args.out.data;
  params.out_stride = stride_bytes(args.out);
  params.w[0] = matrices(args.gate, args.gate_bias);
  params.w[1] = matrices(args.up, args.up_bias);
  params.per_row = static_cast<int32_t>(args.drawn.chosen);
  params.n = static_cast<int32_t>(args.n);
  params.k = static_cast<int32_t>(args.k);
  params.activation = args.activation;
  params.limit = args.limit;
  WEFT_TRY(prefill_sort(args.drawn, rows, stream));
  return launch_product(params, "up", args.a, args.gate, args.gate_bias.dtype, args.drawn, rows,
                        stream);
}

Status prefill_experts_down(const PrefillExpertsDown& args, int64_t rows, Stream stream) {
  MoeProductParams params{};
  params.out = args.products;
  params.out_stride = args.n * static_cast<int64_t>(sizeof(float));
  params.w[0] = matrices(args.weight, args.bias);
  params.per_row = 1;
  params.n = static_cast<int32_t>(args.n);
  params.k = static_cast<int32_t>(args.k);
  if (!args.sorted) {
    WEFT_TRY(prefill_sort(args.drawn, rows, stream));
  }
  WEFT_TRY(launch_product(params, "down", args.a, args.weight, args.bias.dtype, args.drawn, rows,
                          stream));
  const std::string kernel = fmt::format("moe_sum_{}", short_name(args.out.dtype));
  return hip_device(stream).launch({.operation = "moe",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(rows),
                                    .threads = 256},
                                   MoeSumParams{.products = args.products,
                                                .weights = args.drawn.weights,
                                                .out = args.out.data,
                                                .out_stride = stride_bytes(args.out),
                                                .n = static_cast<int32_t>(args.n),
                                                .chosen = static_cast<int32_t>(args.drawn.chosen),
                                                .accumulate = args.accumulate ? 1 : 0,
                                                .alpha = args.alpha},
                                   stream.native);
}

}  // namespace weft::cdna
