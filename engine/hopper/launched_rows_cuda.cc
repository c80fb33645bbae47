#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "arch/hopper/handle.h"
#include "base/divide.h"
#include "engine/hopper/best_tokens.h"
#include "engine/hopper/prefill.h"
#include "engine/hopper/rows.h"
#include "model/layer.h"

namespace weft::hopper {
namespace {

constexpr int32_t kNotYet = -1;  // in the report
constexpr int64_t kAhead = 2;    // steps that are launched before the first one's tokens are there

Status check(cudaError_t error, std::string_view what) {
  return error == cudaSuccess
             ? Status{}
             : device_error(fmt::format("cuda: {} failed: {}", what, cudaGetErrorString(error)));
}

class LaunchedRows : public Rows {
 public:
  LaunchedRows(const ModelConfig& config, const Weights& weights, const RunnerOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  Status create();
  Status feed(int row, std::span<const int32_t> tokens, int64_t first, int64_t rows) override;
  Status run_rows(std::span<const RowStep> rows, int64_t steps,
                  const Runner::OnToken& on_token) override;
  Status copy_logits(int row, float* to) override;
  std::vector<char*> caches() const override { return cache_list_; }
  Device& device() override { return *device_; }

 private:
  int64_t count() const { return options_.sequences; }
  cudaStream_t stream() { return static_cast<cudaStream_t>(device_->stream().native); }
  /// What a step reads of its rows, [count()] each: tokens, positions, sequences; of those that
  /// live, then of rows that nobody has, of a sequence of their own.
  int32_t* in(int64_t list) { return reinterpret_cast<int32_t*>(step_.data()) + list * count(); }
  int32_t* report(int64_t step) { return static_cast<int32_t*>(report_.get()) + step * count(); }
  Result<DeviceMemory> allocate(int64_t bytes, std::string_view what);
  Status launch_step(int64_t step);
  /// Waits for a step's token of a row.
  Result<int32_t> await(int64_t step, size_t row);

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  std::unique_ptr<Device> device_;
  DeviceMemory arena_, caches_, prompt_, step_;
  std::vector<char*> cache_list_;
  std::unique_ptr<Prefill> prefill_;
  Handle<void*, cudaFreeHost> report_;  // i32 [steps of a run][count()], mapped
  int64_t reported_ = 0;                // steps that it has room for
  std::vector<int> live_;               // by row of the last step
};

Result<DeviceMemory> LaunchedRows::allocate(int64_t bytes, std::string_view what) {
  auto memory = device_->allocate(static_cast<size_t>(bytes));
  if (!memory.ok()) {
    return device_error(fmt::format(
        "{}: {} needs {:.1f} GiB of {}, and there is not so much free: use fewer --slots or less "
        "--context",
        options_.device, config_.name, static_cast<double>(bytes) / (1 << 30), what));
  }
  return memory;
}

Status LaunchedRows::create() {
  constexpr int64_t kAligned = 256;
  WEFT_ASSIGN(device_, open_device(options_.device));
  PrefillPlaces places;
  int64_t bytes = 0;
  for (const Tensor& tensor : weights_.tensors()) {
    places.weight_places.push_back(bytes);
    bytes += round_up(tensor.bytes(), kAligned);
    places.scale_places.push_back(bytes);
    bytes += round_up(tensor.scale_count() * static_cast<int64_t>(sizeof(float)), kAligned);
  }
  std::vector<float> frequencies;
  for (const RopeSpec& rope : ropes(config_)) {
    const std::vector<float> one = inverse_frequencies(rope, 1);
    frequencies.insert(frequencies.end(), one.begin(), one.end());
  }
  const auto frequency_bytes = static_cast<int64_t>(frequencies.size() * sizeof(float));
  WEFT_ASSIGN(arena_, allocate(bytes + round_up(frequency_bytes, kAligned), "weights"));
  auto* const arena = reinterpret_cast<char*>(arena_.data());
  WEFT_TRY(put_weights(config_, weights_, options_.weights_seed, arena, places.weight_places,
                       places.scale_places, *device_));
  WEFT_TRY(device_->upload(arena + bytes, frequencies.data(), frequencies.size() * sizeof(float)));

  const int64_t cache = (count() + 1) * config_.kv_heads * options_.capacity * config_.head_dim *
                        static_cast<int64_t>(size_of(options_.kv));
  const int64_t each = round_up(cache, kAligned);
  WEFT_ASSIGN(caches_, allocate(2 * config_.layers * each, "caches"));
  for (int64_t i = 0; i < 2 * config_.layers; ++i) {
    cache_list_.push_back(reinterpret_cast<char*>(caches_.data()) + i * each);
  }
  places.weights = arena;
  places.caches = cache_list_;
  places.inverse_frequencies = reinterpret_cast<const float*>(arena + bytes);
  WEFT_ASSIGN(prefill_, Prefill::create(config_, weights_, std::move(places),
                                        {options_.kv, options_.round_activations},
                                        options_.capacity, *device_));
  WEFT_ASSIGN(prompt_, device_->allocate(static_cast<size_t>(options_.capacity) * 4));
  WEFT_TRY(check(cudaMemset(prompt_.data(), 0, prompt_.size()), "clearing tokens"));
  WEFT_ASSIGN(step_, device_->allocate(static_cast<size_t>(3 * count()) * 4));
  return {};
}

Status LaunchedRows::feed(int row, std::span<const int32_t> tokens, int64_t first, int64_t rows) {
  auto* const prompt = reinterpret_cast<int32_t*>(prompt_.data());
  WEFT_TRY(device_->upload(prompt + first, tokens.data(), tokens.size_bytes()));
  return prefill_->feed(prompt, first, first + rows, row);
}

Status LaunchedRows::launch_step(int64_t step) {
  WEFT_TRY(prefill_->step(in(0), {in(1), in(2)}, count()));
  const ConstMatrix logits = prefill_->step_logits();
  return check(launch_best_tokens({.logits = static_cast<const float*>(logits.data),
                                   .stride = logits.stride,
                                   .vocabulary = static_cast<int32_t>(config_.vocabulary),
                                   .tokens = in(0),
                                   .positions = in(1),
                                   .report = report(step)},
                                  static_cast<int>(count()), stream()),
               "choosing tokens");
}

Result<int32_t> LaunchedRows::await(int64_t step, size_t row) {
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

Status LaunchedRows::run_rows(std::span<const RowStep> rows, int64_t steps,
                              const Runner::OnToken& on_token) {
  live_.clear();
  std::vector<int32_t> lists(static_cast<size_t>(3 * count()));  // tokens, positions, sequences
  const auto size = static_cast<size_t>(count());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].live) {
      const size_t row = live_.size();
      lists[row] = rows[i].token;
      lists[size + row] = static_cast<int32_t>(rows[i].position);
      lists[2 * size + row] = static_cast<int32_t>(i);
      live_.push_back(static_cast<int>(i));
    }
  }
  std::fill(lists.begin() + static_cast<ptrdiff_t>(2 * size + live_.size()), lists.end(),
            static_cast<int32_t>(count()));
  WEFT_TRY(device_->upload(step_.data(), lists.data(), lists.size() * sizeof(int32_t)));
  if (reported_ < steps) {
    WEFT_TRY(device_->synchronize());
    Handle<void*, cudaFreeHost> larger;
    WEFT_TRY(check(
        cudaHostAlloc(larger.put(), static_cast<size_t>(steps) * size * 4, cudaHostAllocMapped),
        "allocating pinned memory"));
    std::swap(*report_.put(), *larger.put());
    reported_ = steps;
  }
  std::fill_n(report(0), steps * count(), kNotYet);
  std::vector<bool> ended(live_.size());
  int64_t launched = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const bool all_ended = std::find(ended.begin(), ended.end(), false) == ended.end();
    while (!all_ended && launched < std::min(steps, step + kAhead)) {
      WEFT_TRY(launch_step(launched++));
    }
    for (size_t row = 0; row < live_.size() && !all_ended; ++row) {
      WEFT_ASSIGN(const int32_t token, await(step, row));
      ended[row] = ended[row] || !on_token(live_[row], token);
    }
  }
  return device_->synchronize();
}

Status LaunchedRows::copy_logits(int row, float* to) {
  const ConstMatrix logits = prefill_->step_logits();
  const int64_t at = std::find(live_.begin(), live_.end(), row) - live_.begin();
  return check(cudaMemcpyAsync(to, static_cast<const float*>(logits.data) + at * logits.stride,
                               static_cast<size_t>(config_.vocabulary) * sizeof(float),
                               cudaMemcpyDeviceToHost, stream()),
               "copying logits");
}

}  // namespace

Result<std::unique_ptr<Rows>> create_launched_rows(const ModelConfig& config,
                                                   const Weights& weights,
                                                   const RunnerOptions& options) {
  if (const std::string why =
          refuse_prefill(config, weights, {options.kv, options.round_activations});
      !why.empty()) {
    return input_error(
        fmt::format("{} has no more than 8 slots on {}: {}", config.name, options.device, why));
  }
  auto rows = std::make_unique<LaunchedRows>(config, weights, options);
  WEFT_TRY(rows->create());
  return std::unique_ptr<Rows>(std::move(rows));
}

}  // namespace weft::hopper
