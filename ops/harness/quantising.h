// What trials of operations on rows share that write their result quantised (ops/scales.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/harness/trial.h"
#include "ops/scales.h"

namespace weft::trial {

struct QuantisedCase {
  DType out = DType::bf16;
  Scaling scaling = Scaling::none;
  bool column_major_scales = false;  ///< of blocks, as gemm_fp8_blockwise reads them fastest

  template <class Visitor>
  void fields(Visitor& v) {
    v.word("out", out, kOuts);
    v.optional_word("", scaling, kScalings);
    v.optional_word("scales", column_major_scales, kScaleOrder);
  }
  /// `in`: the format of the numbers that are quantised.
  std::string_view conflict(DType in) const {
    return is_fp8(out) != (scaling != Scaling::none) ? "fp8 has scales, other formats have none"
           : !is_fp8(out) && out != in               ? "out is fp8, or the format that is read"
           : column_major_scales && scaling != Scaling::block
               ? "only scales of blocks have an order"
               : "";
  }

  static constexpr Word<DType> kOuts[] = {{"bf16", DType::bf16},
                                          {"f16", DType::f16},
                                          {"e4m3fn", DType::e4m3fn},
                                          {"e4m3fnuz", DType::e4m3fnuz}};
  static constexpr Word<bool> kScaleOrder[] = {{"column-major", true}};
};

template <class Args>
class QuantisingTrial : public KernelTrial<Args> {
 public:
  int64_t rows() const override { return out_->rows(); }

 protected:
  using KernelTrial<Args>::KernelTrial;

  /// `gap`: elements between rows, a multiple of 16; more where the stride would not be one then.
  void add_result(const QuantisedCase& c, int64_t rows, int64_t columns, int64_t gap) {
    gap += (16 - columns % 16) % 16;
    case_ = c;
    blocks_ = ceil_div(columns, kScaleBlock);
    out_ = &this->output("out", rows, columns, c.out, gap);
    if (c.scaling == Scaling::tensor) {
      scales_ = &this->add("scale", Tensor::Role::input, 1, 1, DType::f32);
      scales_->set(0, 0, 0.0071f);  // so that a few numbers saturate
    } else if (c.scaling == Scaling::row) {
      scales_ = &this->output("scales", rows, 1, DType::f32);
    } else if (c.scaling == Scaling::block) {
      scales_ = c.column_major_scales ? &this->output("scales", blocks_, rows, DType::f32, gap)
                                      : &this->output("scales", rows, blocks_, DType::f32, gap);
    }
  }

  Quantised result(Side side) const {
    Quantised y{.out = out_->out(side), .scaling = case_.scaling, .scales = {}};
    if (scales_ != nullptr) {
      const Matrix scales = scales_->out(side);
      y.scales = {static_cast<float*>(scales.data), case_.column_major_scales ? 1 : scales.stride,
                  case_.column_major_scales ? scales.stride : 1};
    }
    return y;
  }

  double result_bytes() const {
    return static_cast<double>(out_->bytes() + (scales_ != nullptr ? scales_->bytes() : 0));
  }

  /// What must be written of the numbers `value`, [rows.size()][columns], each known +- error.
  std::vector<Expectation> expect_result(Range rows, std::vector<double> value,
                                         std::vector<double> error) const {
    std::vector<Expectation> result;
    const int64_t columns = out_->columns();
    if (case_.scaling == Scaling::none) {
      Expectation& out = result.emplace_back(*out_, rows);
      out.value = std::move(value);
      out.tolerance = std::move(error);
      out.allow_rounding();
      return result;
    }
    const double most = with_fp8(case_.out, [](auto t) -> double { return kMax<decltype(t)>; });
    Expectation out(*out_, rows);
    const bool by_block = case_.scaling == Scaling::block;
    const int64_t width = by_block ? kScaleBlock : columns;
    const int64_t parts = by_block ? blocks_ : 1;
    Expectation scales = case_.column_major_scales ? Expectation(*scales_, {0, parts}, rows)
                                                   : Expectation(*scales_, rows, {0, parts});
    for (int64_t r = 0; r < rows.size(); ++r) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = r * columns + part * width;
        const int64_t end = std::min(begin + width, (r + 1) * columns);
        const auto at = static_cast<size_t>(case_.column_major_scales ? part * rows.size() + r
                                                                      : r * parts + part);
        double scale = scales_->get(0, 0);
        double scale_error = 0;
        if (case_.scaling != Scaling::tensor) {
          double largest = kLeastAmax;
          for (int64_t i = begin; i < end; ++i) {
            if (std::fabs(value[i]) > largest) {  // not so for NaN
              largest = std::fabs(value[i]);
              scale_error = error[i] / most;
            }
          }
          scale = largest / most;
          scales.value[at] = scale;
          scales.tolerance[at] = scale_error + 4 * 0x1p-24 * scale;
        }
        for (int64_t i = begin; i < end; ++i) {
          // The scale's own error, and a reciprocal and a product.
          const double code = value[i] / scale;
          out.value[i] = std::isnan(code) ? code : std::clamp(code, -most, most);
          out.tolerance[i] = error[i] / std::fabs(scale) +
                             std::fabs(out.value[i]) * (scale_error / scale + 8 * 0x1p-24);
        }
      }
    }
    out.allow_rounding();
    result.push_back(std::move(out));
    if (case_.scaling != Scaling::tensor) {
      result.push_back(std::move(scales));
    }
    return result;
  }

 private:
  QuantisedCase case_;
  int64_t blocks_ = 0;
  Tensor* out_ = nullptr;
  Tensor* scales_ = nullptr;
};

}  // namespace weft::trial
