// The C interface's operations: structures of callers become arguments of ops/.
#include "capi/operations.h"

#include <fmt/format.h>

#include "arch/cpu/dispatch.h"
#include "base/divide.h"
#include "capi/interface.h"
#include "ops/check_operands.h"
#include "ops/chunk_kernels.h"
#include "ops/gemm_bf16/op.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/gemm_skinny/op.h"
#include "ops/mla_decode/op.h"
#include "ops/mla_layer/op.h"
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

/// A mixture of experts as a chunk's rows meet it.
struct Moe {
  int64_t rows = 0;
  PrefillExpertsUp up;
  PrefillExpertsDown down;
  Workspace workspace;
  size_t needs = 0;  ///< of the workspace
};

Result<Moe> read_moe(const void* given) {
  constexpr std::string_view kName = "moe";
  WEFT_ASSIGN(const weft_moe_args c, read(static_cast<const weft_moe_args*>(given), "args"));
  WEFT_TRY(check_size(kName, "rows", c.rows, 1));
  WEFT_TRY(check_size(kName, "experts", c.experts, 1));
  WEFT_TRY(check_at_most(kName, "experts", c.experts, kMostRouted));
  WEFT_TRY(check_size(kName, "chosen", c.chosen, 1));
  WEFT_TRY(check_at_most(kName, "chosen", c.chosen, c.experts));
  WEFT_TRY(check_size(kName, "hidden", c.hidden, 8, 8));
  WEFT_TRY(check_size(kName, "inner", c.inner, 8, 8));
  WEFT_TRY(check_format("a", c.a));
  WEFT_TRY(check_matrix(kName, "a", to_const(c.a), c.hidden, {DType::bf16, DType::f16}));
  const auto format = static_cast<DType>(c.a.format);
  const auto size = static_cast<int64_t>(size_of(format));
  // Kernels count bytes of rows in 32 bits.
  const int64_t slots = c.rows * c.chosen;
  constexpr int64_t kMost = 0xffffff00;
  WEFT_TRY(check_at_most(kName, "bytes of a", c.rows * c.a.stride * size, kMost));
  WEFT_TRY(check_at_most(kName, "bytes between the products", slots * c.inner * size, kMost));
  const auto experts = [&](std::string_view name, const weft_matrix& m, int64_t n,
                           int64_t k) -> Result<ExpertMatrices> {
    WEFT_TRY(check_format(name, m));
    WEFT_TRY(check_matrix(kName, name, to_const(m), k, {format}));
    return ExpertMatrices{.first = to_const(m), .pitch = n * m.stride * size};
  };
  Moe moe;
  moe.rows = c.rows;
  moe.workspace = {c.workspace.data, c.workspace.bytes};
  WEFT_ASSIGN(moe.up.gate, experts("gate", c.gate, c.inner, c.hidden));
  WEFT_ASSIGN(moe.up.up, experts("up", c.up, c.inner, c.hidden));
  WEFT_ASSIGN(moe.down.weight, experts("down", c.down, c.hidden, c.inner));
  WEFT_TRY(check_format("out", c.out));
  WEFT_TRY(check_matrix(kName, "out", to_matrix(c.out), c.hidden, {DType::f32}));
  WEFT_TRY(check_pointer(c.ids, "ids"));
  WEFT_TRY(check_pointer(c.weights, "weights"));
  moe.needs = kCounterBytes;  // which stay zero
  const auto place = [&](int64_t bytes) -> void* {
    const size_t at = moe.needs;
    moe.needs += round_up(static_cast<size_t>(bytes), 256);
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(moe.workspace.data) + at);
  };
  const PrefillDraw drawn{
      .ids = c.ids,
      .weights = c.weights,
      .experts = c.experts,
      .chosen = c.chosen,
      .order = static_cast<int32_t*>(place(moe_order_elements(c.rows, c.chosen, c.experts) * 4))};
  moe.up.a = to_const(c.a);
  moe.up.drawn = moe.down.drawn = drawn;
  moe.up.n = moe.down.k = c.inner;
  moe.up.k = moe.down.n = c.hidden;
  moe.up.out = {place(slots * c.inner * size), format, c.inner};
  moe.down.a = {moe.up.out.data, format, c.inner};
  moe.down.products = static_cast<float*>(place(slots * c.hidden * 4));
  moe.down.out = to_matrix(c.out);
  return moe;
}

/// The kernels for it on a stream's device.
Result<const ChunkKernels*> moe_kernels(const Moe& moe, Stream stream) {
  if (stream.device == nullptr) {
    return device_error("moe runs on GPUs alone: there is no device");
  }
  const DeviceInfo& info = stream.device->info();
  const ChunkKernels* kernels = chunk_kernels(info.arch);
  if (kernels == nullptr) {
    return no_kernel("moe", info, {});
  }
  for (const std::string_view why :
       {kernels->refuse_experts_up(moe.up), kernels->refuse_experts_down(moe.down)}) {
    if (!why.empty()) {
      return no_kernel("moe", info, why);
    }
  }
  return kernels;
}

constexpr Operation kMoe = {.name = "moe",
                            .run = [](const void* given, Stream stream) -> Status {
                              WEFT_ASSIGN(const Moe moe, read_moe(given));
                              WEFT_ASSIGN(const ChunkKernels* kernels, moe_kernels(moe, stream));
                              WEFT_TRY(check_workspace("moe", moe.workspace.bytes, moe.needs));
                              WEFT_TRY(stream.device->use());
                              WEFT_TRY(kernels->experts_up(moe.up, moe.rows, stream));
                              return kernels->experts_down(moe.down, moe.rows, stream);
                            },
                            .workspace = [](const void* given, Stream stream) -> Result<size_t> {
                              WEFT_ASSIGN(const Moe moe, read_moe(given));
                              WEFT_TRY(moe_kernels(moe, stream));
                              return moe.needs;
                            },
                            .plan = [](const void* given, Stream stream) -> Result<std::string> {
                              WEFT_ASSIGN(const Moe moe, read_moe(given));
                              WEFT_TRY(moe_kernels(moe, stream));
                              return fmt::format("{} slots, sorted by expert",
                                                 moe.rows * moe.up.drawn.chosen);
                            }};

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

constexpr Operation kMlaLayer = {
    .name = "mla_layer",
    .run = [](const void* given, Stream stream) -> Status {
      MlaLayerArgs args;
      WEFT_TRY(read_args(given, args));
      return mla_layer(args, stream);
    },
    .workspace = [](const void* given, Stream stream) -> Result<size_t> {
      MlaLayerArgs args;
      WEFT_TRY(read_args(given, args));
      return mla_layer_workspace(args, stream);
    },
    .plan = [](const void* given, Stream stream) -> Result<std::string> {
      MlaLayerArgs args;
      WEFT_TRY(read_args(given, args));
      WEFT_TRY(check(args));
      if (stream.device == nullptr) {
        return plan_of_cpu();
      }
      // Buffers somewhere: only their shapes matter.
      const MlaLayerSteps steps(args, MlaLayerBuffers(args, args.cache), {});
      const DeviceInfo& info = stream.device->info();
      return fmt::format("seven launches; attention: {}",
                         plan_of(steps.attention, mla_decode_kernel(info.arch), info));
    }};

/// An operation of ops/ behind the C structure that its arguments are read from.
template <class Args, Status (*kRun)(const Args&, Stream),
          Result<size_t> (*kWorkspace)(const Args&, Stream), const Kernel<Args>* (*kKernel)(Arch)>
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
            WEFT_TRY(check(args));
            if (stream.device == nullptr) {
              return plan_of_cpu();
            }
            const DeviceInfo& info = stream.device->info();
            return plan_of(args, kKernel(info.arch), info);
          }};
}

#define WEFT_C_OPERATION(Args, name) operation<Args, name, name##_workspace, name##_kernel>(#name)
constexpr Operation kGemmBf16 = WEFT_C_OPERATION(GemmBf16Args, gemm_bf16);
constexpr Operation kGemmFp8Blockwise = WEFT_C_OPERATION(GemmFp8BlockwiseArgs, gemm_fp8_blockwise);
constexpr Operation kGemmSkinny = WEFT_C_OPERATION(GemmSkinnyArgs, gemm_skinny);
constexpr Operation kRmsNormQuant = WEFT_C_OPERATION(RmsNormQuantArgs, rmsnorm_quant);
constexpr Operation kSwigluQuant = WEFT_C_OPERATION(SwigluQuantArgs, swiglu_quant);
constexpr Operation kMlaDecode = WEFT_C_OPERATION(MlaDecodeArgs, mla_decode);
constexpr Operation kMoeLayer = WEFT_C_OPERATION(MoeLayerArgs, moe_layer);
#undef WEFT_C_OPERATION
constexpr const Operation* kOperations[] = {&kGemmBf16,     &kGemmFp8Blockwise, &kGemmSkinny,
                                            &kRmsNormQuant, &kSwigluQuant,      &kMlaDecode,
                                            &kMoe,          &kMoeLayer,         &kMlaLayer};

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
