#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/divide.h"
#include "engine/hopper/launched_steps.h"
#include "engine/hopper/rows.h"
#include "engine/prefill/prefill.h"
#include "model/layer.h"
#include "ops/gemm_skinny/op.h"

namespace weft::hopper {
namespace {

class LaunchedRows : public Rows {
 public:
  LaunchedRows(const ModelConfig& config, const Weights& weights, const RunnerOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  Status create();
  Status feed(std::span<const FedChunk> chunks) override { return steps_.feed(chunks); }
  Status run_rows(std::span<const RowStep> rows, int64_t steps,
                  const Runner::OnToken& on_token) override;
  Status copy_logits(int row, float* to) override;
  int64_t most_launched() const override { return count(); }
  /// Few rows in bf16 are gemm_skinny's, which adds in an order of its own and is the fastest; so
  /// do products of few slots in MXFP4, which are twice as fast as those that do not.
  bool launches_alike() const override {
    return (count() > kSkinnyRows && config_.quantization.method != Quantization::Method::mxfp4) ||
           !options_.round_activations;
  }
  Result<std::span<const int32_t>> launch(std::span<const FedRow> rows,
                                          std::span<const FedChunk> chunks) override;
  Status copy_launched_logits(size_t index, float* to) override {
    return steps_.copy_logits(index, to);
  }
  std::vector<char*> caches() const override { return cache_list_; }
  Device& device() override { return *device_; }

 private:
  int64_t count() const { return options_.sequences; }
  /// Every step is of as many rows, so that a row's bits do not depend on how many are live: those
  /// that nobody has are of a sequence of their own.
  void fill(std::vector<FedRow>& rows) const {
    rows.resize(static_cast<size_t>(count()), {0, 0, static_cast<int32_t>(count())});
  }
  Result<DeviceMemory> allocate(int64_t bytes, std::string_view what);

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  std::unique_ptr<Device> device_;
  DeviceMemory arena_, caches_;
  std::vector<char*> cache_list_;
  std::unique_ptr<Prefill> prefill_;
  LaunchedSteps steps_;
  std::vector<int> live_;  // by row of the last step of run_rows()
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
  const std::vector<float> frequencies = inverse_frequencies(config_, 1);
  const auto frequency_bytes = static_cast<int64_t>(frequencies.size() * sizeof(float));
  WEFT_ASSIGN(arena_, allocate(bytes + round_up(frequency_bytes, kAligned), "weights"));
  auto* const arena = reinterpret_cast<char*>(arena_.data());
  WEFT_TRY(put_weights(config_, weights_, options_.weights_seed, arena, places.weight_places,
                       places.scale_places, *device_));
  WEFT_TRY(device_->upload(arena + bytes, frequencies.data(), frequencies.size() * sizeof(float)));

  const int64_t cache = (count() + 1) * config_.kv_heads * options_.capacity * config_.head_dim *
                        static_cast<int64_t>(size_of(options_.kv));
  const int64_t each = round_up(cache, kAligned);
  const int64_t caches = (config_.latent.rank > 0 ? 1 : 2) * config_.layers;
  WEFT_ASSIGN(caches_, allocate(caches * each, "caches"));
  for (int64_t i = 0; i < caches; ++i) {
    cache_list_.push_back(reinterpret_cast<char*>(caches_.data()) + i * each);
  }
  places.weights = arena;
  places.caches = cache_list_;
  places.sequences = count() + 1;
  places.widen = widen_on(*device_);
  places.inverse_frequencies = reinterpret_cast<const float*>(arena + bytes);
  const int64_t rows = count() + options_.fed;
  WEFT_ASSIGN(const int64_t tile_room, room_for_tiles(options_, weights_, device_->info()));
  WEFT_ASSIGN(
      prefill_,
      Prefill::create(config_, weights_, std::move(places),
                      {options_.kv, options_.round_activations}, options_.capacity, *device_, rows,
                      {.chunks = options_.exact, .steps = options_.exact && launches_alike()},
                      tile_room));
  return steps_.create(*prefill_, *device_, config_.vocabulary, rows);
}

Status LaunchedRows::run_rows(std::span<const RowStep> rows, int64_t steps,
                              const Runner::OnToken& on_token) {
  live_.clear();
  std::vector<FedRow> stepped;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].live) {
      stepped.push_back(
          {rows[i].token, static_cast<int32_t>(rows[i].position), static_cast<int32_t>(i)});
      live_.push_back(static_cast<int>(i));
    }
  }
  fill(stepped);
  return steps_.run(stepped, live_.size(), steps,
                    [&](size_t row, int32_t token) { return on_token(live_[row], token); });
}

Result<std::span<const int32_t>> LaunchedRows::launch(std::span<const FedRow> rows,
                                                      std::span<const FedChunk> chunks) {
  std::vector<FedRow> stepped(rows.begin(), rows.end());
  fill(stepped);
  return steps_.step(stepped, rows.size(), chunks);
}

Status LaunchedRows::copy_logits(int row, float* to) {
  return steps_.copy_logits(
      static_cast<size_t>(std::find(live_.begin(), live_.end(), row) - live_.begin()), to);
}

}  // namespace

Result<std::unique_ptr<Rows>> create_launched_rows(const ModelConfig& config,
                                                   const Weights& weights,
                                                   const RunnerOptions& options) {
  if (const std::string why =
          refuse_prefill(Arch::hopper, config, weights, {options.kv, options.round_activations});
      !why.empty()) {
    return input_error(
        fmt::format("{} has no more than 8 slots on {}: {}", config.name, options.device, why));
  }
  auto rows = std::make_unique<LaunchedRows>(config, weights, options);
  WEFT_TRY(rows->create());
  return std::unique_ptr<Rows>(std::move(rows));
}

}  // namespace weft::hopper
