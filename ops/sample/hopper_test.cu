// sample on a resident CTA against the reference in double.
#include "ops/sample/hopper.cuh"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace weft::hopper {
namespace {

struct Case {
  std::vector<float> logits;
  std::vector<int32_t> history;
  SamplingOptions options;
  float uniform = 0;
};

__global__ void __launch_bounds__(Team::kThreads)
    sample_one(float* logits, int vocabulary, SamplingOptions options, const uint32_t* seen,
               float uniform, uint2* kept, int32_t* token) {
  __shared__ SampleScratch scratch;
  __shared__ float team_scratch[2 * Team::kWarps];
  const auto thread = static_cast<int>(threadIdx.x);
  const Team team{thread, thread / 32, thread % 32, team_scratch};
  const int32_t drawn = sample_row(team, logits, vocabulary, options, seen, uniform, kept, scratch);
  if (thread == 0) {
    *token = drawn;
  }
}

/// Device memory for the largest vocabulary.
class Memory {
 public:
  explicit Memory(size_t vocabulary) {
    EXPECT_EQ(cudaMalloc(&logits_, vocabulary * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&seen_, (vocabulary + 31) / 32 * sizeof(uint32_t)), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&kept_, vocabulary * sizeof(uint2)), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&token_, sizeof(int32_t)), cudaSuccess);
  }
  ~Memory() {
    cudaFree(logits_);
    cudaFree(seen_);
    cudaFree(kept_);
    cudaFree(token_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int32_t sample(const Case& of) {
    const size_t vocabulary = of.logits.size();
    std::vector<uint32_t> seen((vocabulary + 31) / 32);
    for (const int32_t id : of.history) {
      seen[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
    }
    cudaMemcpy(logits_, of.logits.data(), vocabulary * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(seen_, seen.data(), seen.size() * sizeof(uint32_t), cudaMemcpyHostToDevice);
    sample_one<<<1, Team::kThreads>>>(logits_, static_cast<int>(vocabulary), of.options, seen_,
                                      of.uniform, kept_, token_);
    int32_t token = -1;
    EXPECT_EQ(cudaMemcpy(&token, token_, sizeof(token), cudaMemcpyDeviceToHost), cudaSuccess);
    return token;
  }

 private:
  float* logits_ = nullptr;
  uint32_t* seen_ = nullptr;
  uint2* kept_ = nullptr;
  int32_t* token_ = nullptr;
};

int32_t reference_token(const Case& of, double uniform, float top_p) {
  std::vector<float> logits = of.logits;
  SampleArgs args;
  args.logits = logits.data();
  args.vocabulary = static_cast<int64_t>(logits.size());
  args.options = of.options;
  args.options.top_p = top_p;
  args.history = of.history;
  return reference::sample(args, uniform);
}

/// What the reference draws, also just beside where one token ends and the next begins.
bool is_right(const Case& of, int32_t token) {
  for (const double off : {0.0, -2e-6, 2e-6}) {
    for (const float wider : {0.0f, -2e-6f, 2e-6f}) {
      const float top_p = of.options.top_p < 1 ? of.options.top_p + wider : of.options.top_p;
      if (reference_token(of, std::min(std::max(of.uniform + off, 0.0), 1.0), top_p) == token) {
        return true;
      }
    }
  }
  return false;
}

class HopperSample : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "there is no NVIDIA GPU here";
    }
  }
};

TEST_F(HopperSample, DrawsWhatTheReferenceDraws) {
  constexpr size_t kMost = 128256;
  Memory memory(kMost);
  std::mt19937 random(11);
  const auto one_of = [&](auto... values) {
    const std::vector<double> list{static_cast<double>(values)...};
    return list[random() % list.size()];
  };
  std::uniform_real_distribution<float> unit(0, 1);
  for (int round = 0; round < 240; ++round) {
    Case of;
    of.logits.resize(
        static_cast<size_t>(one_of(1, 2, 5, 31, 33, 200, 257, 1000, 8064, 50257, kMost)));
    std::normal_distribution<float> normal(0, static_cast<float>(one_of(0.01, 1, 3, 8)));
    for (float& x : of.logits) {
      x = normal(random);
    }
    if (one_of(0, 1, 2) == 0) {  // many equals
      for (float& x : of.logits) {
        x = std::round(x);
      }
    }
    if (one_of(0, 1, 2, 3) == 0) {
      for (size_t i = 0; i < of.logits.size(); i += 1 + random() % 7) {
        of.logits[i] = random() % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                         : -std::numeric_limits<float>::infinity();
      }
    }
    of.options.temperature = static_cast<float>(one_of(0.3, 0.8, 1, 2));
    of.options.top_k = static_cast<int32_t>(one_of(0, 0, 1, 2, 40, 256, 257, 5000));
    of.options.top_p = static_cast<float>(one_of(1, 1, 0.05, 0.5, 0.9, 0.95, 0.999));
    of.options.min_p = static_cast<float>(one_of(0, 0, 0.02, 0.3));
    of.options.repetition_penalty = static_cast<float>(one_of(1, 1, 1.2, 0.8));
    for (int i = 0; i < 30; ++i) {
      of.history.push_back(static_cast<int32_t>(random() % of.logits.size()));
    }
    for (int draw = 0; draw < 3; ++draw) {
      of.uniform = draw == 0 ? static_cast<float>(one_of(1e-3, 0.999)) : unit(random);
      const int32_t token = memory.sample(of);
      EXPECT_TRUE(is_right(of, token))
          << "round " << round << ": " << token << " in place of "
          << reference_token(of, of.uniform, of.options.top_p) << " of " << of.logits.size()
          << ", temperature " << of.options.temperature << ", top-k " << of.options.top_k
          << ", top-p " << of.options.top_p << ", min-p " << of.options.min_p << ", penalty "
          << of.options.repetition_penalty << ", uniform " << of.uniform;
      EXPECT_EQ(memory.sample(of), token) << "round " << round;
    }
  }
}

TEST_F(HopperSample, AllNaNIsTheFirst) {
  Memory memory(1000);
  Case of;
  of.logits.assign(1000, std::numeric_limits<float>::quiet_NaN());
  for (const float top_p : {1.0f, 0.9f}) {
    of.options.temperature = 1;
    of.options.top_p = top_p;
    EXPECT_EQ(memory.sample(of), 0);
  }
}

}  // namespace
}  // namespace weft::hopper
