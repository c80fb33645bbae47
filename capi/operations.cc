// The C interface's operations: structures of callers become arguments of ops/.
#include "capi/operations.h"

#include <fmt/format.h>

#include "arch/cpu/dispatch.h"
#include "capi/interface.h"
#include "ops/check_operands.h"
#include "ops/gemm_bf16/op.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/gemm_skinny/op.h"
#include "ops/mla_decode/op.h"
#include "ops/mla_layer/op.h"
#include "ops/moe/experts.h"
#include "ops/moe_layer/op.h"
#include "ops/rmsnorm_quant/op.h"
#include "ops/swiglu_quant/op.h"

static_assert(WEFT_COUNTER_BYTES == weft::kCounterBytes);
static_assert(WEFT_F32 == static_cast<int>(weft::DType::f32) &&
              WEFT_E4M3FNUZ == static_cast<int>(weft::DType::e4m3fnuz));
static_assert(WEFT_SCALE_NONE == static_cast<int>(weft::Scaling::none) &&
              WEFT_SCALE_BLOCK == static_cast<int>(weft::Scaling::block));

namespace weft::capi {
namespace {

/// Whether a matrix that is there names a format. The operations check which.
Status check_format(std::string_view name, const weft_matrix& matrix) {
  if (matrix.data != nullptr && (matrix.format < WEFT_F32 || matrix.format > WEFT_E4M3FNUZ)) {
    return usage_error(
        fmt::format("{}: {} is no format: see WEFT_F32 and its like", name, matrix.format));
  }
  return {};
}

Status check_scaling(int32_t scaling) {
  if (scaling < WEFT_SCALE_NONE || scaling > WEFT_SCALE_BLOCK) {
    return usage_error(
        fmt::format("scaling {} is not known: see WEFT_SCALE_NONE and its like", scaling));
  }
  return {};
}

ConstMatrix to_const(const weft_matrix& m) {
  return {m.data, static_cast<DType>(m.format), m.stride};
}
Matrix to_matrix(const weft_matrix& m) { return {m.data, static_cast<DType>(m.format), m.stride}; }
ConstScales to_const(const weft_scales& s) { return {s.data, s.row_stride, s.block_stride}; }

Result<weft_gemm_args> read_gemm(const void* given) {
  WEFT_ASSIGN(weft_gemm_args args, read(static_cast<const weft_gemm_args*>(given), "args"));
  WEFT_TRY(check_format("a", args.a));
  WEFT_TRY(check_format("b", args.b));
  WEFT_TRY(check_format("out", args.out));
  WEFT_TRY(check_scaling(args.scaling));
  return args;
}

Status read_args(const void* given, GemmBf16Args& args) {
  WEFT_ASSIGN(const weft_gemm_args c, read_gemm(given));
  args = {.m = c.m,
          .n = c.n,
          .k = c.k,
          .a = to_const(c.a),
          .b = to_const(c.b),
          .out = to_matrix(c.out),
          .accumulate = (c.flags & WEFT_ACCUMULATE) != 0,
          .constant_b = (c.flags & WEFT_CONSTANT_B) != 0,
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Status read_args(const void* given, GemmFp8BlockwiseArgs& args) {
  WEFT_ASSIGN(const weft_gemm_args c, read_gemm(given));
  args = {.m = c.m,
          .n = c.n,
          .k = c.k,
          .layout = (c.flags & WEFT_MN_MAJOR) != 0 ? Fp8Layout::mn_major : Fp8Layout::k_major,
          .groups = c.groups,
          .group_of = c.group_of,
          .a = to_const(c.a),
          .b = to_const(c.b),
          .a_scale = to_const(c.a_scale),
          .b_scale = to_const(c.b_scale),
          .out = to_matrix(c.out),
          .constant_b = (c.flags & WEFT_CONSTANT_B) != 0,
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Status read_args(const void* given, GemmSkinnyArgs& args) {
  WEFT_ASSIGN(const weft_gemm_args c, read_gemm(given));
  args = {.m = c.m,
          .n = c.n,
          .k = c.k,
          .a = to_const(c.a),
          .b = to_const(c.b),
          .scaling = static_cast<Scaling>(c.scaling),
          .a_scale = to_const(c.a_scale),
          .b_scale = to_const(c.b_scale),
          .out = to_matrix(c.out),
          .constant_b = (c.flags & WEFT_CONSTANT_B) != 0,
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Result<weft_rows_args> read_rows(const void* given) {
  WEFT_ASSIGN(weft_rows_args args, read(static_cast<const weft_rows_args*>(given), "args"));
  WEFT_TRY(check_format("x", args.x));
  WEFT_TRY(check_format("up", args.up));
  WEFT_TRY(check_format("residual", args.residual));
  WEFT_TRY(check_format("out", args.out));
  WEFT_TRY(check_scaling(args.scaling));
  return args;
}

Quantised to_quantised(const weft_rows_args& c) {
  return {.out = to_matrix(c.out),
          .scaling = static_cast<Scaling>(c.scaling),
          .scales = {c.scales.data, c.scales.row_stride, c.scales.block_stride}};
}

Status read_args(const void* given, RmsNormQuantArgs& args) {
  WEFT_ASSIGN(const weft_rows_args c, read_rows(given));
  args = {.rows = c.rows,
          .columns = c.columns,
          .x = to_const(c.x),
          .residual = to_matrix(c.residual),
          .weight = {c.weight, static_cast<DType>(c.x.format)},
          .epsilon = c.epsilon,
          .y = to_quantised(c),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Status read_args(const void* given, SwigluQuantArgs& args) {
  WEFT_ASSIGN(const weft_rows_args c, read_rows(given));
  args = {.rows = c.rows,
          .columns = c.columns,
          .gate = to_const(c.x),
          .up = to_const(c.up),
          .y = to_quantised(c),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Status read_args(const void* given, MlaDecodeArgs& args) {
  WEFT_ASSIGN(const weft_mla_args c, read(static_cast<const weft_mla_args*>(given), "args"));
  WEFT_TRY(check_format("q", c.q));
  WEFT_TRY(check_format("out", c.out));
  WEFT_TRY(check_format("cache", {const_cast<void*>(c.cache), 0, c.cache_format, 0}));
  args = {.batch = c.batch,
          .tokens = c.tokens,
          .heads = c.heads,
          .q = to_const(c.q),
          .cache = {.rows = c.cache,
                    .dtype = static_cast<DType>(c.cache_format),
                    .blocks = c.blocks,
                    .block_rows = c.block_rows,
                    .block_stride = c.block_rows,
                    .tables = c.tables,
                    .table_stride = c.table_stride},
          .lengths = c.lengths,
          .scale = c.scale,
          .out = to_matrix(c.out),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

Status read_args(const void* given, MoeLayerArgs& args) {
  WEFT_ASSIGN(const weft_moe_layer_args c,
              read(static_cast<const weft_moe_layer_args*>(given), "args"));
  WEFT_TRY(check_format("x", c.x));
  WEFT_TRY(check_format("router", c.router));
  WEFT_TRY(check_format("out", c.out));
  if (c.shared != 0 && c.shared != 1) {
    return usage_error(fmt::format("moe_layer: shared is {}, but must be 0 or 1", c.shared));
  }
  // How long the lists are.
  WEFT_TRY(check_size("moe_layer", "experts", c.experts, 1));
  WEFT_TRY(check_at_most("moe_layer", "experts", c.experts, kMostLayerExperts));
  args = {.rows = c.rows,
          .hidden = c.hidden,
          .inner = c.inner,
          .experts = c.experts,
          .chosen = c.chosen,
          .shared = c.shared == 1,
          .x = to_const(c.x),
          .router = to_const(c.router),
          .ids = c.ids,
          .weights = c.weights,
          .out = to_matrix(c.out),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  for (const auto& [name, from, to] : {std::tuple{"gate", c.gate, &args.gate},
                                       {"up", c.up, &args.up},
                                       {"down", c.down, &args.down}}) {
    WEFT_TRY(check_pointer(from, name));
    for (int64_t e = 0; e < args.all(); ++e) {
      WEFT_TRY(check_format(name, from[e]));
      to->push_back(to_const(from[e]));
    }
  }
  return {};
}

Status read_args(const void* given, MlaLayerArgs& args) {
  WEFT_ASSIGN(const weft_mla_layer_args c,
              read(static_cast<const weft_mla_layer_args*>(given), "args"));
  for (const auto& [name, matrix] : {std::pair{"x", &c.x},
                                     {"q_down", &c.q_down},
                                     {"q_up", &c.q_up},
                                     {"kv_down", &c.kv_down},
                                     {"kv_up", &c.kv_up},
                                     {"o", &c.o},
                                     {"out", &c.out}}) {
    WEFT_TRY(check_format(name, *matrix));
  }
  args = {.batch = c.batch,
          .dim = c.dim,
          .q_rank = c.q_rank,
          .heads = c.heads,
          .prefill = c.prefill,
          .capacity = c.capacity,
          .x = to_const(c.x),
          .q_down = to_const(c.q_down),
          .q_up = to_const(c.q_up),
          .kv_down = to_const(c.kv_down),
          .kv_up = to_const(c.kv_up),
          .o = to_const(c.o),
          .cache = c.cache,
          .angles = c.angles,
          .constant_weights = (c.flags & WEFT_CONSTANT_B) != 0,
          .out = to_matrix(c.out),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  return {};
}

/// What a draw is of, and of how many rows.
struct RouteRows {
  int64_t rows = 0;
  RouteArgs draw;
};

Status read_args(const void* given, RouteRows& args) {
  WEFT_ASSIGN(const weft_route_args c, read(static_cast<const weft_route_args*>(given), "args"));
  WEFT_TRY(check_format("logits", c.logits));
  args = {.rows = c.rows,
          .draw = {.logits = to_const(c.logits),
                   .experts = c.experts,
                   .sigmoid = (c.flags & WEFT_SIGMOID) != 0,
                   .renormalise = (c.flags & WEFT_RENORMALISE) != 0,
                   .drawn = {c.ids, c.weights, c.chosen, c.chosen},
                   .correction = {c.correction, DType::f32},
                   .groups = c.groups == 0 ? 1 : c.groups,
                   .kept_groups = c.groups == 0 ? 1 : c.kept_groups,
                   .scale = c.scale}};
  return {};
}

/// A matrix [n, k] of every expert.
Result<ExpertMatrices> to_experts(std::string_view name, const weft_matrix& m,
                                  const weft_experts& more, int64_t n, int64_t k) {
  if (m.format == WEFT_MXFP4) {
    ExpertMatrices all = mx_experts(m.data, n, k);
    all.pitch = more.pitch != 0 ? more.pitch : all.pitch;
    all.block_scales = more.scales;  // which it cannot have
    return all;
  }
  WEFT_TRY(check_format(name, m));
  const auto size = static_cast<int64_t>(size_of(static_cast<DType>(m.format)));
  const int64_t scales =
      more.scales_pitch != 0 ? more.scales_pitch : scale_blocks(n) * scale_blocks(k);
  return ExpertMatrices{.first = to_const(m),
                        .pitch = (more.pitch != 0 ? more.pitch : n * m.stride) * size,
                        .block_scales = more.scales,
                        .block_scales_pitch = scales * int64_t{sizeof(float)}};
}

Status read_args(const void* given, MoeArgs& args) {
  WEFT_ASSIGN(const weft_moe_args c, read(static_cast<const weft_moe_args*>(given), "args"));
  WEFT_TRY(check_format("a", c.a));
  WEFT_TRY(check_format("out", c.out));
  const auto format = static_cast<DType>(c.a.format);
  args = {.rows = c.rows,
          .chosen = c.chosen,
          .experts = c.experts,
          .hidden = c.hidden,
          .inner = c.inner,
          .a = to_const(c.a),
          .ids = c.ids,
          .weights = c.weights,
          .gate = {},
          .up = {},
          .down = {},
          .gate_bias = {c.gate_experts.bias, format},
          .up_bias = {c.up_experts.bias, format},
          .down_bias = {c.down_experts.bias, format},
          .limit = c.limit,
          .out = to_matrix(c.out),
          .workspace = {c.workspace.data, c.workspace.bytes}};
  WEFT_ASSIGN(args.gate, to_experts("gate", c.gate, c.gate_experts, c.inner, c.hidden));
  WEFT_ASSIGN(args.up, to_experts("up", c.up, c.up_experts, c.inner, c.hidden));
  WEFT_ASSIGN(args.down, to_experts("down", c.down, c.down_experts, c.hidden, c.inner));
  return {};
}

/// How the CPU runs an operation.
std::string plan_of_cpu() {
  return fmt::format("the calling thread, {}", cpu::name_of(cpu::current_isa()));
}

/// How a device does.
template <class Args>
std::string plan_of(const Args& args, const Kernel<Args>* kernel, const DeviceInfo& info) {
  const Plan plan = kernel != nullptr ? kernel->plan(args, info) : Plan{};
  return plan.kernel.empty() ? fmt::format("no kernel: {}", plan.why) : to_text(plan);
}

/// An operation of ops/ behind the C structure that its arguments are read from.
template <class Args, Status (*kRun)(const Args&, Stream),
          Result<size_t> (*kWorkspace)(const Args&, Stream),
          Result<std::string> (*kPlan)(const Args&, Stream)>
constexpr Operation operation(std::string_view name) {
  return {.name = name,
          .run = [](const void* given, Stream stream) -> Status {
            Args args;
            WEFT_TRY(read_args(given, args));
            return kRun(args, stream);
          },
          .workspace = [](const void* given, Stream stream) -> Result<size_t> {
            Args args;
            WEFT_TRY(read_args(given, args));
            return kWorkspace(args, stream);
          },
          .plan = [](const void* given, Stream stream) -> Result<std::string> {
            Args args;
            WEFT_TRY(read_args(given, args));
            return kPlan(args, stream);
          }};
}

/// The plan of an operation that has kernels of its own.
template <class Args, const Kernel<Args>* (*kKernel)(Arch)>
Result<std::string> plan_with(const Args& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return plan_of_cpu();
  }
  const DeviceInfo& info = stream.device->info();
  return plan_of(args, kKernel(info.arch), info);
}

Result<std::string> mla_layer_plan(const MlaLayerArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return plan_of_cpu();
  }
  // Buffers somewhere: only their shapes matter.
  const MlaLayerSteps steps(args, MlaLayerBuffers(args, args.cache), {});
  const DeviceInfo& info = stream.device->info();
  return fmt::format("seven launches; attention: {}",
                     plan_of(steps.attention, mla_decode_kernel(info.arch), info));
}

Result<std::string> moe_plan(const MoeArgs& args, Stream stream) {
  WEFT_TRY(moe_workspace(args, stream));  // says whether there are kernels
  return stream.device == nullptr
             ? plan_of_cpu()
             : fmt::format("{} slots, sorted by expert", args.rows * args.chosen);
}

Status route_rows(const RouteRows& args, Stream stream) {
  return route(args.draw, args.rows, stream);
}
Result<size_t> route_workspace(const RouteRows& args, Stream /*stream*/) {
  WEFT_TRY(check(args.draw, args.rows));
  return size_t{0};
}
Result<std::string> route_plan(const RouteRows& args, Stream stream) {
  WEFT_TRY(check(args.draw, args.rows));
  return stream.device == nullptr ? plan_of_cpu() : fmt::format("{} rows by themselves", args.rows);
}

#define WEFT_C_OPERATION(Args, name) \
  operation<Args, name, name##_workspace, plan_with<Args, name##_kernel>>(#name)
constexpr Operation kGemmBf16 = WEFT_C_OPERATION(GemmBf16Args, gemm_bf16);
constexpr Operation kGemmFp8Blockwise = WEFT_C_OPERATION(GemmFp8BlockwiseArgs, gemm_fp8_blockwise);
constexpr Operation kGemmSkinny = WEFT_C_OPERATION(GemmSkinnyArgs, gemm_skinny);
constexpr Operation kRmsNormQuant = WEFT_C_OPERATION(RmsNormQuantArgs, rmsnorm_quant);
constexpr Operation kSwigluQuant = WEFT_C_OPERATION(SwigluQuantArgs, swiglu_quant);
constexpr Operation kMlaDecode = WEFT_C_OPERATION(MlaDecodeArgs, mla_decode);
constexpr Operation kMoeLayer = WEFT_C_OPERATION(MoeLayerArgs, moe_layer);
#undef WEFT_C_OPERATION
constexpr Operation kMlaLayer =
    operation<MlaLayerArgs, mla_layer, mla_layer_workspace, mla_layer_plan>("mla_layer");
constexpr Operation kRoute = operation<RouteRows, route_rows, route_workspace, route_plan>("route");
constexpr Operation kMoe = operation<MoeArgs, moe, moe_workspace, moe_plan>("moe");
constexpr const Operation* kOperations[] = {
    &kGemmBf16,    &kGemmFp8Blockwise, &kGemmSkinny, &kRmsNormQuant,
    &kSwigluQuant, &kMlaDecode,        &kRoute,      &kMoe,
    &kMoeLayer,    &kMlaLayer};

weft_status run(const Operation& operation, const void* args, weft_device* device, void* stream) {
  return guarded([&] { return operation.run(args, stream_of(device, stream)); });
}

}  // namespace

Result<const Operation*> operation_named(const char* name) {
  WEFT_TRY(check_pointer(name, "operation"));
  std::string known;
  for (const Operation* each : kOperations) {
    if (each->name == name) {
      return each;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each->name);
  }
  return usage_error(fmt::format("operation {} is not known; there are {}", name, known));
}

}  // namespace weft::capi

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

weft_status weft_gemm_bf16(const weft_gemm_args* args, weft_device* device, void* stream) {
  return run(kGemmBf16, args, device, stream);
}
weft_status weft_gemm_fp8_blockwise(const weft_gemm_args* args, weft_device* device, void* stream) {
  return run(kGemmFp8Blockwise, args, device, stream);
}
weft_status weft_gemm_skinny(const weft_gemm_args* args, weft_device* device, void* stream) {
  return run(kGemmSkinny, args, device, stream);
}
weft_status weft_rmsnorm_quant(const weft_rows_args* args, weft_device* device, void* stream) {
  return run(kRmsNormQuant, args, device, stream);
}
weft_status weft_swiglu_quant(const weft_rows_args* args, weft_device* device, void* stream) {
  return run(kSwigluQuant, args, device, stream);
}

weft_status weft_mla_decode(const weft_mla_args* args, weft_device* device, void* stream) {
  return run(kMlaDecode, args, device, stream);
}
weft_status weft_route(const weft_route_args* args, weft_device* device, void* stream) {
  return run(kRoute, args, device, stream);
}
weft_status weft_moe(const weft_moe_args* args, weft_device* device, void* stream) {
  return run(kMoe, args, device, stream);
}
weft_status weft_moe_layer(const weft_moe_layer_args* args, weft_device* device, void* stream) {
  return run(kMoeLayer, args, device, stream);
}
weft_status weft_mla_layer(const weft_mla_layer_args* args, weft_device* device, void* stream) {
  return run(kMlaLayer, args, device, stream);
}
weft_status weft_mla_layer_angles(int64_t positions, uint16_t* to) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(to, "to"));
    WEFT_TRY(check_size("mla_layer_angles", "positions", positions, 0));
    mla_layer_angles(positions, reinterpret_cast<bf16*>(to));
    return {};
  });
}

weft_status weft_workspace_bytes(const char* name, const void* args, weft_device* device,
                                 size_t* bytes) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(bytes, "bytes"));
    WEFT_ASSIGN(const Operation* operation, operation_named(name));
    WEFT_ASSIGN(*bytes, operation->workspace(args, stream_of(device)));
    return {};
  });
}

weft_status weft_plan(const char* name, const void* args, weft_device* device, const char** plan) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(plan, "plan"));
    WEFT_ASSIGN(const Operation* operation, operation_named(name));
    thread_local std::string text;
    WEFT_ASSIGN(text, operation->plan(args, stream_of(device)));
    *plan = text.c_str();
    return {};
  });
}

weft_status weft_time(const char* name, const void* args, weft_device* device, int32_t runs,
                      double* seconds) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    WEFT_TRY(check_pointer(seconds, "seconds"));
    WEFT_ASSIGN(const Operation* operation, operation_named(name));
    WEFT_ASSIGN(
        const std::vector<double> times,
        device->device->time([&](Stream stream) { return operation->run(args, stream); }, runs));
    std::copy(times.begin(), times.end(), seconds);
    return {};
  });
}
