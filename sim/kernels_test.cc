// HIP kernels written for no simulator (sim/testdata/ordinary.hip), compiled and run, with the
// sanitizer on: every one must compute what it is known to compute, with no finding.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class OrdinaryKernels : public KernelTest {
 protected:
  void SetUp() override { load("ordinary"); }

  std::vector<float> random_floats(size_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(count);
    for (float& value : values) {
      value = uniform(random_);
    }
    return values;
  }

  std::mt19937 random_{testing::UnitTest::GetInstance()->random_seed() + 1U};
};

TEST_P(OrdinaryKernels, Add) {
  const int n = 1000;
  const auto a = array(random_floats(n));
  const auto b = array(random_floats(n));
  const auto c = array<float>(n);
  const LaunchReport report = run("add", {4}, {256}, a.data(), b.data(), c.data(), n);
  EXPECT_EQ(findings(report), "");
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(c[i], a[i] + b[i]);
  }
  // What was counted: each byte once, nothing else.
  EXPECT_EQ(report.counters.global_bytes_read, 8000U);
  EXPECT_EQ(report.counters.global_bytes_written, 4000U);
  EXPECT_EQ(report.counters.hbm_bytes_written, 32 * 128U);  // 4000 bytes lie in 32 lines
  EXPECT_EQ(report.counters.global_requests, report.counters.global_requests_least);
  EXPECT_EQ(report.counters.waves, 16U);
  EXPECT_EQ(report.counters.instructions[static_cast<size_t>(Class::vmem_store)], 16U);
}

TEST_P(OrdinaryKernels, BytesOfWords) {
  const auto out = array<uint32_t>(256);
  const LaunchReport report = run("bytes_of_words", {1}, {256}, out.data());
  EXPECT_TRUE(report.ok()) << findings(report);
  for (uint32_t t = 0; t < 256; ++t) {
    EXPECT_EQ(out[t], (t % 4 * 64 + t / 4 + 1) % 256);
  }
}

TEST_P(OrdinaryKernels, Reduction) {
  std::vector<float> values(100'000);
  for (float& value : values) {
    value = static_cast<float>(random_() % 8);  // sums stay exact
  }
  const auto in = array(values);
  const auto sum = array<float>(1);
  EXPECT_EQ(findings(run("reduce", {37}, {256}, in.data(), sum.data(), 100'000)), "");
  EXPECT_EQ(sum[0], std::accumulate(values.begin(), values.end(), 0.0F));
}

TEST_P(OrdinaryKernels, Scan) {
  const int n = 5 * 512 - 77;
  std::vector<int> values(n);
  for (int& value : values) {
    value = static_cast<int>(random_() % 1000) - 500;
  }
  const auto in = array(values);
  const auto out = array<int>(n);
  EXPECT_EQ(findings(run("scan", {5}, {512}, in.data(), out.data(), n)), "");
  int sum = 0;
  for (int i = 0; i < n; ++i) {
    sum = (i % 512 == 0 ? 0 : sum) + values[static_cast<size_t>(i)];
    ASSERT_EQ(out[static_cast<size_t>(i)], sum) << i;
  }
}

TEST_P(OrdinaryKernels, Transpose) {
  const int rows = 100;
  const int columns = 75;
  const auto in = array(random_floats(rows * columns));
  const auto out = array<float>(rows * columns);
  const LaunchReport report =
      run("transpose", {3, 4}, {32, 8}, in.data(), out.data(), rows, columns);
  EXPECT_EQ(findings(report), "");
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      ASSERT_EQ(out[c * rows + r], in[r * columns + c]);
    }
  }
  EXPECT_EQ(report.counters.lds_conflict_cycles, 0U);
}

TEST_P(OrdinaryKernels, BankConflictsAreCounted) {
  const auto in = array(random_floats(1024));
  const auto out = array<float>(1024);
  const LaunchReport report = run("transpose_conflicts", {1}, {32, 8}, in.data(), out.data());
  EXPECT_EQ(findings(report), "");
  // A wave reads two columns of 32 words, each in one of 32 banks: 32 cycles for each instead of
  // one. Sixteen waves' worth of reads (4 waves, 4 steps).
  EXPECT_EQ(report.counters.lds_conflict_cycles, 16U * 2 * 31);
  EXPECT_EQ(report.counters.lds_bytes_read, 4096U);
  EXPECT_EQ(report.counters.lds_bytes_written, 4096U);
}

TEST_P(OrdinaryKernels, Histogram) {
  std::vector<unsigned char> values(50'000);
  std::vector<unsigned> expected(256);
  for (unsigned char& value : values) {
    value = static_cast<unsigned char>(random_() % 200);
    ++expected[value];
  }
  const auto in = array(values);
  const auto bins = array<unsigned>(256);
  EXPECT_EQ(findings(run("histogram", {20}, {256}, in.data(), bins.data(), 50'000)), "");
  EXPECT_EQ(std::vector<unsigned>(bins.begin(), bins.end()), expected);
}

TEST_P(OrdinaryKernels, MatrixProduct) {
  const int m = 70;
  const int n = 45;
  const int k = 53;
  const auto a = array(random_floats(m * k));
  const auto b = array(random_floats(k * n));
  const auto c = array<float>(m * n);
  EXPECT_EQ(findings(run("gemm", {3, 5}, {16, 16}, a.data(), b.data(), c.data(), m, n, k)), "");
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t x = 0; x < k; ++x) {
        sum += static_cast<double>(a[i * k + x]) * b[x * n + j];
      }
      // 53 products of numbers below 1, each step rounded to 2^-24 of at most 53.
      ASSERT_NEAR(c[i * n + j], sum, 53 * 53 * 0x1p-24);
    }
  }
}

TEST_P(OrdinaryKernels, Arithmetic) {
  const int n = 200;
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] =
        std::ldexp(1.0 + static_cast<double>(random_()) / 0x1p32, static_cast<int>(i) % 14 - 10);
  }
  const auto x = array(values);
  const auto out = array<double>(8 * n);
  EXPECT_EQ(findings(run("arithmetic", {4}, {64}, x.data(), out.data(), n)), "");
  for (size_t i = 0; i < n; ++i) {
    const double d = values[i];
    const auto f = static_cast<float>(d);
    const double* r = &out[8 * i];
    const int64_t big = static_cast<int64_t>(d * 1000) * 123456789;
    EXPECT_EQ(r[0], d / (d + 3));  // the compiler's division is correctly rounded
    EXPECT_EQ(r[1], f / (f + 3));
    EXPECT_NEAR(r[2], d * d + 1, (d * d + 1) * 0x1p-9);  // three roundings to 11 bits
    EXPECT_EQ(r[3], static_cast<double>(big / 1000));
    EXPECT_EQ(r[4], static_cast<double>(big % 1000));
    EXPECT_EQ(r[5], std::sqrt(d));
    EXPECT_NEAR(r[6] / std::exp2(double{f}), 1, 0x1p-22);
    EXPECT_NEAR(r[7], std::log2(double{f}), 0x1p-20);
  }
}

TEST_P(OrdinaryKernels, Scratch) {
  const int n = 256;
  std::vector<int> values(n);
  for (int& value : values) {
    value = static_cast<int>(random_());
  }
  const auto in = array(values);
  const auto out = array<int>(n);
  EXPECT_EQ(findings(run("scratch", {2}, {128}, in.data(), out.data(), n)), "");
  for (int i = 0; i < n; ++i) {
    unsigned stack[64];
    for (int k = 0; k < 64; ++k) {
      stack[k] = static_cast<unsigned>(values[static_cast<size_t>((i + k) % n)]);
    }
    for (unsigned k = 0; k < 64; ++k) {
      stack[stack[k] % 64] ^= stack[k] + k;
    }
    unsigned sum = 0;
    for (const unsigned word : stack) {
      sum = sum * 31 + word;
    }
    ASSERT_EQ(static_cast<unsigned>(out[static_cast<size_t>(i)]), sum) << i;
  }
}

TEST_P(OrdinaryKernels, RegistersIndexedAtRunTime) {
  const auto in = array(random_floats(64 * 16));
  const auto out = array<float>(64);
  for (int n = 0; n < 16; ++n) {
    ASSERT_EQ(findings(run("dynamic_registers", {1}, {64}, in.data(), out.data(), n)), "");
    for (size_t i = 0; i < out.size(); ++i) {
      const int from = n * 3 & 15;
      const float picked = from == n ? 100 : in[i * 16 + static_cast<size_t>(from)];
      ASSERT_EQ(out[i], picked + 100) << n;
    }
  }
}

TEST_P(OrdinaryKernels, ResultsOfMatricesIndexedAtRunTime) {
  const auto in = array(random_floats(32));
  const auto out = array<float>(64);
  for (int n = 0; n < 16; ++n) {
    ASSERT_EQ(findings(run("dynamic_result", {1}, {64}, in.data(), out.data(), n)), "");
    for (size_t l = 0; l < out.size(); ++l) {
      const size_t row = static_cast<size_t>(n) / 4 * 8 + l / 32 * 4 + static_cast<size_t>(n) % 4;
      ASSERT_EQ(out[l], static_cast<float>(row) * in[l % 32]) << n << ", lane " << l;
    }
  }
}

TEST_P(OrdinaryKernels, CallsAndGlobals) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("calls", {1}, {64}, out.data())), "");
  const int table[] = {10, 20, 30, 40};
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], table[i % 3 + 1] + table[i % 3]);
  }
  const auto global = module_->global("table");
  ASSERT_TRUE(global.has_value());
  EXPECT_EQ(global->bytes, 16U);
  EXPECT_EQ(*reinterpret_cast<const int*>(global->address), 10);
}

TEST_P(OrdinaryKernels, StackOfUnknownSize) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("recursion", {1}, {64}, out.data(), 10)), "");
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], (std::array{55, 89, 144, 233}[i % 4]));
  }
  const int n = 101;  // a prime: every element once
  EXPECT_EQ(findings(run("dynamic_array", {1}, {64}, out.data(), n)), "");
  EXPECT_EQ(out[5], 100 * 101 * 201 / 6);
}

TEST_P(OrdinaryKernels, StackOverflow) {
  const auto out = array<int>(64);
  const auto overflows = [&](const char* kernel, int n, uint32_t stack_bytes) {
    options_.stack_bytes = stack_bytes;
    const LaunchReport report = run(kernel, {1}, {64}, out.data(), n);
    const std::string text = findings(report);
    return text.find("hipLimitStackSize") != std::string::npos;
  };
  // ROCm gives a kilobyte.
  EXPECT_TRUE(overflows("dynamic_array", 300, 1024));
  EXPECT_FALSE(overflows("dynamic_array", 300, 4096));
  EXPECT_TRUE(overflows("recursion", 10, 128));
  EXPECT_FALSE(overflows("recursion", 10, 1024));
}

TEST_P(OrdinaryKernels, PersistentWorkgroupsMeet) {
  // More workgroups than the host has threads, all of which must have begun before any can go on.
  const unsigned groups = 200;
  const auto counters = array<unsigned>(2);
  const auto out = array<unsigned>(groups);
  EXPECT_EQ(findings(run("persistent", {groups}, {128}, counters.data(), out.data(), 5)), "");
  for (const unsigned value : out) {
    ASSERT_EQ(value, 5U);
  }
}

TEST_P(OrdinaryKernels, CooperativeWorkgroupsMeet) {
  const unsigned groups = 200;
  const auto out = array<unsigned>(1024);
  options_.cooperative = true;
  for (options_.seed = 0; options_.seed <= 1; ++options_.seed) {
    EXPECT_EQ(findings(run("cooperative", {groups}, {128}, out.data(), 5, 1)), "");
    for (unsigned k = 0; k < groups; ++k) {
      ASSERT_EQ(out[512 + k], 5U);
    }
    EXPECT_FALSE(run("cooperative", {groups}, {128}, out.data(), 5, 0).ok());
  }
}

TEST_P(OrdinaryKernels, WorkgroupsGoRoundTheDies) {
  const auto out = array<unsigned>(100);
  EXPECT_EQ(findings(run("dies", {100}, {64}, out.data())), "");
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], i % 8);
  }
}

TEST_P(OrdinaryKernels, RefusesWhatDoesNotFit) {
  const auto out = array<unsigned>(1);
  const uint64_t argument = reinterpret_cast<uint64_t>(out.data());
  const auto bytes = std::as_bytes(std::span(&argument, 1));
  const Kernel& kernel = *module_->kernel("dies");
  const auto refused = [&](Dim3 grid, Dim3 block, uint32_t lds) {
    const Result<LaunchReport> report = device_.launch(kernel, grid, block, lds, bytes);
    return report.ok() ? "" : report.error().message;
  };
  EXPECT_NE(refused({1}, {1025}, 0).find("1025 threads"), std::string::npos);
  EXPECT_NE(refused({0}, {64}, 0).find("no workgroups"), std::string::npos);
  EXPECT_NE(refused({1}, {64}, 200'000).find("does not fit"), std::string::npos);
  const Result<LaunchReport> report = device_.launch(kernel, {1}, {64}, 0, {});
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("takes 8 bytes of arguments"), std::string::npos);
}

TEST_P(OrdinaryKernels, RefusesAnotherTarget) {
  Device other(GetParam() == Target::gfx942 ? Target::gfx950 : Target::gfx942);
  const Result<std::shared_ptr<Module>> module = other.load(test_kernels("ordinary", GetParam()));
  ASSERT_FALSE(module.ok());
  EXPECT_NE(module.error().message.find(cdna::name_of(GetParam())), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Targets, OrdinaryKernels, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
