#include "engine/cpu_batch_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/divide.h"
#include "program/planner.h"

namespace weft {

Result<std::unique_ptr<CpuBatchRunner>> CpuBatchRunner::create(const ModelConfig& config,
                                                               Weights& weights,
                                                               const Options& options) {
  WEFT_ASSIGN(CpuSequence sequences,
              CpuSequence::create_paged(config, options.capacity, options.pages + 1, options.kv,
                                        std::max(options.most_fed, kRows)));
  std::unique_ptr<CpuBatchRunner> runner(
      new CpuBatchRunner(config, weights, std::move(sequences), options));
  std::optional<double> time;
  WEFT_ASSIGN(runner->packed_, PackedWeights::choose(config, weights, runner->team_,
                                                     options.compress_weights, time));
  WEFT_TRY(runner->load(weights, options));
  return runner;
}

CpuBatchRunner::CpuBatchRunner(const ModelConfig& config, const Weights& weights,
                               CpuSequence sequences, const Options& options)
    : config_(config),
      sequences_(std::move(sequences)),
      team_(options.workers),
      interpreter_(config_, weights, sequences_, team_, &packed_),
      most_fed_(options.most_fed) {}

Status CpuBatchRunner::load(const Weights& weights, const Options& options) {
  PlanOptions plans;
  plans.workers = team_.size();
  plans.capacity = options.capacity;
  plans.kv = options.kv;
  plans.round_activations = options.round_activations;
  plans.quantise_activations = options.quantise_activations;
  plans.sample = false;
  plans.rows = most_fed_;
  plans.logits = Logits::none;
  plans.cut_anywhere = options.exact;
  WEFT_ASSIGN(chunk_, interpreter_.load(plan(config_, weights, plans)));
  plans.rows = 1;
  plans.sequences = kRows;
  plans.attention_tasks *= kRows;  // a sequence's keys are split as if it were alone
  plans.logits = Logits::last;
  Program decode = plan(config_, weights, plans);
  logits_ = decode.logits;
  WEFT_ASSIGN(decode_, interpreter_.load(std::move(decode)));
  return {};
}

Status CpuBatchRunner::feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) {
  // Kernels for few rows sum in another order than those for many. Rows are added until no call of
  // one has few: what they write is behind the prompt, where it is written anew before it is read.
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t rows = std::min(most_fed_, round_up(count, kFedBeyond));
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    sequences_.tokens[i] = r < count ? tokens[i] : 0;
    sequences_.positions[i] = static_cast<int32_t>(first + r);
    sequences_.tables[i] = table;
  }
  interpreter_.run(*chunk_, rows, 1, {});
  return {};
}

Result<std::span<float>> CpuBatchRunner::step(std::span<const StepRow> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    sequences_.tokens[i] = rows[i].token;
    sequences_.positions[i] = rows[i].position;
    sequences_.tables[i] = rows[i].table;
  }
  interpreter_.run(*decode_, static_cast<int64_t>(rows.size()), 1, {});
  const std::span<std::byte> bytes = CpuInterpreter::buffer(*decode_, logits_, 0);
  return std::span(reinterpret_cast<float*>(bytes.data()),
                   rows.size() * static_cast<size_t>(config_.vocabulary));
}

Status CpuBatchRunner::copy_page(int32_t from, int32_t to) {
  const auto bytes = static_cast<size_t>(config_.kv_heads * kKvPage * config_.head_dim) *
                     static_cast<size_t>(size_of(sequences_.kv));
  for (const auto* pages : {&sequences_.keys, &sequences_.values}) {
    for (const Pages& layer : *pages) {
      std::memcpy(layer.data() + static_cast<size_t>(to) * bytes,
                  layer.data() + static_cast<size_t>(from) * bytes, bytes);
    }
  }
  return {};
}

}  // namespace weft
