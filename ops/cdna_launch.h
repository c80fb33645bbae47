// What the host sides of the AMD kernels share.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "arch/cdna/hip.h"
#include "base/divide.h"
#include "ops/cdna_rows.h"
#include "ops/kernel.h"
#include "ops/scales.h"

namespace weft::cdna {

/// Why this device's matrix and conversion instructions cannot take an operand's format, as
/// Plan::why says it; empty: they can.
inline std::string_view refuse(DType format, const DeviceInfo& device) {
  if (is_fp8(format) && (format == DType::e4m3fnuz) != device.fp8_fnuz) {
    return device.fp8_fnuz ? "gfx942 has e4m3fnuz, not e4m3fn" : "gfx950 has e4m3fn, not e4m3fnuz";
  }
  return {};
}

inline constexpr std::string_view short_name(DType format) {
  return format == DType::f32    ? "f32"
         : format == DType::bf16 ? "bf16"
         : format == DType::f16  ? "f16"
                                 : "fp8";
}

/// A format as kernels are told it that read a vector of any (number_at()).
inline constexpr int32_t format_number(DType format) {
  return format == DType::f32 ? 0 : format == DType::bf16 ? 1 : 2;
}

/// The kernel of an operation on rows: "rmsnorm_quant_bf16_block".
inline std::string row_kernel(std::string_view operation, DType format, Scaling scaling) {
  constexpr std::string_view kScalings[] = {"none", "tensor", "row", "block"};
  return fmt::format("{}_{}_{}", operation, short_name(format),
                     kScalings[static_cast<int>(scaling)]);
}

inline RowOutput row_output(const Quantised& y) {
  return {.out = y.out.data,
          .out_stride = y.out.stride * static_cast<int64_t>(size_of(y.out.dtype)),
          .scales = y.scales.data,
          .scale_row_stride = y.scales.row_stride,
          .scale_block_stride = y.scales.block_stride};
}

inline int64_t stride_bytes(const ConstMatrix& m) {
  return m.stride * static_cast<int64_t>(size_of(m.dtype));
}
inline int64_t stride_bytes(const Matrix& m) {
  return m.stride * static_cast<int64_t>(size_of(m.dtype));
}

/// Error (usage): a launch was given less workspace than it needs.
inline Status check_workspace(std::string_view operation, const Workspace& given, size_t needed) {
  if (given.bytes >= needed) {
    return {};
  }
  return usage_error(
      fmt::format("{} needs {} bytes of workspace, and was given {}: ask for as many as its "
                  "workspace function says",
                  operation, needed, given.bytes));
}

/// What lies behind the counters of a workspace; null without one.
inline void* partial_sums(const Workspace& workspace) {
  return workspace.bytes <= kCounterBytes ? nullptr
                                          : static_cast<char*>(workspace.data) + kCounterBytes;
}

}  // namespace weft::cdna
