#include "arch/cpu/limits.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "arch/cpu/amx.h"
#include "arch/cpu/dispatch.h"
#include "arch/cpu/threads.h"
#include "base/divide.h"
#include "base/pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "arch/cpu/limits.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/dot_units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// In scalar code: g++ 12's reduction of unsigned lanes overflows a signed integer.
template <class Vector>
uint32_t sum_of_lanes(Vector vector) {
  const hn::ScalableTag<uint32_t> d;
  HWY_ALIGN uint32_t lanes[hn::MaxLanes(d)];
  hn::Store(vector, d, lanes);
  uint32_t sum = 0;
  for (const uint32_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

/// Sums `size` bytes as kStreams sequential streams; what is left at the end stays unread.
template <int kStreams>
uint32_t read_streams(const std::byte* data, size_t size) {
  const hn::ScalableTag<uint32_t> d;
  const size_t part = size / kStreams / 64 * 64;
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < part; i += 64) {
    for (int s = 0; s < kStreams; ++s) {
      for (size_t j = 0; j < 64; j += 4 * hn::MaxLanes(d)) {
        sum =
            hn::Add(sum, hn::LoadU(d, reinterpret_cast<const uint32_t*>(data + s * part + i + j)));
      }
    }
  }
  return sum_of_lanes(sum);
}

uint32_t read_memory(const std::byte* data, size_t size, int streams) {
  switch (streams) {
    case 1:
      return read_streams<1>(data, size);
    case 2:
      return read_streams<2>(data, size);
    case 4:
      return read_streams<4>(data, size);
    default:
      return read_streams<8>(data, size);
  }
}

/// Independent sums: enough to hide the latency of two multiply-adds a cycle, in 16 registers.
inline constexpr int kSums = 12;

template <class Units>
float multiply_in_registers(int64_t iterations) {
  const FloatTag d;
  FloatVec sums[kSums];
  std::fill(sums, sums + kSums, hn::Zero(d));
  const auto a = hn::Set(d, 1.0f);
  const auto w = hn::Set(d, 0.5f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = Units::multiply_add(a, w, sum);
    }
  }
  auto total = hn::Zero(d);
  for (const auto& sum : sums) {
    total = hn::Add(total, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

/// Returns the operations done.
double multiply_f32(int64_t iterations, volatile float* sink) {
  *sink = multiply_in_registers<F32Units<float>>(iterations);
  return 2.0 * kSums * kFloatLanes * static_cast<double>(iterations);
}

#if HWY_TARGET == HWY_AVX3
/// Four independent sums of tiles, as a strip has them.
double multiply_in_tiles(int64_t iterations) {
  constexpr int64_t kEach = 8;  // iterations for one of these: as long as in registers
  cpu::configure_tiles(cpu::tile_config(2 * cpu::kTileRows));
  for (int64_t i = 0; i < iterations; i += kEach) {
    cpu::multiply_tiles<0, 4, 6>();
    cpu::multiply_tiles<1, 4, 7>();
    cpu::multiply_tiles<2, 5, 6>();
    cpu::multiply_tiles<3, 5, 7>();
  }
  cpu::release_tiles();
  const double sums = 4.0 * cpu::kTileRows * cpu::kTileRows;
  return 2.0 * sums * 32 * static_cast<double>(ceil_div(iterations, kEach));
}
#endif

double multiply_bf16(int64_t iterations, volatile float* sink) {
#if HWY_TARGET == HWY_AVX3
  if (cpu::current_isa() == cpu::Isa::amx_bf16) {
    return multiply_in_tiles(iterations);
  }
  if (cpu::current_isa() == cpu::Isa::avx512_bf16) {
    *sink = multiply_in_registers<Bf16Pairs>(iterations);
    return 4.0 * kSums * kFloatLanes * static_cast<double>(iterations);
  }
#endif
  return multiply_f32(iterations, sink);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs work(thread, round) on pinned threads, all starting a round together, and returns the
/// seconds of each round from the first start to the last end.
template <class Work>
std::vector<double> time_rounds(int threads, int rounds, const Work& work) {
  std::vector<Clock::time_point> starts(threads * rounds), ends(threads * rounds);
  std::barrier line(threads);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      pin_thread(t);
      for (int r = 0; r < rounds; ++r) {
        line.arrive_and_wait();
        starts[r * threads + t] = Clock::now();
        work(t, r);
        ends[r * threads + t] = Clock::now();
      }
    });
  }
  for (auto& thread : team) {
    thread.join();
  }
  std::vector<double> seconds;
  for (int r = 0; r < rounds; ++r) {
    const auto* start = starts.data() + r * threads;
    const auto* end = ends.data() + r * threads;
    seconds.push_back(std::chrono::duration<double>(*std::max_element(end, end + threads) -
                                                    *std::min_element(start, start + threads))
                          .count());
  }
  return seconds;
}

Rate rate_of(double amount, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {.best = amount / seconds.front(), .median = amount / seconds[seconds.size() / 2]};
}

template <class Multiply>
Rate arithmetic_peak(int threads, Multiply multiply) {
  constexpr int kRounds = 10;
  constexpr int64_t kIterations = 1 << 21;  // some 10 ms
  std::vector<double> operations(threads);
  const auto seconds = time_rounds(threads, kRounds, [&](int thread, int /*round*/) {
    volatile float sink = 0;
    operations[thread] = multiply(kIterations, &sink);
  });
  return rate_of(operations[0] * threads, seconds);
}

}  // namespace

Rate read_bandwidth(int threads, std::span<const std::byte> memory) {
  constexpr int kStreams[] = {1, 2, 4, 8};
  constexpr int kRounds = 5;  // of each
  const auto read = WEFT_CPU_DISPATCH(read_memory);
  const size_t part = memory.size() / threads / 4096 * 4096;
  const auto seconds = time_rounds(threads, 4 * kRounds, [&](int thread, int round) {
    volatile uint32_t sink = read(memory.data() + thread * part, part, kStreams[round % 4]);
    static_cast<void>(sink);
  });
  Rate result;
  for (int s = 0; s < 4; ++s) {
    std::vector<double> mine;
    for (int r = 0; r < kRounds; ++r) {
      mine.push_back(seconds[r * 4 + s]);
    }
    const Rate rate = rate_of(static_cast<double>(part) * threads, mine);
    result.best = std::max(result.best, rate.best);
    result.median = std::max(result.median, rate.median);
  }
  return result;
}

Result<Rate> read_bandwidth(int threads, size_t bytes) {
  WEFT_ASSIGN(const Pages pages, Pages::allocate(bytes, true));
  const size_t part = bytes / threads;
  // Untouched memory is one page of zeros; each thread touches its own part, as for weights.
  time_rounds(threads, 1, [&](int thread, int /*round*/) {
    std::fill_n(pages.data() + thread * part, part, std::byte{1});
  });
  return read_bandwidth(threads, {pages.data(), bytes});
}

int64_t last_cache_bytes() {
  // From the kernel, because glibc counts wrong on some processors.
  for (const char* index : {"index3", "index2"}) {
    std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + index + "/size");
    char unit = 0;
    if (int64_t kib = 0; file >> kib >> unit && unit == 'K') {
      return kib << 10;
    }
  }
  return int64_t{32} << 20;
}

Rate f32_peak(int threads) { return arithmetic_peak(threads, WEFT_CPU_DISPATCH(multiply_f32)); }
Rate bf16_peak(int threads) { return arithmetic_peak(threads, WEFT_CPU_DISPATCH(multiply_bf16)); }

}  // namespace weft::cpu
#endif  // HWY_ONCE
