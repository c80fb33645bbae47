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

Status LaunchedSteps::list(std::span<const Row> rows, std::span<const FedChunk> fed) {
  fed_.clear();
  listed_ = std::ssize(rows);
  for (const FedChunk& chunk : fed) {
    fed_.push_back({std::ssize(chunk.tokens), chunk.first, chunk.sequence});
    listed_ += std::ssize(chunk.tokens);
  }
  std::vector<int32_t> lists(static_cast<size_t>(3 * listed_));
  size_t at = 0;
  const auto put = [&](const Row& row) {
    const auto pitch = static_cast<size_t>(listed_);
    lists[at] = row.token;
    lists[pitch + at] = row.position;
    lists[2 * pitch + at] = row.sequence;
    ++at;
  };
  std::for_each(rows.begin(), rows.end(), put);
  for (const FedChunk& chunk : fed) {
    auto position = static_cast<int32_t>(chunk.first);
    for (const int32_t token : chunk.tokens) {
      put({token, position++, chunk.sequence});
    }
  }
  return device_->upload(step_.data(), lists.data(), lists.size() * sizeof(int32_t));
}

Status LaunchedSteps::feed(std::span<const FedChunk> chunks) {
  WEFT_TRY(list({}, chunks));
  return prefill_->feed(in(0), {in(1), in(2)}, fed_);
}

Status LaunchedSteps::step_rows() {
  const auto step = [&] { return prefill_->step(in(0), {in(1), in(2)}, rows_, fed_); };
  if (!fed_.empty() || !prefill_->repeats()) {
    return step();
  }
  const Shape shape{rows_, listed_};
  if (stepped_ != shape) {  // which may make memory, too
    stepped_ = shape;
    return step();
  }
  if (recorded_ != shape) {
    Handle<cudaGraph_t, cudaGraphDestroy> graph;
    Handle<cudaGraphExec_t, cudaGraphExecDestroy> replay;
    WEFT_TRY(check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
                   "recording a step"));
    const Status recorded = step();
    WEFT_TRY(check(cudaStreamEndCapture(stream(), graph.put()), "recording a step"));
    WEFT_TRY(recorded);
    WEFT_TRY(check(cudaGraphInstantiate(replay.put(), graph.get(), 0), "recording a step"));
    std::swap(*replay_.put(), *replay.put());
    recorded_ = shape;
  }
  return check(cudaGraphLaunch(replay_.get(), stream()), "a step");
}

Status LaunchedSteps::launch_step(int64_t step) {
  WEFT_TRY(step_rows());
  const ConstMatrix logits = prefill_->step_logits();
  return launch_best_tokens({.logits = static_cast<const float*>(logits.data),
                             .stride = logits.stride,
                             .vocabulary = static_cast<int32_t>(vocabulary_),
                             .tokens = in(0),
                             .positions = in(1),
                             .report = report(step)},
                            static_cast<int>(rows_), stream());
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
                          const OnToken& on_token, std::span<const FedChunk> fed) {
  rows_ = std::ssize(rows);
  WEFT_TRY(list(rows, fed));
  if (reported_ < steps * rows_) {
    WEFT_TRY(device_->synchronize());
    Handle<void*, cudaFreeHost> larger;
    WEFT_TRY(check(
        cudaHostAlloc(larger.put(), static_cast<size_t>(steps * rows_) * 4, cudaHostAllocMapped),
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
      WEFT_TRY(launch_step(launched));
      fed_.clear();  // by the first one
      ++launched;
    }
    for (size_t row = 0; row < live; ++row) {
      WEFT_ASSIGN(const int32_t token, await(step, row));
      ended[row] = ended[row] || !on_token(row, token);
    }
  }
  return device_->synchronize();
}

Result<std::span<const int32_t>> LaunchedSteps::step(std::span<const Row> rows, size_t live,
                                                     std::span<const FedChunk> fed) {
  best_.resize(live);
  const auto keep = [&](size_t row, int32_t token) {
    best_[row] = token;
    return true;
  };
  WEFT_TRY(run(rows, live, 1, keep, fed));
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
