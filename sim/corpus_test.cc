// HIP kernels in many idioms (sim/testdata/corpus.hip), compiled at -O0, -O1 and -O3, against what
// a host computes, with the sanitizer on. Triton's kernels: tests/corpus/.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "base/number.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class HipCorpus : public KernelTest {
 protected:
  /// Runs a body with each level's module loaded.
  template <class F>
  void each_level(F body) {
    for (const char* level : {"O0", "O1", "O3"}) {
      SCOPED_TRACE(level);
      load(std::string("corpus-") + level);
      if (IsSkipped() || HasFatalFailure()) {
        return;
      }
      body();
    }
  }
  template <class... Arguments>
  void good(const char* name, Dim3 grid, Dim3 block, Arguments... arguments) {
    EXPECT_EQ(findings(run(name, grid, block, arguments...)), "") << name;
  }

  template <class T = int>
  std::vector<T> integers(size_t count, int64_t low, int64_t high) {
    std::uniform_int_distribution<int64_t> uniform(low, high);
    std::vector<T> values(count);
    std::generate(values.begin(), values.end(), [&] { return static_cast<T>(uniform(random_)); });
    return values;
  }
  template <class T>
  static std::vector<T> copy(std::span<T> values) {
    return {values.begin(), values.end()};
  }

  std::mt19937_64 random_{testing::UnitTest::GetInstance()->random_seed() + 1U};
};

TEST_P(HipCorpus, WaveSums) {
  const std::vector<int> values = integers(4 * 64, -1000, 1000);
  std::vector<int> expected;
  for (size_t wave = 0; wave < 4; ++wave) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(64 * wave);
    expected.insert(expected.end(), 4, std::accumulate(begin, begin + 64, 0));
  }
  each_level([&] {
    const auto out = array<int>(16);
    good("wave_sums", {2}, {128}, array(values).data(), out.data());
    EXPECT_EQ(copy(out), expected);
  });
}

TEST_P(HipCorpus, Compact) {
  const std::vector<int> values = integers(1000, -10, 10);
  std::vector<int> expected;
  std::copy_if(values.begin(), values.end(), std::back_inserter(expected),
               [](int x) { return x > 0; });
  std::sort(expected.begin(), expected.end());
  each_level([&] {
    const auto out = array<int>(1000);
    const auto count = array<int>(1);
    good("compact", {3}, {256}, array(values).data(), out.data(), count.data(), 1000);
    ASSERT_EQ(static_cast<size_t>(count[0]), expected.size());
    std::sort(out.begin(), out.begin() + count[0]);
    EXPECT_EQ(std::vector<int>(out.begin(), out.begin() + count[0]), expected);
  });
}

TEST_P(HipCorpus, BlockScan) {
  const std::vector<int> integers_ = integers(2 * 512, -9, 9);
  const std::vector<float> values(integers_.begin(), integers_.end());
  std::vector<float> expected(values.size());
  for (ptrdiff_t b = 0; b < 1024; b += 512) {
    std::partial_sum(values.begin() + b, values.begin() + b + 512, expected.begin() + b);
  }
  each_level([&] {
    const auto out = array<float>(1024);
    good("block_scan", {2}, {512}, array(values).data(), out.data());
    EXPECT_EQ(copy(out), expected);
  });
}

TEST_P(HipCorpus, TiledProduct) {
  constexpr size_t kM = 50;
  constexpr size_t kN = 70;
  constexpr size_t kK = 45;
  const auto a = integers<float>(kM * kK, -8, 8);
  const auto b = integers<float>(kK * kN, -8, 8);
  std::vector<float> expected(kM * kN);
  for (size_t i = 0; i < kM * kN; ++i) {
    for (size_t k = 0; k < kK; ++k) {
      expected[i] += a[i / kN * kK + k] * b[k * kN + i % kN];
    }
  }
  each_level([&] {
    const auto c = array<float>(kM * kN);
    good("tiled_product", {3, 2}, {32, 8}, array(a).data(), array(b).data(), c.data(), int{kM},
         int{kN}, int{kK});
    EXPECT_EQ(copy(c), expected);
  });
}

TEST_P(HipCorpus, TransposeBytes) {
  const auto in = integers<uint8_t>(128 * 128, 0, 255);
  std::vector<uint8_t> expected(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    expected[i % 128 * 128 + i / 128] = in[i];
  }
  each_level([&] {
    const auto out = array<uint8_t>(in.size());
    good("transpose_bytes", {2, 2}, {64, 4}, array(in).data(), out.data(), 128);
    EXPECT_EQ(copy(out), expected);
  });
}

TEST_P(HipCorpus, BitonicSort) {
  const auto values = integers<unsigned>(1024, 0, UINT32_MAX);
  std::vector<unsigned> expected = values;
  std::sort(expected.begin(), expected.begin() + 512);
  std::sort(expected.begin() + 512, expected.end());
  each_level([&] {
    const auto data = array(values);
    good("bitonic_sort", {2}, {256}, data.data());
    EXPECT_EQ(copy(data), expected);
  });
}

TEST_P(HipCorpus, HistogramInDynamicLds) {
  constexpr int kBins = 300;
  const auto values = integers<uint16_t>(5000, 0, 65535);
  std::vector<uint64_t> expected(kBins);
  for (const uint16_t value : values) {
    ++expected[value % kBins];
  }
  each_level([&] {
    const auto bins = array<uint64_t>(kBins);
    dynamic_lds_ = kBins * 4;
    good("histogram_64", {5}, {256}, array(values).data(), bins.data(), 5000, kBins);
    dynamic_lds_ = 0;
    EXPECT_EQ(copy(bins), expected);
  });
}

TEST_P(HipCorpus, Stencil) {
  constexpr int kX = 37;
  constexpr int kY = 21;
  constexpr int kZ = 5;
  const auto in = integers<float>(kX * kY * kZ, -50, 50);
  const auto at = [&](int i, int j, int k) {
    const bool inside = i >= 0 && i < kX && j >= 0 && j < kY && k >= 0 && k < kZ;
    return inside ? in[static_cast<size_t>((k * kY + j) * kX + i)] : 0;
  };
  std::vector<float> expected;
  for (int n = 0; n < kX * kY * kZ; ++n) {
    const int i = n % kX;
    const int j = n / kX % kY;
    const int k = n / kX / kY;
    expected.push_back(at(i - 1, j, k) + at(i + 1, j, k) + at(i, j - 1, k) + at(i, j + 1, k) +
                       at(i, j, k - 1) + at(i, j, k + 1) - 6 * at(i, j, k));
  }
  each_level([&] {
    const auto out = array<float>(in.size());
    good("stencil_3d", {3, 3}, {16, 8}, array(in).data(), out.data(), kX, kY, kZ);
    EXPECT_EQ(copy(out), expected);
  });
}

/// Products a b^T of small integers, 64 long, which every format holds exactly.
template <class T, class U>
std::vector<U> product(const std::vector<T>& a, const std::vector<T>& b, size_t size) {
  std::vector<U> c(size * size);
  for (size_t i = 0; i < c.size(); ++i) {
    for (size_t k = 0; k < 64; ++k) {
      c[i] += static_cast<U>(a[i / size * 64 + k]) * static_cast<U>(b[i % size * 64 + k]);
    }
  }
  return c;
}

TEST_P(HipCorpus, MatrixInstructions) {
  const auto a = integers<float>(32 * 64, -8, 8);
  const auto b = integers<float>(32 * 64, -8, 8);
  const auto halves = [](const std::vector<float>& x) {
    std::vector<uint16_t> h;
    std::transform(x.begin(), x.end(), std::back_inserter(h),
                   [](float f) { return to_f16(f).bits; });
    return h;
  };
  const std::vector<double> a64(a.begin(), a.end());
  const std::vector<double> b64(b.begin(), b.end());
  const auto a8 = integers<int8_t>(16 * 64, -128, 127);
  const auto b8 = integers<int8_t>(16 * 64, -128, 127);
  each_level([&] {
    const auto c = array<float>(32 * 32);
    const auto ha = array(halves(a));
    const auto hb = array(halves(b));
    good("matrix_f16", {1}, {64}, ha.data(), hb.data(), c.data());
    EXPECT_EQ(copy(c.first(256)), (product<float, float>(a, b, 16)));
    good("matrix_f16_32", {1}, {64}, ha.data(), hb.data(), c.data());
    EXPECT_EQ(copy(c), (product<float, float>(a, b, 32)));
    const auto c64 = array<double>(256);
    good("matrix_f64", {1}, {64}, array(a64).data(), array(b64).data(), c64.data());
    EXPECT_EQ(copy(c64), (product<double, double>(a64, b64, 16)));
    const auto c8 = array<int>(256);
    good("matrix_i8", {1}, {64}, array(a8).data(), array(b8).data(), c8.data());
    EXPECT_EQ(copy(c8), (product<int8_t, int>(a8, b8, 16)));
  });
}

TEST_P(HipCorpus, Dots) {
  const auto a = integers<uint32_t>(200, 0, UINT32_MAX);
  const auto b = integers<uint32_t>(200, 0, UINT32_MAX);
  each_level([&] {
    const auto bytes = array<int>(200);
    const auto halves = array<float>(200);
    good("dots", {1}, {256}, array(a).data(), array(b).data(), bytes.data(), halves.data(), 200);
    for (size_t i = 0; i < 200; ++i) {
      int sum = static_cast<int>(i);
      double dot = 1;
      for (int k = 0; k < 32; k += 8) {
        sum += static_cast<int8_t>(a[i] >> k) * static_cast<int8_t>(b[i] >> k);
      }
      for (int k = 0; k < 32; k += 16) {
        const auto half = [&](uint32_t x) {
          return double{to_float(f16{static_cast<uint16_t>((x >> k & 0x3bff) | 0x400)})};
        };
        dot += half(a[i]) * half(b[i]);
      }
      ASSERT_EQ(bytes[i], sum);
      ASSERT_NEAR(halves[i], dot, 3 * 0x1p-22);  // numbers below 1, three roundings
    }
  });
}

TEST_P(HipCorpus, Packed) {
  // Integers and halves of them: exact, whatever is fused.
  const auto a = integers<float>(600, -20, 20);
  const auto b = integers<float>(600, -20, 20);
  std::vector<uint16_t> ha;
  std::vector<uint16_t> hb;
  for (size_t i = 0; i < 600; ++i) {
    ha.push_back(to_f16(a[i]).bits);
    hb.push_back(to_f16(b[i]).bits);
  }
  each_level([&] {
    const auto h = array<uint16_t>(600);
    const auto f = array<float>(600);
    good("packed", {2}, {256}, array(ha).data(), array(hb).data(), h.data(), array(a).data(),
         array(b).data(), f.data(), 300);
    for (size_t i = 0; i < 600; ++i) {
      const float less = i % 2 == 0 ? 1 : 2;
      ASSERT_EQ(to_float(f16{h[i]}), a[i] * b[i] + std::max(a[i], b[i]) - less);
      ASSERT_EQ(f[i], a[i] * b[i] + a[i ^ 1] + b[i] * (i % 2 == 0 ? 2.0F : -0.5F));
    }
  });
}

TEST_P(HipCorpus, Bodies) {
  std::uniform_real_distribution<double> uniform(-10, 10);
  std::vector<double> x(100);
  std::vector<double> mass(100);
  for (size_t i = 0; i < 100; ++i) {
    x[i] = uniform(random_);
    mass[i] = uniform(random_) + 11;
  }
  each_level([&] {
    const auto force = array<double>(100);
    good("bodies", {1}, {128}, array(x).data(), array(mass).data(), force.data(), 100);
    for (size_t i = 0; i < 100; ++i) {
      double f = 0;
      double size = 0;
      for (size_t j = 0; j < 100; ++j) {
        const double d = x[j] - x[i];
        const double r2 = d * d + 1.2345678901234567e-3;
        const double term = 6.67430e-11 * mass[i] * mass[j] * d / (r2 * std::sqrt(r2));
        f += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(force[i], f, size * 110 * 0x1p-53);  // some ten roundings a term, a hundred sums
    }
  });
}

TEST_P(HipCorpus, Hashes) {
  std::vector<uint64_t> values(300);
  std::generate(values.begin(), values.end(), std::ref(random_));
  each_level([&] {
    const auto out = array<uint64_t>(1200);
    good("hashes", {2}, {128}, array(values).data(), out.data(), 300);
    for (size_t i = 0; i < 300; ++i) {
      const uint64_t x = values[i];
      uint64_t z = x + 0x9e3779b97f4a7c15U;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
      z ^= z >> 31;
      __extension__ using Wide = unsigned __int128;
      ASSERT_EQ(out[4 * i], z);
      ASSERT_EQ(out[4 * i + 1], static_cast<uint64_t>((Wide{z} * x) >> 64));
      ASSERT_EQ(out[4 * i + 2], z + x + (z + x < z ? 1 : 0));
      ASSERT_EQ(out[4 * i + 3], std::rotl(z, static_cast<int>(i % 64)) / (x | 1) + z % 1000003);
    }
  });
}

TEST_P(HipCorpus, Bits) {
  auto values = integers<uint32_t>(256, 0, UINT32_MAX);
  values[3] = 0;
  each_level([&] {
    const auto out = array<uint32_t>(8 * 256);
    good("bits", {2}, {128}, array(values).data(), out.data(), 256);
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t x = values[i];
      const uint32_t y = values[(i + 1) % 256];
      const uint64_t both = uint64_t{x} << 32 | y;
      uint32_t reversed = 0;
      uint32_t differences = 5;
      for (int k = 0; k < 32; ++k) {
        reversed |= (x >> k & 1) << (31 - k);
      }
      for (int k = 0; k < 32; k += 8) {
        const int d = static_cast<int>(x >> k & 255) - static_cast<int>(y >> k & 255);
        differences += static_cast<uint32_t>(std::abs(d));
      }
      const auto byte = [&](int k) { return static_cast<uint32_t>(both >> (8 * k) & 255); };
      const std::vector<uint32_t> expected = {
          reversed,
          static_cast<uint32_t>(std::popcount(x) + 100 * std::countl_zero(x)),
          static_cast<uint32_t>(std::countr_zero(x)),
          x >> (y % 32) & ((1U << (y % 31)) - 1),
          __builtin_bswap32(x),
          static_cast<uint32_t>(both >> 7),
          byte(7) << 24 | byte(2) << 16 | byte(5) << 8 | byte(0),
          differences};
      ASSERT_EQ(copy(out.subspan(8 * i, 8)), expected) << x << " " << y;
    }
  });
}

TEST_P(HipCorpus, Assembler) {
  const auto values = integers<uint32_t>(100, 0, UINT32_MAX);
  each_level([&] {
    const auto out = array<uint32_t>(100);
    good("assembler", {1}, {128}, array(values).data(), out.data(), 100);
    for (uint32_t i = 0; i < 100; ++i) {
      ASSERT_EQ(out[i], ((values[i] ^ 0x12345678) << 2) + values[i] + i + 7 + 311);
    }
  });
}

TEST_P(HipCorpus, JoinedMasks) {
  each_level([&] {
    const auto out = array<int>(128);
    good("joined_masks", {1}, {128}, out.data());
    for (size_t i = 0; i < 128; ++i) {
      ASSERT_EQ(out[i], i % 64 < 32 ? 1 : i % 64 < 48 ? 5 : 7);
    }
  });
}

int divergent(int x) {
  int found = -1;
  int steps = 0;
  for (int a = 1; a < 40 && found < 0; ++a) {
    for (int b = a; a % 3 != x % 3 && b < 40; ++b) {
      ++steps;
      if (a * b >= x) {
        found = a * b == x ? a * 100 + b : found;
        break;
      }
    }
  }
  if (found < 0) {
    return -steps;
  }
  while (found % 7 != 0 && found <= 100000) {
    found += steps | 1;
  }
  return found;
}
TEST_P(HipCorpus, Divergent) {
  const std::vector<int> values = integers(500, 1, 600);
  std::vector<int> expected;
  std::transform(values.begin(), values.end(), std::back_inserter(expected), divergent);
  each_level([&] {
    const auto out = array<int>(500);
    good("divergent", {4}, {128}, array(values).data(), out.data(), 500);
    EXPECT_EQ(copy(out), expected);
  });
}

int interpret(const std::vector<uint8_t>& code, int x, int pc) {
  uint32_t stack[8] = {};
  int top = 0;
  for (int count = 0; count < 200; ++count) {
    const int op = code[static_cast<size_t>(pc++)];
    uint32_t& a = stack[(top + 7) % 8];
    uint32_t& b = stack[(top + 6) % 8];
    const auto signed_a = static_cast<int>(a);
    switch (op) {
      case 0:
        stack[top++ % 8] = static_cast<uint32_t>(x);
        break;
      case 1:
        stack[top++ % 8] = code[static_cast<size_t>(pc++)];
        break;
      case 2:
        b += a;
        --top;
        break;
      case 3:
        b -= a;
        --top;
        break;
      case 4:
        b *= a;
        --top;
        break;
      case 5:
        b ^= a;
        --top;
        break;
      case 6:
        a = -a;
        break;
      case 7:
        a = signed_a < 0 ? -a : a;
        break;
      case 8:
        std::swap(a, b);
        break;
      case 9:
        stack[top % 8] = a;
        ++top;
        break;
      case 10:
        a = static_cast<uint32_t>(signed_a >> 1);
        break;
      case 11:
        pc += signed_a > 0 ? 2 : 0;
        break;
      case 12:
        b = static_cast<int>(b) < signed_a ? b : a;
        --top;
        break;
      case 13:
        a &= 0xffff;
        break;
      default:
        count = 1000;
        break;
    }
    top = (top + 8) % 8;
  }
  return static_cast<int>(stack[(top + 7) % 8]);
}
TEST_P(HipCorpus, Interpreter) {
  auto code = integers<uint8_t>(1000, 0, 13);
  std::fill(code.begin(), code.begin() + 5, uint8_t{0});
  const std::vector<int> values = integers(300, -1000, 1000);
  std::vector<int> expected;
  for (int i = 0; i < 300; ++i) {
    expected.push_back(interpret(code, values[static_cast<size_t>(i)], i % 3));
  }
  each_level([&] {
    const auto out = array<int>(300);
    good("interpreter", {3}, {128}, array(code).data(), array(values).data(), out.data(), 300);
    EXPECT_EQ(copy(out), expected);
  });
}

TEST_P(HipCorpus, Recursion) {
  const std::vector<int> values = integers(100 * 16, -100, 100);
  std::vector<int> expected = values;
  for (auto begin = expected.begin(); begin != expected.end(); begin += 16) {
    std::sort(begin, begin + 16);
  }
  each_level([&] {
    const auto data = array(values);
    const auto numbers = array<int>(100);
    good("recursion", {1}, {128}, data.data(), numbers.data(), 100);
    const int fibonacci[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_EQ(numbers[i], fibonacci[i % 12]);
    }
    EXPECT_EQ(copy(data), expected);
  });
}

TEST_P(HipCorpus, Calls) {
  const std::vector<int> which = integers(200, 0, 99);
  const std::vector<int> values = integers(200, -1000, 1000);
  each_level([&] {
    const auto data = array(values);
    good("indirect_calls", {2}, {128}, array(which).data(), data.data(), 200);
    const auto areas = array<int>(200);
    good("virtual_calls", {2}, {128}, array(values).data(), areas.data(), 200);
    for (size_t i = 0; i < 200; ++i) {
      const int x = values[i];
      const int called = which[i] % 3 == 0 ? 2 * x : which[i] % 3 == 1 ? x * x : -x;
      ASSERT_EQ(data[i], called + (i % 2 == 0 ? 2 : 1));
      ASSERT_EQ(areas[i], x % 2 != 0 ? x * x : x * static_cast<int>(i));
    }
  });
}

TEST_P(HipCorpus, VariableArray) {
  const std::vector<int> values = integers(100, 0, 1000);
  each_level([&] {
    const auto out = array<int>(100);
    good("variable_array", {1}, {128}, array(values).data(), out.data(), 100);
    const auto size = static_cast<size_t>(values[0] % 16 + 4);
    for (size_t i = 0; i < 100; ++i) {
      uint32_t sum = 0;
      for (size_t k = 0; k < size; ++k) {
        const auto at = static_cast<size_t>(values[(i + k) % 100]) % size;
        sum = 31 * sum + static_cast<uint32_t>(values[(i + at) % 100]);
      }
      ASSERT_EQ(static_cast<uint32_t>(out[i]), sum);
    }
  });
}

TEST_P(HipCorpus, Structures) {
  struct Argument {
    char tag = 'x';
    double weight = 0.75;
    int16_t table[5] = {1, -2, 300, -400, 5};
    const float* in = nullptr;
    struct {
      uint8_t low = 200;
      int64_t high = 1000;
    } inner;
  };
  const auto values = integers<float>(90, -100, 100);
  const float coefficients[8] = {1, -1, 0.5F, -0.25F, 2, 4, -8, 3};
  each_level([&] {
    Argument argument;
    argument.in = array(values).data();
    const auto out = array<float>(90);
    good("structures", {1}, {128}, argument, out.data(), 90);
    for (size_t i = 0; i < 90; ++i) {
      ASSERT_EQ(out[i], 0.75F * values[i] +
                            static_cast<float>(argument.table[i % 5]) * coefficients[i % 8] + 'x' +
                            800);
    }
  });
}

TEST_P(HipCorpus, OddCopies) {
  const auto in = integers<uint8_t>(600, 0, 255);
  each_level([&] {
    const auto out = array<uint8_t>(7 * 100);
    const auto shorts = array<uint16_t>(100);
    good("odd_copies", {1}, {128}, array(in).data(), out.data(), shorts.data(), 100);
    for (size_t i = 0; i < 100; ++i) {
      for (size_t k = 0; k < 7; ++k) {
        const int expected = in[5 * i + 1 + k] ^ (k == 3 ? in[5 * i + 7] : 0);
        ASSERT_EQ(out[7 * i + k], expected);
      }
      ASSERT_EQ(shorts[i], in[3 * i] | in[3 * i + 1] << 8);
    }
  });
}

TEST_P(HipCorpus, Atomics) {
  const std::vector<int> values = integers(400, -1000, 1000);
  std::vector<int> ints = {0, 0, 0, 0, -1, 0};
  uint32_t product = 1;
  double sum = 0;
  float small = 0;
  for (const int x : values) {
    ints = {std::max(ints[0], x), std::min(ints[1], x), ints[2] ^ x,
            ints[3] | x,          ints[4] & (x | 1),    ints[5] - x};
    product *= 2U * static_cast<uint32_t>(x) + 1;
    sum += x;
    small += static_cast<float>(x % 8);
  }
  each_level([&] {
    const auto i = array(std::vector<int>{0, 0, 0, 0, -1, 0});
    const auto wraps = array(std::vector<uint32_t>{0, 0, 1});
    const auto f = array<float>(1);
    const auto d = array<double>(1);
    good("atomic_kinds", {2}, {256}, array(values).data(), i.data(), wraps.data(), f.data(),
         d.data(), 400);
    EXPECT_EQ(copy(i), ints);
    EXPECT_EQ(copy(wraps), (std::vector<uint32_t>{0, 0, product}));  // 400 rounds of ten
    EXPECT_EQ(f[0], small);
    EXPECT_EQ(d[0], sum);
  });
}

TEST_P(HipCorpus, SpinLock) {
  uint32_t expected = 0;
  for (int k = 0; k < 20 * 2 * 3; ++k) {
    expected = expected * 5 + 1;
  }
  each_level([&] {
    const auto lock = array<uint32_t>(1);
    const auto value = array<uint32_t>(1);
    good("spin_lock", {20}, {128}, lock.data(), value.data(), 3);
    EXPECT_EQ(value[0], expected);
  });
}

TEST_P(HipCorpus, GridBarrier) {
  const std::vector<int> values = integers(250, -1000, 1000);
  std::vector<int> expected = values;
  std::sort(expected.begin(), expected.end());
  each_level([&] {
    const auto data = array(values);
    const auto words = array<uint32_t>(2);
    good("grid_sort", {2}, {64}, data.data(), &words[0], &words[1], 250);
    EXPECT_EQ(copy(data), expected);
  });
}

TEST_P(HipCorpus, ChainedScan) {
  const std::vector<int> values = integers(10 * 256, -100, 100);
  std::vector<int> expected(values.size());
  std::partial_sum(values.begin(), values.end(), expected.begin());
  each_level([&] {
    const auto out = array<int>(values.size());
    good("chained_scan", {10}, {256}, array(values).data(), out.data(), array<int>(10).data(),
         array<uint32_t>(10).data());
    EXPECT_EQ(copy(out), expected);
  });
}

TEST_P(HipCorpus, TaskQueue) {
  const std::vector<int> values = integers(50 * 64, -100000, 100000);
  std::vector<int> expected;
  for (ptrdiff_t task = 0; task < 50; ++task) {
    const auto begin = values.begin() + 64 * task;
    expected.push_back(*std::max_element(begin, begin + 64));
  }
  each_level([&] {
    const auto out = array<int>(50);
    good("task_queue", {4}, {128}, array<uint32_t>(1).data(), array(values).data(), out.data(), 50);
    EXPECT_EQ(copy(out), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Targets, HipCorpus, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
