#include "engine/cpu_runner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "arch/cpu/limits.h"
#include "ops/token_logprob/op.h"

namespace weft {
namespace {

// Scoring keeps logits of all rows, so its chunks are smaller than prefill's.
constexpr int64_t kScoreRows = 128;

constexpr size_t kLimitBytes = size_t{512} << 20;  // of weights read to measure bandwidth

/// The longest stretch of memory that holds weights and nothing else.
std::span<const std::byte> longest_run(const Weights& weights) {
  constexpr ptrdiff_t kGap = 4096;
  std::vector<std::span<const std::byte>> parts;
  for (const Tensor& tensor : weights.tensors()) {
    if (tensor.mx.k == 0) {
      parts.emplace_back(tensor.data, static_cast<size_t>(tensor.bytes()));
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  std::span<const std::byte> best;
  std::span<const std::byte> run;
  for (const auto& part : parts) {
    const bool joined = !run.empty() && part.data() - (run.data() + run.size()) < kGap;
    const std::byte* begin = joined ? run.data() : part.data();
    run = {begin, part.data() + part.size()};
    best = run.size() > best.size() ? run : best;
  }
  return best;
}

}  // namespace

Result<std::unique_ptr<CpuRunner>> CpuRunner::create(const ModelConfig& config, Weights& weights,
                                                     const Options& options) {
  WEFT_ASSIGN(CpuSequence sequence, CpuSequence::create(config, options.capacity, options.kv,
                                                        std::max(options.chunk, kScoreRows)));
  std::unique_ptr<CpuRunner> runner(new CpuRunner(config, weights, std::move(sequence), options));
  WEFT_ASSIGN(runner->packed_,
              PackedWeights::choose(config, weights, runner->team_, options.compress_weights,
                                    runner->packed_time_));
  return runner;
}

CpuRunner::CpuRunner(const ModelConfig& config, const Weights& weights, CpuSequence sequence,
                     const Options& options)
    : config_(config),
      weights_(weights),
      sequence_(std::move(sequence)),
      team_(options.workers),
      interpreter_(config_, weights_, sequence_, team_, &packed_),
      chunk_(options.chunk),
      interrupted_(options.interrupted),
      round_activations_(options.round_activations),
      quantise_activations_(options.quantise_activations),
      profile_(options.profile) {}

Status CpuRunner::ensure(Loaded& program, int64_t rows, Logits logits, bool sample) {
  if (program == nullptr) {
    PlanOptions options;
    options.workers = team_.size();
    options.rows = rows;
    options.capacity = sequence_.capacity;
    options.kv = sequence_.kv;
    options.round_activations = round_activations_;
    options.quantise_activations = quantise_activations_;
    options.logits = logits;
    options.sample = sample;
    WEFT_ASSIGN(program,
                interpreter_.load(plan(config_, weights_, options), profile_ && rows == 1));
  }
  return {};
}

void CpuRunner::feed(std::span<const int32_t> ids, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    sequence_.tokens[static_cast<size_t>(i - begin)] = ids[static_cast<size_t>(i)];
    sequence_.positions[static_cast<size_t>(i - begin)] = static_cast<int32_t>(i);
  }
}

namespace {

/// For the interpreter, which knows one sequence.
std::function<bool(int32_t)> of_first(const Runner::OnToken& on_token) {
  return [&on_token](int32_t token) { return on_token(0, token); };
}

}  // namespace

Status CpuRunner::begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
                        const OnToken& on_token) {
  const Tokens prompt = prompts.front();
  sequence_.sampling = sampling;
  sequence_.history.assign(prompt.begin(), prompt.end());
  const auto length = static_cast<int64_t>(prompt.size());
  sequence_.length = length;
  for (int64_t begin = 0; begin < length; begin += chunk_) {
    const int64_t end = std::min(begin + chunk_, length);
    feed(prompt, begin, end);
    if (end < length) {
      WEFT_TRY(run_middle(end - begin));
    } else {
      WEFT_TRY(ensure(chunk_last_, chunk_, Logits::last, true));
      last_ = chunk_last_;
      interpreter_.run(*chunk_last_, end - begin, 1, of_first(on_token));
    }
  }
  return {};
}

Status CpuRunner::go_on() const {
  return interrupted_ && interrupted_() ? input_error("the call was interrupted") : Status();
}

Status CpuRunner::run_middle(int64_t rows) {
  WEFT_TRY(go_on());
  WEFT_TRY(ensure(chunk_middle_, chunk_, Logits::none, false));
  interpreter_.run(*chunk_middle_, rows, 1, {});
  return {};
}

Status CpuRunner::lengthen() {
  const Tokens fed = Tokens(sequence_.history).first(sequence_.history.size() - 1);
  const auto length = static_cast<int64_t>(fed.size());
  const int32_t token = sequence_.history.back();
  sequence_.length = length + 1;
  for (int64_t begin = 0; begin < length; begin += chunk_) {
    const int64_t end = std::min(begin + chunk_, length);
    feed(fed, begin, end);
    WEFT_TRY(run_middle(end - begin));
  }
  sequence_.tokens[0] = token;
  sequence_.positions[0] = static_cast<int32_t>(length);
  return {};
}

Status CpuRunner::decode(int64_t steps, Tokens /*ends*/, const OnToken& on_token) {
  WEFT_TRY(ensure(decode_, 1, Logits::last, true));
  last_ = decode_;
  const RopeScaling& scaling = config_.rope_scaling;
  const int64_t original = scaling.kind == RopeScaling::Kind::longrope
                               ? scaling.original_context
                               : std::numeric_limits<int64_t>::max();
  bool ended = false;
  const auto take = [&](int32_t token) {
    ended = !on_token(0, token);
    return !ended;
  };
  while (steps > 0 && !ended) {
    const int64_t position = sequence_.positions[0];
    if (sequence_.length <= original && position >= original) {
      WEFT_TRY(lengthen());
    }
    const int64_t run = position < original ? std::min(steps, original - position) : steps;
    interpreter_.run(*decode_, 1, run, take);
    steps -= run;
  }
  return {};
}

void CpuRunner::rate(std::span<const float> logits, Tokens next, std::vector<double>& logprobs) {
  const auto rows = static_cast<int64_t>(next.size());
  std::vector<float> rated(next.size());
  const TokenLogprobArgs args{
      .logits = {logits.data(), DType::f32, config_.vocabulary},
      .tokens = next.data(),
      .columns = config_.vocabulary,
      .out = rated.data(),
  };
  team_.run([&](int worker) {
    cpu::token_logprob(args, {rows * worker / team_.size(), rows * (worker + 1) / team_.size()});
  });
  logprobs.insert(logprobs.end(), rated.begin(), rated.end());
}

Result<Score> CpuRunner::score(Tokens ids) {
  WEFT_TRY(ensure(chunk_score_, kScoreRows, Logits::all, false));
  sequence_.history.clear();
  const auto length = static_cast<int64_t>(ids.size());
  sequence_.length = length;
  const auto vocabulary = static_cast<size_t>(config_.vocabulary);
  Score score;
  for (int64_t begin = 0; begin < length; begin += kScoreRows) {
    const int64_t end = std::min(begin + kScoreRows, length);
    WEFT_TRY(begin == 0 ? Status() : go_on());
    feed(ids, begin, end);
    interpreter_.run(*chunk_score_, end - begin, 1, {});
    const std::span<const float> logits = CpuInterpreter::logits(*chunk_score_);
    const int64_t next = std::min(end + 1, length);  // of the last row's token, if there is one
    rate(logits, ids.subspan(static_cast<size_t>(begin + 1), static_cast<size_t>(next - begin - 1)),
         score.logprobs);
    if (end == length) {
      const auto last = logits.subspan(static_cast<size_t>(end - begin - 1) * vocabulary);
      score.last_logits.assign(last.begin(), last.begin() + static_cast<ptrdiff_t>(vocabulary));
    }
  }
  return score;
}

std::span<const float> CpuRunner::logits(int /*sequence*/) {
  return last_ == nullptr ? std::span<const float>{} : CpuInterpreter::logits(*last_);
}

Result<double> CpuRunner::read_bandwidth() {
  const auto packed = packed_.memory();
  const auto memory = packed.empty() ? longest_run(weights_) : packed;
  return cpu::read_bandwidth(team_.size(), memory.first(std::min(memory.size(), kLimitBytes)))
      .median;
}

std::vector<OperationTime> CpuRunner::operation_times() const {
  return decode_ == nullptr ? std::vector<OperationTime>{}
                            : CpuInterpreter::operation_times(*decode_);
}

int64_t CpuRunner::position(int /*sequence*/) const {
  return sequence_.history.empty() ? 0 : sequence_.positions[0];
}

}  // namespace weft
