#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "engine/hopper/best_tokens.h"
#include "engine/hopper/launched_steps.h"

namespace weft::hopper {
namespace {

constexpr int32_t kNotYet = -1;  // in the report
constexpr int64_t kAhead = 2;    // steps that are launched before the first one's tokens are there

Status check(cudaError_t error, std::string_view what) {
  return error == cudaSuccess
             ? Status{}
             : device_error(fmt::format("cuda: {} failed: {}", what, cudaGetErrorString(error)));
}

}  // namespace

Status LaunchedSteps::create(Prefill& prefill, Device& device, int64_t vocabulary, int64_t rows) {
  prefill_ = &prefill;
  device_ = &device;
  vocabulary_ = vocabulary;
  WEFT_ASSIGN(step_, device.allocate(static_cast<size_t>(3 * rows) * 4));
  return {};
}

Status LaunchedSteps::launch_step(int64_t step) {
  WEFT_TRY(prefill_->step(in(0), {in(1), in(2)}, rows_));
  const ConstMatrix logits = prefill_->step_logits();
  return check(launch_best_tokens({.logits = static_cast<const float*>(logits.data),
                                   .stride = logits.stride,
                                   .vocabulary = static_cast<int32_t>(vocabulary_),
                                   .tokens = in(0),
                                   .positions = in(1),
                                   .report = report(step)},
                                  static_cast<int>(rows_), stream()),
               "choosing tokens");
}

Result<int32_t> LaunchedSteps::await(int64_t step, size_t row) {
  const std::atomic_ref<int32_t> token(report(step)[row]);
  for (uint32_t spins = 0; token.load(std::memory_order_acquire) == kNotYet; ++spins) {
    if (spins % 1024 == 0) {
      const cudaError_t state = cudaStreamQuery(stream());
      if (state != cudaErrorNotReady && token.load(std::memory_order_acquire) == kNotYet) {
        return check(state, "a step").ok() ? device_error("cuda: a step left no token")
                                           : check(state, "a step").error();
      }
    }
    __builtin_ia32_pause();
  }
  return token.load(std::memory_order_relaxed);
}

Status LaunchedSteps::run(std::span<const Row> rows, size_t live, int64_t steps,
                          const OnToken& on_token) {
  const size_t size = rows.size();
  rows_ = std::ssize(rows);
  std::vector<int32_t> lists(3 * size);
  for (size_t i = 0; i < size; ++i) {
    lists[i] = rows[i].token;
    lists[size + i] = rows[i].position;
    lists[2 * size + i] = rows[i].sequence;
  }
  WEFT_TRY(device_->upload(step_.data(), lists.data(), lists.size() * sizeof(int32_t)));
  if (reported_ < steps * rows_) {
    WEFT_TRY(device_->synchronize());
    Handle<void*, cudaFreeHost> larger;
    WEFT_TRY(check(
        cudaHostAlloc(larger.put(), static_cast<size_t>(steps) * size * 4, cudaHostAllocMapped),
        "allocating pinned memory"));
    std::swap(*report_.put(), *larger.put());
    reported_ = steps * rows_;
  }
  std::fill_n(report(0), steps * rows_, kNotYet);
  std::vector<bool> ended(live);
  int64_t launched = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) {
      break;
    }
    while (launched < std::min(steps, step + kAhead)) {
      WEFT_TRY(launch_step(launched++));
    }
    for (size_t row = 0; row < live; ++row) {
      WEFT_ASSIGN(const int32_t token, await(step, row));
      ended[row] = ended[row] || !on_token(row, token);
    }
  }
  return device_->synchronize();
}

Result<std::span<const int32_t>> LaunchedSteps::step(std::span<const Row> rows, size_t live) {
  best_.resize(live);
  WEFT_TRY(run(rows, live, 1, [&](size_t row, int32_t token) {
    best_[row] = token;
    return true;
  }));
  return std::span<const int32_t>(best_);
}

Status LaunchedSteps::copy_logits(size_t row, float* to) {
  const ConstMatrix logits = prefill_->step_logits();
  return check(
      cudaMemcpyAsync(
          to, static_cast<const float*>(logits.data) + static_cast<int64_t>(row) * logits.stride,
          static_cast<size_t>(vocabulary_) * sizeof(float), cudaMemcpyDeviceToHost, stream()),
      "copying logits");
}

}  // namespace weft::hopper
