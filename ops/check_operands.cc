#include "ops/check_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace weft {
namespace {

constexpr int64_t kAlignment = 16;  // bytes

}  // namespace

Status check_size(std::string_view operation, std::string_view name, int64_t value, int64_t least,
                  int64_t unit) {
  if (value < least || value % unit != 0) {
    return usage_error(unit == 1 ? fmt::format("{}: {} is {}, but must be at least {}", operation,
                                               name, value, least)
                                 : fmt::format("{}: {} is {}, but must be a multiple of {}, and at "
                                               "least {}",
                                               operation, name, value, unit, least));
  }
  return {};
}

Status check_at_most(std::string_view operation, std::string_view name, int64_t value,
                     int64_t most) {
  if (value > most) {
    return usage_error(
        fmt::format("{}: {} is {}, but must be at most {}", operation, name, value, most));
  }
  return {};
}

Status check_matrix(std::string_view operation, std::string_view name, const ConstMatrix& matrix,
                    int64_t line, std::initializer_list<DType> formats) {
  if (matrix.data == nullptr) {
    return usage_error(fmt::format("{}: {} is null", operation, name));
  }
  if (std::find(formats.begin(), formats.end(), matrix.dtype) == formats.end()) {
    std::string known;
    for (const DType each : formats) {
      known += fmt::format("{}{}", known.empty() ? "" : " or ", name_of(each));
    }
    return usage_error(
        fmt::format("{}: {} is {}, but must be {}", operation, name, name_of(matrix.dtype), known));
  }
  if (reinterpret_cast<uintptr_t>(matrix.data) % kAlignment != 0) {
    return usage_error(
        fmt::format("{}: {} is not aligned to {} bytes", operation, name, kAlignment));
  }
  const auto size = static_cast<int64_t>(size_of(matrix.dtype));
  if (matrix.stride < line || matrix.stride * size % kAlignment != 0) {
    return usage_error(fmt::format(
        "{}: the stride of {} is {}, but must be at least {} and a multiple of {} elements",
        operation, name, matrix.stride, line, kAlignment / size));
  }
  return {};
}

Status check_scales(std::string_view operation, std::string_view name, const float* data,
                    Scaling scaling) {
  if ((data != nullptr) != (scaling != Scaling::none)) {
    return usage_error(fmt::format("{}: {} {}, but scaling is {}", operation, name,
                                   data != nullptr ? "is given" : "is null", name_of(scaling)));
  }
  return {};
}

Status check_quantised(std::string_view operation, const Quantised& y, int64_t columns,
                       DType input) {
  WEFT_TRY(check_matrix(operation, "out", y.out, columns, {input, DType::e4m3fn, DType::e4m3fnuz}));
  if (is_fp8(y.out.dtype) != (y.scaling != Scaling::none)) {
    return usage_error(fmt::format("{}: out is {}, but scaling is {}", operation,
                                   name_of(y.out.dtype), name_of(y.scaling)));
  }
  return check_scales(operation, "scales", y.scales.data, y.scaling);
}

Status check_workspace(std::string_view operation, size_t has, size_t needs) {
  if (has < needs) {
    return usage_error(
        fmt::format("{}: the workspace has {} bytes, but {} are needed", operation, has, needs));
  }
  return {};
}

std::string_view name_of(Scaling scaling) {
  constexpr std::string_view kNames[] = {"none", "tensor", "row", "block"};
  return kNames[static_cast<int>(scaling)];
}

std::string_view format_key(DType type, Scaling scaling) {
  constexpr std::string_view kFn[] = {"e4m3fn", "e4m3fn,tensor", "e4m3fn,row", "e4m3fn,block"};
  constexpr std::string_view kFnuz[] = {"e4m3fnuz", "e4m3fnuz,tensor", "e4m3fnuz,row",
                                        "e4m3fnuz,block"};
  switch (type) {
    case DType::e4m3fn:
      return kFn[static_cast<int>(scaling)];
    case DType::e4m3fnuz:
      return kFnuz[static_cast<int>(scaling)];
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
  }
  return "?";
}

}  // namespace weft
