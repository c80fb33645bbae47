// moe_layer on AMD, the host's side.
#include "ops/moe_layer/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/moe/cdna_prefill.h"
#include "ops/moe_layer/op.h"

namespace weft::cdna {
namespace {

static_assert(kMoeLayerExperts == kMostLayerExperts, "what the kernels know");

/// Whether kernels, which count bytes of a matrix in 32 bits, reach all of each.
bool within_reach(const MoeLayerArgs& args) {
  constexpr int64_t kMost = 0xffffff00;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(f16));
  const auto all = [](const std::vector<ConstMatrix>& matrices, int64_t rows) {
    return std::ranges::all_of(
        matrices, [rows](const ConstMatrix& each) { return each.stride <= kMost / kBytes / rows; });
  };
  return args.rows * args.slots_of_row() <= kMost / kBytes / args.inner &&
         args.x.stride <= kMost / kBytes / args.rows &&
         args.router.stride <= kMost / kBytes / args.experts && all(args.gate, args.hidden) &&
         all(args.up, args.hidden) && all(args.down, args.inner);
}

Plan plan(const MoeLayerArgs& args, const DeviceInfo& device) {
  if (!within_reach(args)) {
    return {.why = "a matrix has more than the 4 GiB that its kernels reach"};
  }
  return {.kernel = "grouped",
          .tile_m = kMoeLayerTileM,
          .tile_n = kMoeLayerTileN(device.target == name_of(Target::gfx950)),
          .tile_k = 64,
          .threads = 256,
          .why = "an expert's rows are dealt evenly to tiles"};
}

std::vector<Plan> candidates(const MoeLayerArgs& args, const DeviceInfo& device) {
  const Plan only = plan(args, device);
  return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
}

size_t workspace(const MoeLayerArgs& args, const Plan& /*plan*/) {
  return kCounterBytes + moe_layer_buffer_bytes(args, true);  // counters stay zero
}

template <class Params>
Status launch(const char* kernel, int64_t groups, const Params& params, Stream stream) {
  return hip_device(stream).launch({.operation = "moe_layer",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(groups),
                                    .threads = 256},
                                   params, stream.native);
}

Status draw(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, Stream stream) {
  const int64_t tiles_n = ceil_div(args.experts, int64_t{kMoeLayerRouterColumns});
  WEFT_TRY(launch("moe_layer_router", ceil_div(args.rows, int64_t{kMoeLayerRouterRows}) * tiles_n,
                  MoeLayerRouterParams{.x = args.x.data,
                                       .router = args.router.data,
                                       .logits = buffers.logits,
                                       .ids = args.shared ? buffers.drawn.ids : nullptr,
                                       .weights = buffers.drawn.weights,
                                       .x_stride = stride_bytes(args.x),
                                       .router_stride = stride_bytes(args.router),
                                       .rows = static_cast<int32_t>(args.rows),
                                       .experts = static_cast<int32_t>(args.experts),
                                       .k = static_cast<int32_t>(args.hidden),
                                       .tiles_n = static_cast<int32_t>(tiles_n),
                                       .per_row = static_cast<int32_t>(args.slots_of_row())},
                  stream));
  return prefill_route({.logits = {buffers.logits, DType::f32, args.experts},
                        .experts = args.experts,
                        .drawn = buffers.drawn},
                       args.rows, stream);
}

/// `per_row`: slots that share a row of a.
Status multiply(const MoeLayerArgs& args, const Plan& plan, const ConstMatrix& a, int64_t per_row,
                std::initializer_list<const std::vector<ConstMatrix>*> weights, int64_t n,
                int64_t k, const int32_t* order, const Matrix& out, Stream stream) {
  const bool gated = weights.size() == 2;
  const int64_t tiles_n = ceil_div(n, int64_t{gated ? plan.tile_n / 2 : plan.tile_n});
  MoeLayerProductParams params{.a = a.data,
                               .order = order,
                               .out = out.data,
                               .a_stride = stride_bytes(a),
                               .out_stride = stride_bytes(out),
                               .experts = static_cast<int32_t>(args.all()),
                               .per_row = static_cast<int32_t>(per_row),
                               .n = static_cast<int32_t>(n),
                               .k = static_cast<int32_t>(k),
                               .tiles_n = static_cast<int32_t>(tiles_n),
                               .w = {}};
  auto* to = params.w;
  for (const std::vector<ConstMatrix>* each : weights) {
    std::ranges::transform(*each, *to++, [](const ConstMatrix& w) -> MoeLayerMatrix {
      return {w.data, stride_bytes(w)};
    });
  }
  // However uneven the draw is.
  const int64_t slots = args.rows * args.slots_of_row();
  const int64_t tiles = std::min(slots, slots / kMoeLayerTileM + args.all());
  return launch(gated ? "moe_layer_up" : "moe_layer_down", tiles * tiles_n, params, stream);
}

Status launch_moe_layer(const MoeLayerArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("moe_layer", args.workspace, workspace(args, plan)));
  const MoeLayerBuffers buffers(args, partial_sums(args.workspace), true);
  if (args.ids == nullptr) {
    WEFT_TRY(draw(args, buffers, stream));
  }
  const int64_t slots = args.slots_of_row();
  WEFT_TRY(prefill_sort(
      {.ids = buffers.drawn.ids, .experts = args.all(), .chosen = slots, .order = buffers.order},
      args.rows, stream));
  const ConstMatrix between{buffers.between.data, DType::f16, buffers.between.stride};
  WEFT_TRY(multiply(args, plan, args.x, slots, {&args.gate, &args.up}, args.inner, args.hidden,
                    buffers.order, buffers.between, stream));
  WEFT_TRY(multiply(args, plan, between, 1, {&args.down}, args.hidden, args.inner, buffers.order,
                    buffers.products, stream));
  return launch("moe_layer_sum", args.rows,
                MoeLayerSumParams{.products = buffers.products.data,
                                  .weights = buffers.drawn.weights,
                                  .out = args.out.data,
                                  .out_stride = stride_bytes(args.out),
                                  .n = static_cast<int32_t>(args.hidden),
                                  .per_row = static_cast<int32_t>(slots)},
                stream);
}

}  // namespace

const Kernel<MoeLayerArgs> moe_layer = {plan, candidates, workspace, launch_moe_layer};

}  // namespace weft::cdna
