// What the operations' check() functions are made of. Each error is one sentence of kind usage that
// names the operation, the argument, its value and what it must be.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/result.h"
#include "ops/scales.h"

namespace weft {

/// `value` is at least `least` and a multiple of `unit`.
Status check_size(std::string_view operation, std::string_view name, int64_t value, int64_t least,
                  int64_t unit = 1);
/// `value` is at most `most`.
Status check_at_most(std::string_view operation, std::string_view name, int64_t value,
                     int64_t most);
/// A matrix whose lines (along its stride) have `line` elements: not null, its pointer and stride
/// multiples of 16 bytes, the stride long enough, the format one of `formats`.
Status check_matrix(std::string_view operation, std::string_view name, const ConstMatrix& matrix,
                    int64_t line, std::initializer_list<DType> formats);
inline Status check_matrix(std::string_view operation, std::string_view name, const Matrix& matrix,
                           int64_t line, std::initializer_list<DType> formats) {
  return check_matrix(operation, name, ConstMatrix{matrix.data, matrix.dtype, matrix.stride}, line,
                      formats);
}
/// Scales are there exactly when `scaling` wants them.
Status check_scales(std::string_view operation, std::string_view name, const float* data,
                    Scaling scaling);
/// The result of an operation on rows of `columns` numbers in format `input`.
Status check_quantised(std::string_view operation, const Quantised& y, int64_t columns,
                       DType input);
/// The workspace is as large as a plan needs.
Status check_workspace(std::string_view operation, size_t has, size_t needs);

/// "none", "tensor", "row", "block".
std::string_view name_of(Scaling scaling);
/// What PlanKey::format says of fp8 operands or results: "e4m3fn,row".
std::string_view format_key(DType type, Scaling scaling);

}  // namespace weft
