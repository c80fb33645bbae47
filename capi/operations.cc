// The C interface's operations: structures of callers become arguments of ops/.
#include "capi/operations.h"

#include <fmt/format.h>

#include "arch/cpu/dispatch.h"
#include "capi/interface.h"
#include "ops/gemm_bf16/op.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/gemm_skinny/op.h"
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
              return fmt::format("the calling thread, {}", cpu::name_of(cpu::current_isa()));
            }
            const DeviceInfo& info = stream.device->info();
            const Kernel<Args>* kernel = kKernel(info.arch);
            const Plan plan = kernel != nullptr ? kernel->plan(args, info) : Plan{};
            return plan.kernel.empty() ? fmt::format("no kernel: {}", plan.why) : to_text(plan);
          }};
}

#define WEFT_C_OPERATION(Args, name) operation<Args, name, name##_workspace, name##_kernel>(#name)
constexpr Operation kGemmBf16 = WEFT_C_OPERATION(GemmBf16Args, gemm_bf16);
constexpr Operation kGemmFp8Blockwise = WEFT_C_OPERATION(GemmFp8BlockwiseArgs, gemm_fp8_blockwise);
constexpr Operation kGemmSkinny = WEFT_C_OPERATION(GemmSkinnyArgs, gemm_skinny);
constexpr Operation kRmsNormQuant = WEFT_C_OPERATION(RmsNormQuantArgs, rmsnorm_quant);
constexpr Operation kSwigluQuant = WEFT_C_OPERATION(SwigluQuantArgs, swiglu_quant);
#undef WEFT_C_OPERATION
constexpr const Operation* kOperations[] = {&kGemmBf16, &kGemmFp8Blockwise, &kGemmSkinny,
                                            &kRmsNormQuant, &kSwigluQuant};

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
