// Whether the tolerance of fp8 products where tensor cores sum with 14 bits passes what they do
// right, and notices sums that are left in them for too long or are kept in fewer bits than f32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "base/divide.h"
#include "ops/harness/select.h"
#include "ops/harness/test_device.h"
#include "ops/scales.h"

namespace weft::trial {
namespace {

constexpr int kBits = 14;      // of Hopper's tensor cores, as arch/hopper/device_cuda.cc says
constexpr int64_t kStep = 32;  // products of one of their instructions

/// The sum of `terms` and what was summed before, aligned to the largest of them, with what is
/// below `kBits` bits of it dropped.
double core_step(double before, std::span<const double> terms) {
  double largest = std::fabs(before);
  for (const double term : terms) {
    largest = std::max(largest, std::fabs(term));
  }
  int exponent = 0;
  std::frexp(largest, &exponent);
  const double unit = std::ldexp(1.0, exponent - kBits);
  const double units = 1 / unit;  // a power of two
  double sum = std::trunc(before * units) * unit;
  for (const double term : terms) {
    sum += std::isfinite(term) ? std::trunc(term * units) * unit : term;
  }
  return largest == 0 ? 0 : sum;  // NaN stays
}

/// How a kernel adds up.
struct Adding {
  int64_t terms_in_core = kScaleBlock;  ///< before they are added outside of it
  DType outside = DType::f32;
};

/// The sum of products that are multiplied by their block's scale.
float sum_of(std::span<const double> products, std::span<const double> scales,
             const Adding& adding) {
  const auto count = static_cast<int64_t>(products.size());
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += adding.terms_in_core) {
    const int64_t end = std::min(count, begin + adding.terms_in_core);
    // Over several blocks, scales would have been multiplied into the operands.
    const bool scaled_before = adding.terms_in_core > kScaleBlock;
    double in_core = 0;
    for (int64_t i = begin; i < end; i += kStep) {
      double terms[kStep];
      const int64_t terms_here = std::min(kStep, end - i);
      const double scale = scaled_before ? scales[static_cast<size_t>(i / kScaleBlock)] : 1;
      for (int64_t t = 0; t < terms_here; ++t) {
        terms[t] = products[static_cast<size_t>(i + t)] * scale;
      }
      in_core = core_step(in_core, {terms, static_cast<size_t>(terms_here)});
    }
    const double scale = scaled_before ? 1 : scales[static_cast<size_t>(begin / kScaleBlock)];
    const auto sum = static_cast<float>(total + in_core * scale);
    total = adding.outside == DType::bf16 ? to_float(to_bf16(sum)) : sum;
  }
  return static_cast<float>(total);
}

class Fp8Sums : public testing::Test {
 protected:
  /// What check says of a product that is added up so, on a device whose tensor cores have `bits`.
  static std::optional<Mismatch> check(const std::string& operation, const std::string& shape,
                                       const Adding& adding, int bits = kBits, bool finite = true,
                                       uint64_t seed = 1) {
    const auto selected =
        select_cases({.operations = {operation}, .shapes = {shape}}, {Use::check});
    EXPECT_TRUE(selected.ok()) << selected.error().message;
    Random random = random_for(selected->front(), seed);
    const std::unique_ptr<Trial> trial = selected->front().info.make(random);
    if (!finite) {
      spoil(*trial, random);
    }
    MadeUpDevice device(bits);
    EXPECT_TRUE(trial->place(device, {}).ok());
    const std::vector<Expectation> expectations = expect_all_rows(*trial);
    multiply(*trial, adding);
    return compare(expectations);
  }

 private:
  static Tensor& named(Trial& trial, std::string_view name) {
    const auto tensors = trial.tensors();
    return **std::find_if(tensors.begin(), tensors.end(),
                          [&](const auto& tensor) { return tensor->name() == name; });
  }

  /// a and b are [rows, k], scales of blocks [rows, blocks] and [rows / 128, blocks], or one each.
  static void multiply(Trial& trial, const Adding& adding) {
    const Tensor& a = named(trial, "a");
    const Tensor& b = named(trial, "b");
    const Tensor& a_scale = named(trial, "a_scale");
    const Tensor& b_scale = named(trial, "b_scale");
    Tensor& out = named(trial, "out");
    const int64_t k = a.columns();
    const int64_t blocks = ceil_div(k, kScaleBlock);
    const bool of_blocks = a_scale.rows() > 1;
    std::vector<double> products(static_cast<size_t>(k));
    std::vector<double> scales(static_cast<size_t>(blocks));
    std::vector<double> a_row(static_cast<size_t>(k));
    std::vector<double> b_rows(static_cast<size_t>(b.rows() * k));
    for (int64_t i = 0; i < b.rows() * k; ++i) {
      b_rows[static_cast<size_t>(i)] = b.get(i / k, i % k);
    }
    for (int64_t r = 0; r < a.rows(); ++r) {
      for (int64_t i = 0; i < k; ++i) {
        a_row[static_cast<size_t>(i)] = a.get(r, i);
      }
      for (int64_t c = 0; c < b.rows(); ++c) {
        const double* b_row = b_rows.data() + c * k;
        std::transform(a_row.begin(), a_row.end(), b_row, products.begin(), std::multiplies<>());
        for (int64_t block = 0; block < blocks; ++block) {
          scales[static_cast<size_t>(block)] =
              of_blocks ? a_scale.get(r, block) * b_scale.get(c / kScaleBlock, block)
                        : a_scale.get(0, 0) * b_scale.get(0, 0);
        }
        out.set(r, c, sum_of(products, scales, adding));
      }
    }
  }
};

/// Operations of m x 136 sums of k products. Rounding to bf16 hides the errors of most sums: those
/// near zero show them.
struct Product {
  const char* operation;
  const char* rest;  // of the shape
  std::string shape(int64_t k, int64_t m = 32) const {
    return fmt::format("m={},n=136,k={},{}", m, k, rest);
  }
};
constexpr Product kProducts[] = {{"gemm_fp8_blockwise", "k-major,e4m3fn,scales=row-major"},
                                 {"gemm_skinny", "e4m3fn,tensor,out=f32"}};

TEST_F(Fp8Sums, ThoseOf128ProductsAddedInF32Pass) {
  for (const Product& each : kProducts) {
    for (const int64_t k : {128, 640, 2048}) {
      for (const bool finite : {true, false}) {
        for (uint64_t seed = 1; seed < 6; ++seed) {
          const auto mismatch = check(each.operation, each.shape(k, 4), {}, kBits, finite, seed);
          EXPECT_FALSE(mismatch) << each.operation << ", k " << k << ": " << mismatch->message;
        }
      }
    }
  }
}

TEST_F(Fp8Sums, ThoseThatStayInTheTensorCoresAreNoticed) {
  for (const Product& each : kProducts) {
    EXPECT_TRUE(check(each.operation, each.shape(2048), {.terms_in_core = 2048})) << each.operation;
    EXPECT_TRUE(check(each.operation, each.shape(7168, 8), {.terms_in_core = 7168}))
        << each.operation;
    EXPECT_TRUE(check(each.operation, each.shape(4096), {.terms_in_core = 1024})) << each.operation;
  }
}

TEST_F(Fp8Sums, ThoseOfBlocksKeptInBf16AreNoticed) {
  for (const Product& each : kProducts) {
    EXPECT_TRUE(check(each.operation, each.shape(2048), {.outside = DType::bf16}))
        << each.operation;
  }
}

// Devices that sum fp8 in f32 are held to it: there, what Hopper's tensor cores do is a fault.
TEST_F(Fp8Sums, WhoSumsInF32HasNoSuchTolerance) {
  for (const Product& each : kProducts) {
    EXPECT_TRUE(check(each.operation, each.shape(2048), {}, 24)) << each.operation;
  }
}

}  // namespace
}  // namespace weft::trial
