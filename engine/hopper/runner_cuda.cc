#include "engine/hopper/runner.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "arch/device.h"
#include "arch/hopper/device.h"
#include "arch/hopper/handle.h"
#include "arch/hopper/limits.h"
#include "base/pages.h"
#include "engine/hopper/decode_kernel.h"
#include "engine/hopper/kv_pages.h"
#include "engine/hopper/launched_steps.h"
#include "engine/hopper/lower.h"
#include "engine/hopper/rows.h"
#include "engine/hopper/weight_stages.h"
#include "engine/hopper/weights_kernel.h"
#include "engine/prefill/prefill.h"
#include "engine/resident/hold.h"
#include "engine/resident/readback.h"
#include "engine/resident/sequence.h"
#include "engine/score.h"
#include "model/layer.h"
#include "ops/gemm_skinny/op.h"
#include "ops/linear/hopper_layout.h"
#include "ops/sample/op.h"
#include "program/planner.h"
#include "program/verify.h"

namespace weft::hopper {
namespace {

// Enough bytes on their way for the memory's full rate; more only slows what SMs tell one another.
constexpr int kBytesInFlight = 98304;
constexpr int kBytesInFlightWithExperts = 65536;  // of one loader, which is faster, in small layers
constexpr int kBytesInFlightWithMx = 98304;       // likewise, of pages that are made of more copies
// A worker's weights of a layer: reading more takes much longer than what SMs tell one another.
constexpr double kSmallLayerBytes = 3 << 20;
constexpr int kThrottledBytesInFlight = 49152;
constexpr int kStarvedBytes = 65536;
constexpr int kFewestInFlight = 1;  // of a loader
constexpr int64_t kKeptBytes = 8;   // of a token that is left to draw from

Status check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) {
    return {};
  }
  return device_error(fmt::format("cuda: {} failed: {}", what, cudaGetErrorString(error)));
}

/// Host memory that the device reads and writes in place.
class Mapped {
 public:
  Status allocate(size_t bytes) {
    return check(cudaHostAlloc(data_.put(), bytes, cudaHostAllocMapped),
                 "allocating pinned memory");
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  Handle<void*, cudaFreeHost> data_;
};

/// Copies to the device while a kernel runs there.
class SideStream {
 public:
  Status create() {
    return check(cudaStreamCreateWithFlags(stream_.put(), cudaStreamNonBlocking),
                 "making a stream");
  }
  /// `from`: pinned.
  cudaError_t copy(uint32_t* to, const uint32_t* from) const {
    return cudaMemcpyAsync(to, from, sizeof(*to), cudaMemcpyHostToDevice, stream_.get());
  }
  cudaError_t finish() const { return cudaStreamSynchronize(stream_.get()); }

 private:
  StreamHandle stream_;
};

class HopperRunner : public Runner, public Subject, public Rows {
 public:
  HopperRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  Status create();
  /// Why the resident kernel cannot run this model's steps, if that is so.
  const std::optional<Error>& refusal() const { return refusal_; }

  Status begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
               const OnToken& on_token) override;
  Status decode(int64_t steps, Tokens ends, const OnToken& on_token) override;
  Result<Score> score(Tokens ids) override;
  void end(int sequence) override { ended_ |= 1u << sequence; }
  int sequences() const override { return options_.sequences; }
  std::span<const float> logits(int sequence) override;
  int64_t position(int sequence) const override { return at(sequence).position; }
  int64_t capacity() const override { return options_.capacity; }
  DType kv() const override { return options_.kv; }
  int workers() const override { return static_cast<int>(program_.workers.size()); }
  Result<double> read_bandwidth() override;
  int64_t saved_bytes() const override { return lowered_.saved_bytes; }
  std::vector<OperationTime> operation_times() const override;

  // As a Subject.
  const Program& program() const override { return program_; }
  Result<std::optional<int32_t>> run(int32_t token, int64_t position, int32_t end) override;
  bool keeps(BufferId id) const override { return kept_buffers(program_)[static_cast<size_t>(id)]; }
  Result<Image> read(BufferId id, size_t worker) override;

  // As Rows.
  Status feed(std::span<const FedChunk> chunks) override { return launched_.feed(chunks); }
  Status run_rows(std::span<const RowStep> rows, int64_t steps, const OnToken& on_token) override;
  Status copy_logits(int row, float* to) override;
  Result<std::span<const int32_t>> launch(std::span<const FedRow> rows,
                                          std::span<const FedChunk> chunks) override {
    return launched_.step(rows, rows.size(), chunks);
  }
  /// None where it would unpack all weights.
  int64_t most_launched() const override { return stages_ == nullptr ? kSkinnyRows : 0; }
  bool launches_alike() const override { return false; }
  Status copy_launched_logits(size_t index, float* to) override {
    return launched_.copy_logits(index, to);
  }
  std::vector<char*> caches() const override { return caches_of(program_, arena_, launch_.arena); }
  Device& device() override { return *device_; }
  bool has_prefill() const { return prefill_ != nullptr; }

 private:
  Status make_program(int units);
  /// Lowers the program and divides shared memory.
  Status lower_program();
  /// Whether the device has room for all weights, and for the packed ones beside them.
  bool has_room() const;
  /// The weights that stay as the checkpoint has them, and constants.
  Status load_weights();
  /// Brings a stage's weights (Arena::stages) to their places.
  Status load_stage(int64_t stage);
  /// Makes the frequencies of RoPE by the sequences' lengths: only LongRoPE's differ.
  Status set_frequencies();
  /// LongRoPE has other frequencies from one length on: when a sequence comes to it, all its tokens
  /// so far are fed anew.
  Status lengthen(int sequence);
  /// What the resident kernel has besides.
  Status make_decode();
  /// Memory for what is known of the sequences.
  Status make_sequences();
  /// Packs the weights; false: what could not be compressed is plain from now on, and must be
  /// lowered and packed again.
  Result<bool> pack_weights();
  Status upload_codes();
  Status make_prefill();
  ChunkFormats chunk_formats() const { return {options_.kv, options_.round_activations}; }
  /// Memory beside the program's: error (device) says how much was wanted.
  Result<char*> allocate(int64_t bytes, std::string_view what);
  template <class T>
  Result<T*> upload(const std::vector<T>& data, std::string_view what);
  template <class T>
  Status place(T*& pointer, int64_t bytes, std::string_view what);
  int64_t seen_words() const { return resident::seen_words(config_.vocabulary); }
  /// What is known of a sequence.
  struct Sequence {
    int64_t position = 0;  ///< of its next step; see Launch::position
    int64_t length = 1;    ///< that its frequencies are for
    bool logits_valid = false;
    // Where steps are launched, or the first token was:
    std::vector<int32_t> tokens = {};  ///< so far
    int64_t row = -1;  ///< of the last launched step; -1: the resident kernel has run since
    std::vector<float> logits = {};  ///< of that row, as soon as somebody wants them
  };
  Sequence& at(int sequence) { return sequences_[static_cast<size_t>(sequence)]; }
  const Sequence& at(int sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  uint32_t all_sequences() const { return (1u << options_.sequences) - 1; }
  int32_t* tokens_of(int sequence) const {
    return launch_.tokens + sequence * (options_.capacity + 1);
  }

  Status forget(std::span<const Tokens> ids);
  /// Runs steps from the sequences' positions on; the first `forced` ones' next tokens are forced.
  /// Advances positions by the steps that were wanted.
  Status run(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token);
  /// As many of them as one launch has tags for.
  Status run_launch(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token);
  /// The same by launched kernels, where none are forced. Tokens are drawn on the host, but for
  /// those of the best logits.
  /// `fed`: in the launches of the first step.
  Status run_launched(int64_t steps, const OnToken& on_token, std::span<const FedChunk> fed = {});
  /// Sequence::logits.
  Status take_logits(Sequence& sequence);
  /// Of one sequence: the last token of its prompt is a row of the last chunk, and what is next is
  /// drawn from there.
  Status begin_by_chunks(Tokens prompt, const OnToken& on_token);
  /// Whether the next token is always that of the best logit.
  bool draws_best() const {
    return launch_.sampling.temperature <= 0 && launch_.sampling.repetition_penalty == 1;
  }
  /// What the kernel left in `failure`, in words.
  Status explain(const Failure& failure) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  std::unique_ptr<Device> device_;
  std::vector<DeviceMemory> memory_;
  Program program_;
  Arena arena_;
  std::vector<bool> plain_;  ///< [program_.operations]: their weights are not compressed
  Lowered lowered_;
  /// Why the resident kernel cannot run this model's steps: they are launched.
  std::optional<Error> refusal_;
  LaunchedSteps launched_;  // of drafts too
  Pages sample_scratch_;    // where steps are launched
  Launch launch_;
  std::unique_ptr<Prefill> prefill_;  ///< null: prompts go through the resident kernel
  char* packed_ = nullptr;
  Hold hold_ = Hold::twice;
  std::unique_ptr<WeightStages> stages_;  ///< Hold::once
  float* uniforms_ = nullptr;
  Mapped mailbox_;
  SideStream side_;
  std::vector<float> logits_;
  std::vector<Sequence> sequences_;
  uint32_t ended_ = 0;      // sequences that draw no more, a bit each
  uint32_t next_tag_ = 1;   // of the next launch's first write
  uint32_t next_draw_ = 1;  // of its first step
};

Result<char*> HopperRunner::allocate(int64_t bytes, std::string_view what) {
  auto memory = device_->allocate(static_cast<size_t>(std::max<int64_t>(bytes, 256)));
  if (!memory.ok()) {
    size_t free = 0;
    size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return device_error(
        fmt::format("{}: {} needs {:.1f} GiB of {}, {:.1f} of {:.1f} are free: use a smaller model "
                    "or --context",
                    options_.device, config_.name, static_cast<double>(bytes) / (1 << 30), what,
                    static_cast<double>(free) / (1 << 30), static_cast<double>(total) / (1 << 30)));
  }
  memory_.push_back(std::move(*memory));
  return reinterpret_cast<char*>(memory_.back().data());
}

template <class T>
Result<T*> HopperRunner::upload(const std::vector<T>& data, std::string_view what) {
  const size_t bytes = data.size() * sizeof(T);
  WEFT_ASSIGN(char* const place, allocate(static_cast<int64_t>(bytes), what));
  WEFT_TRY(device_->upload(place, data.data(), bytes));
  return reinterpret_cast<T*>(place);
}

Status HopperRunner::make_program(int units) {
  const PlanOptions options =
      plan_options(config_, options_.workers > 0 ? std::min(options_.workers, units) : units,
                   options_.capacity, options_.kv, options_.sequences);
  program_ = plan(config_, weights_, options);
  WEFT_TRY(verify(program_));
  plain_.assign(program_.operations.size(), !compresses(options_, weights_, device_->info()));
  const auto launches = [&](const Error& why_not) -> Status {
    const std::string why = refuse_prefill(Arch::hopper, config_, weights_, chunk_formats());
    if (!why.empty() && config_.latent.rank > 0) {
      return input_error(fmt::format(
          "attention over latent rows: the cuda device has no kernel for it where {}; use --device "
          "cpu",
          why));
    }
    return why.empty() ? Status() : Status(why_not);
  };
  return resident::decide_hold(
      {.first = options_.hold_once.value_or(false) ? Hold::once : Hold::twice,
       .fixed = options_.hold_once.has_value()},
      refusal_,
      [&](Hold hold) {
        hold_ = hold;
        arena_ = lay_out(program_, weights_, hold);
      },
      [&] { return lower_program(); }, launches, [&] { return has_room(); });
}

bool HopperRunner::has_room() const {
  const auto free = free_bytes();
  return free.ok() && arena_.bytes + lowered_.packed_bytes + resident::kBesideWeights <= *free;
}

Status HopperRunner::lower_program() {
  WEFT_ASSIGN(lowered_, lower(program_, config_, weights_, arena_, options_.capacity, plain_));
  launch_.workers = static_cast<int32_t>(program_.workers.size());
  launch_.shape = lowered_.shape;
  launch_.latents = lowered_.latents;
  launch_.scratch_bytes = lowered_.scratch_bytes;
  launch_.most_codes = lowered_.most_codes;
  launch_.events = static_cast<uint32_t>(program_.events.size());
  launch_.pages = 0;  // those of an earlier lowering are not in the way
  const int64_t room = kMostSharedBytes - decode_shared_bytes(launch_);
  launch_.page_bytes = lowered_.page_bytes;
  launch_.pages = static_cast<int32_t>(std::min<int64_t>(kMostPages, room / launch_.page_bytes));
  // Most of them: a head's may be larger than layers' in fp8.
  const bool fp8 = is_fp8(weights_.get(Role::query, 0).dtype);
  const int usual_bytes = fp8 ? page_bytes(StreamForm::fp8) : launch_.page_bytes;
  const auto pages_of = [&](int bytes) { return (bytes + usual_bytes / 2) / usual_bytes; };
  // A warp that waits for a page must not take the slot's page before the last for it: the last one
  // has to have landed. Those that may still be on their way are at most as many pages, of all
  // loaders, behind the last that the warp has read, and one that another loader puts.
  const bool experts = launch_.shape.experts || launch_.latents;
  const int loaders = experts ? 1 : kLoaders;
  const int most = launch_.pages - kPageJump - (loaders - 1);
  const bool mx = launch_.page_bytes == page_bytes(StreamForm::mx);  // no others are as large
  const bool small = cost_of(program_, weights_, options_.sequences, 0).weight_bytes <
                     kSmallLayerBytes * static_cast<double>(config_.layers * launch_.workers);
  const int in_flight = mx                 ? kBytesInFlightWithMx
                        : experts && small ? kBytesInFlightWithExperts
                                           : kBytesInFlight;
  launch_.pages_in_flight = std::min(most, pages_of(in_flight)) / loaders;
  if (launch_.pages_in_flight < kFewestInFlight) {
    return input_error(fmt::format(
        "{}: {} bytes for rows and {} codes leave {} bytes of shared memory for weights: too few",
        config_.name, lowered_.scratch_bytes, lowered_.most_codes, room));
  }
  launch_.throttled_pages_in_flight =
      std::clamp(pages_of(kThrottledBytesInFlight) / loaders, 1, launch_.pages_in_flight);
  // Throttling gains 2 to 5 % where weights are plain and costs 1 to 4 % where they are compressed
  // (docs/journal/h200-decode.md).
  const bool smaller = fp8 || std::find(plain_.begin(), plain_.end(), true) == plain_.end();
  // Where runs are of whole units (SliceRuns), a warp's pages are not always kPageJump apart: that
  // the slot's page before has landed then follows from how many are on their way, always as many.
  const bool whole_units = experts && options_.sequences > 1;
  launch_.starved_slots =
      smaller || whole_units ? 0 : std::min(launch_.pages, pages_of(kStarvedBytes));
  return {};
}

Status HopperRunner::load_weights() {
  WEFT_ASSIGN(launch_.arena, allocate(arena_.bytes, "weights and caches"));
  return load_stage(kKept);
}

Status HopperRunner::load_stage(int64_t stage) {
  std::vector<int64_t> places = arena_.weights;
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = arena_.stages[i] == stage ? places[i] : kNowhere;
  }
  return put_weights(config_, weights_, options_.weights_seed, launch_.arena, places, arena_.scales,
                     *device_);
}

Status HopperRunner::set_frequencies() {
  std::vector<float> frequencies;
  for (const Sequence& sequence : sequences_) {
    const std::vector<float> own = inverse_frequencies(config_, sequence.length);
    frequencies.insert(frequencies.end(), own.begin(), own.end());
  }
  return device_->upload(
      launch_.arena + arena_.buffers[static_cast<size_t>(program_.inverse_frequencies)],
      frequencies.data(), frequencies.size() * sizeof(float));
}

Status HopperRunner::lengthen(int sequence) {
  Sequence& own = at(sequence);
  own.length = own.position + 1;
  if (prefill_ == nullptr) {
    return resident::no_prefill_to_lengthen(config_, own.length);
  }
  WEFT_TRY(set_frequencies());
  if (refusal_) {
    WEFT_TRY(device_->upload(tokens_of(sequence), own.tokens.data(), own.tokens.size() * 4));
  }
  return prefill_->feed(tokens_of(sequence), 0, own.position, sequence);
}

Status HopperRunner::make_decode() {
  WEFT_ASSIGN(bool packed, pack_weights());
  while (!packed) {
    WEFT_TRY(lower_program());
    WEFT_ASSIGN(packed, pack_weights());
  }
  return upload_codes();
}

Result<bool> HopperRunner::pack_weights() {
  WEFT_ASSIGN(packed_, allocate(lowered_.packed_bytes, "packed weights"));
  std::map<int64_t, StageJobs> stages{{kKept, {0, std::ssize(lowered_.pack)}}};
  if (hold_ == Hold::once) {
    std::ranges::stable_sort(lowered_.pack, {}, &PackJob::stage);
    stages = stages_of(lowered_.pack);
  }
  WEFT_ASSIGN(const PackJob* jobs, upload(lowered_.pack, "a list of weights to pack"));
  std::vector<uint32_t> refused(program_.operations.size());
  WEFT_ASSIGN(uint32_t* const refused_at, upload(refused, "a list of weights to pack"));
  const auto stream = static_cast<cudaStream_t>(device_->stream().native);
  for (const auto& [stage, part] : stages) {
    if (hold_ == Hold::once && stage != kKept) {
      WEFT_TRY(load_stage(stage));
    }
    WEFT_TRY(check(
        launch_pack(jobs + part.begin, part.count, launch_.arena, packed_, refused_at, stream),
        "packing weights"));
  }
  WEFT_TRY(device_->synchronize());
  WEFT_TRY(device_->download(refused.data(), refused_at, refused.size() * sizeof(uint32_t)));
  memory_.pop_back();  // refused
  if (hold_ == Hold::once) {
    stages.erase(kKept);  // is there, beside what is packed of it
    if (std::ranges::find(arena_.stages, kHeadStage) == arena_.stages.end()) {
      stages.erase(kHeadStage);  // the head is the embedding table, which is there
    }
    WEFT_ASSIGN(stages_,
                WeightStages::create(jobs, std::move(stages), packed_, launch_.arena, stream));
  } else {
    memory_.pop_back();  // the jobs
  }
  lowered_.pack = {};
  bool all = true;
  for (size_t i = 0; i < refused.size(); ++i) {
    plain_[i] = plain_[i] || refused[i] != 0;
    all = all && refused[i] == 0;
  }
  if (!all) {
    if (hold_ == Hold::once) {
      memory_.pop_back();  // the jobs
    }
    memory_.pop_back();  // the packed weights
  }
  return all;
}

template <class T>
Status HopperRunner::place(T*& pointer, int64_t bytes, std::string_view what) {
  WEFT_ASSIGN(char* const memory, allocate(bytes, what));
  pointer = reinterpret_cast<T*>(memory);
  return {};
}

Status HopperRunner::make_sequences() {
  const int64_t sequences = options_.sequences;
  const int64_t token_bytes = sequences * (options_.capacity + 1) * 4;
  WEFT_TRY(place(launch_.tokens, token_bytes, "tokens"));
  // An idle sequence may feed tokens that nobody gave.
  WEFT_TRY(
      check(cudaMemset(launch_.tokens, 0, static_cast<size_t>(token_bytes)), "clearing tokens"));
  WEFT_TRY(place(launch_.seen, sequences * seen_words() * 4, "tokens"));
  logits_.resize(static_cast<size_t>(config_.vocabulary));
  sequences_.resize(static_cast<size_t>(sequences));
  return set_frequencies();
}

Status HopperRunner::upload_codes() {
  std::vector<Code> codes;
  std::vector<uint32_t> begin;
  std::vector<const char*> streams;
  for (size_t worker = 0; worker < lowered_.codes.size(); ++worker) {
    begin.push_back(static_cast<uint32_t>(codes.size()));
    codes.insert(codes.end(), lowered_.codes[worker].begin(), lowered_.codes[worker].end());
    streams.push_back(packed_ + lowered_.streams[worker]);
  }
  begin.push_back(static_cast<uint32_t>(codes.size()));
  WEFT_ASSIGN(launch_.codes, upload(codes, "codes"));
  WEFT_ASSIGN(launch_.code_begin, upload(begin, "codes"));
  WEFT_ASSIGN(launch_.streams, upload(streams, "codes"));
  WEFT_ASSIGN(launch_.event_signals, upload(lowered_.event_signals, "events"));

  const int64_t events = static_cast<int64_t>(program_.events.size());
  const int64_t sequences = options_.sequences;
  const int64_t token_bytes = sequences * (options_.capacity + 1) * 4;
  WEFT_TRY(place(launch_.counters, events * kCounterStride * 4, "events"));
  WEFT_TRY(place(launch_.stop, 4, "events"));
  WEFT_TRY(place(launch_.failure, sizeof(Failure), "events"));
  WEFT_TRY(place(launch_.kept, sequences * config_.vocabulary * kKeptBytes, "tokens"));
  const std::vector<Draw> draws(static_cast<size_t>(2 * sequences * launch_.workers));
  WEFT_ASSIGN(launch_.draws, upload(draws, "tokens"));
  WEFT_TRY(place(uniforms_, token_bytes, "tokens"));
  launch_.uniforms = uniforms_;
  WEFT_TRY(mailbox_.allocate(sizeof(Mailbox) + static_cast<size_t>(token_bytes)));
  launch_.mailbox = mailbox_.as<Mailbox>();
  WEFT_TRY(side_.create());
  if (options_.profile) {
    for (const auto& worker : lowered_.codes) {
      launch_.trace_codes = std::max(launch_.trace_codes, static_cast<int32_t>(worker.size()));
    }
    WEFT_TRY(
        place(launch_.trace, int64_t{launch_.trace_codes} * launch_.workers * 4 * 8, "profile"));
  }
  return {};
}

Status HopperRunner::make_prefill() {
  if (!refuse_prefill(Arch::hopper, config_, weights_, chunk_formats()).empty()) {
    return {};
  }
  PrefillPlaces places = places_of(program_, arena_, launch_.arena, options_.sequences);
  places.widen = widen_on(*device_);
  if (stages_ != nullptr) {
    places.bring = [this](int64_t stage, std::optional<int64_t> next) {
      return stages_->bring(stage, next);
    };
  }
  // A prompt's last chunk is a step, too.
  const int64_t rows = options_.fed > 0
                           ? kMostStepRows + options_.fed
                           : std::max(kMostStepRows, std::min(kChunkRows, options_.capacity));
  WEFT_ASSIGN(const int64_t tile_room, room_for_tiles(options_, weights_, device_->info()));
  WEFT_ASSIGN(prefill_, Prefill::create(config_, weights_, std::move(places), chunk_formats(),
                                        options_.capacity, *device_, rows,
                                        {.chunks = options_.exact}, tile_room));
  return launched_.create(*prefill_, *device_, config_.vocabulary, rows);
}

Status HopperRunner::create() {
  WEFT_ASSIGN(device_, weft::open_device(options_.device));
  WEFT_TRY(make_program(device_->info().units));
  WEFT_TRY(load_weights());
  WEFT_TRY(make_sequences());
  if (!refusal_) {
    WEFT_TRY(make_decode());
  }
  WEFT_TRY(make_prefill());
  if (refusal_) {
    WEFT_ASSIGN(sample_scratch_, Pages::allocate(cpu::sample_scratch_bytes(config_.vocabulary)));
  }
  return {};
}

Status HopperRunner::forget(std::span<const Tokens> ids) {
  ended_ = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Tokens own = i < ids.size() ? ids[i] : Tokens{};
    sequences_[i] = {.length = std::max<int64_t>(1, std::ssize(own)),
                     .tokens = {own.begin(), own.end()}};
    const std::vector<uint32_t> seen = resident::seen_of(own, config_.vocabulary);
    WEFT_TRY(device_->upload(launch_.seen + static_cast<int64_t>(i) * seen_words(), seen.data(),
                             seen.size() * 4));
    WEFT_TRY(device_->upload(tokens_of(static_cast<int>(i)), own.data(), own.size_bytes()));
  }
  return set_frequencies();
}

Status HopperRunner::run_launched(int64_t steps, const OnToken& on_token,
                                  std::span<const FedChunk> fed) {
  const bool best = draws_best();
  while (steps > 0 && ended_ != all_sequences()) {
    std::vector<LaunchedSteps::Row> rows;
    std::vector<int> live;
    for (int i = 0; i < options_.sequences; ++i) {
      at(i).logits_valid = false;
      if ((ended_ >> i & 1) == 0) {
        rows.push_back({at(i).tokens.back(), static_cast<int32_t>(at(i).position), i});
        live.push_back(i);
      }
    }
    for (int i = 0; i < options_.sequences; ++i) {
      if ((ended_ >> i & 1) != 0) {
        rows.push_back({0, 0, i});  // over what its cache held
      }
    }
    const auto take = [&](int i, int32_t token) {
      at(i).tokens.push_back(token);
      ++at(i).position;
      if (!on_token(i, token)) {
        end(i);
      }
    };
    const int64_t now = best ? steps : 1;
    std::vector<int64_t> taken(live.size());
    const auto on_best = [&](size_t row, int32_t token) {
      ++taken[row];
      if (best) {
        take(live[row], token);
      }
      return (ended_ >> live[row] & 1) == 0;
    };
    WEFT_TRY(launched_.run(rows, live.size(), now, on_best, fed));
    fed = {};
    for (size_t row = 0; row < live.size(); ++row) {
      const int i = live[row];
      at(i).logits_valid = taken[row] == now;
      at(i).row = static_cast<int64_t>(row);
      at(i).logits.clear();
      if (!best) {
        SamplingOptions own = launch_.sampling;
        own.seed += static_cast<uint64_t>(i);
        WEFT_TRY(take_logits(at(i)));
        take(i, cpu::sample({.logits = at(i).logits.data(),
                             .vocabulary = config_.vocabulary,
                             .options = own,
                             .history = at(i).tokens,
                             .draw = static_cast<uint64_t>(at(i).position + 1)},
                            {sample_scratch_.data(), sample_scratch_.size()}));
      }
    }
    steps -= now;
  }
  return {};
}

Status HopperRunner::run(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token) {
  if (refusal_) {
    return run_launched(steps, on_token);
  }
  const auto versions = static_cast<uint32_t>(program_.operations.size());
  launch_.versions = versions;
  while (steps > 0 && ended_ != all_sequences()) {
    if (next_tag_ + versions > kMostTag) {
      // All tags have been used: what is there is forgotten, and they begin anew.
      for (size_t i = 0; i < program_.buffers.size(); ++i) {
        if (arena_.tagged[i]) {
          const Buffer& buffer = program_.buffers[i];
          const bool own = buffer.space == Space::worker;
          WEFT_TRY(
              check(cudaMemset2DAsync(
                        launch_.arena + arena_.buffers[i],
                        static_cast<size_t>(std::max<int64_t>(arena_.worker_bytes, buffer.bytes())),
                        0, static_cast<size_t>(buffer.bytes()), own ? program_.workers.size() : 1,
                        static_cast<cudaStream_t>(device_->stream().native)),
                    "clearing buffers"));
        }
      }
      next_tag_ = 1;
    }
    const int64_t now = std::min<int64_t>(steps, (kMostTag - next_tag_) / versions);
    WEFT_TRY(run_launch(now, std::min(forced, now), ends, on_token));
    steps -= now;
    forced -= std::min(forced, now);
  }
  return {};
}

Status HopperRunner::run_launch(int64_t steps, int64_t forced, Tokens ends,
                                const OnToken& on_token) {
  const auto stream = static_cast<cudaStream_t>(device_->stream().native);
  const int sequences = options_.sequences;
  for (int i = 0; i < sequences; ++i) {
    launch_.position[i] = static_cast<int32_t>(at(i).position);
    at(i).row = -1;
  }
  launch_.forced_steps = static_cast<int32_t>(forced);
  launch_.steps = static_cast<int32_t>(steps);
  launch_.eos_count = 0;
  for (const int32_t id : ends) {
    if (launch_.eos_count < kMostEos) {  // the host stops at the others
      launch_.eos[launch_.eos_count++] = id;
    }
  }
  if (launch_.sampling.temperature > 0) {
    std::vector<float> uniforms;
    for (int s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < steps; ++i) {
        uniforms.push_back(uniform_draw(launch_.sampling.seed + static_cast<uint64_t>(s),
                                        static_cast<uint64_t>(at(s).position + i + 1)));
      }
    }
    WEFT_TRY(device_->upload(uniforms_, uniforms.data(), uniforms.size() * 4));
  }
  launch_.first_tag = next_tag_;
  next_tag_ += static_cast<uint32_t>(steps) * launch_.versions;
  launch_.first_draw = next_draw_;
  next_draw_ += static_cast<uint32_t>(steps);
  launch_.ended = ended_;
  auto* mailbox = mailbox_.as<Mailbox>();
  std::fill(std::begin(mailbox->tokens), std::end(mailbox->tokens), 0u);
  WEFT_TRY(check(
      cudaMemsetAsync(launch_.counters, 0, program_.events.size() * kCounterStride * 4, stream),
      "clearing events"));
  WEFT_TRY(check(cudaMemsetAsync(launch_.stop, 0, 4, stream), "clearing events"));
  WEFT_TRY(check(cudaMemsetAsync(launch_.failure, 0, sizeof(Failure), stream), "clearing events"));
  WEFT_TRY(check(launch_decode(launch_, stream), "launching the decode kernel"));

  for (int i = 0; i < sequences; ++i) {
    at(i).position += (ended_ >> i & 1) == 0 ? forced : 0;
  }
  const uint32_t ended_before = ended_;
  std::array<int64_t, kMostSequences> taken = {};
  // The next token that has come; -1: none.
  const auto next = [&] {
    for (int i = 0; i < sequences; ++i) {
      std::atomic_ref<uint32_t> arrived(mailbox->tokens[i]);
      if (taken[static_cast<size_t>(i)] < arrived.load(std::memory_order_acquire)) {
        return i;
      }
    }
    return -1;
  };
  cudaError_t told = cudaSuccess;
  cudaError_t state = cudaErrorNotReady;
  int from = -1;
  for (uint32_t spins = 0; (from = next()) >= 0 || state == cudaErrorNotReady; ++spins) {
    if (from >= 0) {
      const int32_t token = mailbox->token[from * steps + taken[static_cast<size_t>(from)]++];
      if ((ended_ >> from & 1) == 0) {
        ++at(from).position;
        if (!on_token(from, token)) {
          end(from);
          std::atomic_ref<uint32_t>(mailbox->stop).store(ended_);
          told = side_.copy(launch_.stop, &mailbox->stop);
        }
      }
      continue;
    }
    if (spins % 256 == 0) {
      state = cudaStreamQuery(stream);
    }
    __builtin_ia32_pause();
  }
  for (int i = 0; i < sequences; ++i) {
    // Otherwise it ended before, or the kernel has run ahead of it.
    at(i).logits_valid =
        (ended_before >> i & 1) == 0 && forced + taken[static_cast<size_t>(i)] == steps;
  }
  WEFT_TRY(check(state, "the decode kernel"));
  WEFT_TRY(check(told, "telling the decode kernel to stop"));
  WEFT_TRY(check(side_.finish(), "telling the decode kernel to stop"));
  Failure failure;
  WEFT_TRY(device_->download(&failure, launch_.failure, sizeof(failure)));
  return failure.happened != 0 ? explain(failure) : Status{};
}

Status HopperRunner::explain(const Failure& failure) const {
  const auto name = [&](const auto& list, int32_t index, std::string_view otherwise) {
    return index >= 0 ? list[static_cast<size_t>(index)].name : std::string(otherwise);
  };
  const Operation* operation = failure.operation >= 0
                                   ? &program_.operations[static_cast<size_t>(failure.operation)]
                                   : nullptr;
  return device_error(
      fmt::format("{}: the decode kernel gave up in step {}: worker {} waited too long in {} of "
                  "layer {} for {}",
                  options_.device, (failure.tag - launch_.first_tag) / launch_.versions,
                  failure.worker, name(program_.operations, failure.operation, "the beginning"),
                  operation != nullptr ? operation->layer : -1,
                  name(program_.events, failure.event, "its data")));
}

Status HopperRunner::begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
                           const OnToken& on_token) {
  WEFT_TRY(forget(prompts));
  launch_.sampling = sampling;
  const auto by_chunks = [&](int64_t length) {
    return prefill_ != nullptr && (refusal_ || length >= fewest_tokens(chunk_formats()));
  };
  // In f32 the resident kernel's step takes less than a row more of a chunk and its head, and
  // drawing by chance takes less there than on the host.
  if (options_.sequences == 1 && by_chunks(std::ssize(prompts[0])) &&
      (refusal_ || (options_.round_activations && draws_best()))) {
    return begin_by_chunks(prompts[0], on_token);
  }
  int64_t steps = 1;
  for (int i = 0; i < options_.sequences; ++i) {
    const auto length = static_cast<int64_t>(prompts[static_cast<size_t>(i)].size());
    if (by_chunks(length)) {
      at(i).position = length - 1;
      WEFT_TRY(prefill_->feed(tokens_of(i), 0, length - 1, i));
    }
    steps = std::max(steps, length - at(i).position);
  }
  // All reach the ends of their prompts in the same step: shorter ones begin later.
  for (int i = 0; i < options_.sequences; ++i) {
    at(i).position = static_cast<int64_t>(prompts[static_cast<size_t>(i)].size()) - steps;
  }
  return run(steps, steps - 1, {}, on_token);
}

Status HopperRunner::begin_by_chunks(Tokens prompt, const OnToken& on_token) {
  Sequence& own = at(0);
  const int64_t length = std::ssize(prompt);
  const int64_t last = prefill_->last_chunk(length);
  WEFT_TRY(prefill_->feed(launch_.tokens, 0, last, 0));
  own.position = length - 1;
  std::vector<FedChunk> before;
  if (last < length - 1) {
    before.push_back(
        {prompt.first(static_cast<size_t>(length - 1)).subspan(static_cast<size_t>(last)), last,
         0});
  }
  WEFT_TRY(run_launched(1, on_token, before));
  if (refusal_) {
    return {};
  }
  // What the resident kernel would have left.
  return device_->upload(launch_.tokens + length, &own.tokens.back(), sizeof(int32_t));
}

Status HopperRunner::decode(int64_t steps, Tokens ends, const OnToken& on_token) {
  const RopeScaling& scaling = config_.rope_scaling;
  if (scaling.kind != RopeScaling::Kind::longrope) {
    return run(steps, 0, ends, on_token);
  }
  const int64_t original = scaling.original_context;
  while (steps > 0 && ended_ != all_sequences()) {
    int64_t now = steps;
    for (int i = 0; i < options_.sequences; ++i) {
      if ((ended_ >> i & 1) != 0) {
        continue;
      }
      if (at(i).position >= original && at(i).length <= original) {
        WEFT_TRY(lengthen(i));
      }
      if (at(i).position < original) {
        now = std::min(now, original - at(i).position);
      }
    }
    WEFT_TRY(run(now, 0, ends, on_token));
    steps -= now;
  }
  return {};
}

Result<Score> HopperRunner::score(Tokens ids) {
  WEFT_TRY(forget({&ids, 1}));
  launch_.sampling = {};
  if (prefill_ != nullptr) {
    return prefill_->score(launch_.tokens, static_cast<int64_t>(ids.size()));
  }
  const auto step = [&](size_t i) -> Result<std::span<const float>> {
    for (Sequence& sequence : sequences_) {
      sequence.position = static_cast<int64_t>(i);
    }
    // What is drawn would take the place of the next token.
    WEFT_TRY(run(1, 0, {}, [](int, int32_t) { return true; }));
    WEFT_TRY(device_->upload(launch_.tokens, ids.data(), ids.size_bytes()));
    return logits(0);
  };
  WEFT_ASSIGN(Score score, score_by_steps(ids, step));
  for (Sequence& sequence : sequences_) {
    sequence = {};
  }
  return score;
}

Result<double> HopperRunner::read_bandwidth() {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  const bool packed = packed_ != nullptr;
  return hopper::read_bandwidth(
      *device_, packed ? packed_ : launch_.arena,
      static_cast<size_t>(std::min(packed ? lowered_.packed_bytes : weights_.bytes(), kMostBytes)));
}

std::vector<OperationTime> HopperRunner::operation_times() const {
  std::vector<int64_t> stamps(static_cast<size_t>(launch_.trace_codes) * lowered_.codes.size() * 4);
  if (stamps.empty() ||
      !device_->download(stamps.data(), launch_.trace, stamps.size() * sizeof(int64_t)).ok()) {
    return {};
  }
  int kilohertz = 0;
  cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0);
  const double second = 1e3 * kilohertz;
  OperationTimes times;
  for (size_t worker = 0; worker < lowered_.codes.size(); ++worker) {
    for (size_t i = 0; i < lowered_.codes[worker].size(); ++i) {
      const auto operation = static_cast<size_t>(lowered_.codes[worker][i].operation);
      const int64_t* stamp = &stamps[(worker * static_cast<size_t>(launch_.trace_codes) + i) * 4];
      const double work = static_cast<double>(stamp[2] - stamp[1]) / second;
      times.add({.name = program_.operations[operation].name,
                 .wait = static_cast<double>(stamp[1] - stamp[0]) / second,
                 .work = work,
                 .signal = static_cast<double>(stamp[3] - stamp[2]) / second,
                 .slowest = work});
    }
  }
  return times.means();
}

Status HopperRunner::take_logits(Sequence& sequence) {
  sequence.logits.resize(static_cast<size_t>(config_.vocabulary));
  WEFT_TRY(launched_.copy_logits(static_cast<size_t>(sequence.row), sequence.logits.data()));
  return device_->synchronize();
}

std::span<const float> HopperRunner::logits(int sequence) {
  if (!at(sequence).logits_valid) {
    return {};
  }
  if (Sequence& own = at(sequence); own.row >= 0) {
    if (own.logits.empty() && !take_logits(own).ok()) {
      return {};
    }
    return own.logits;
  }
  const char* place = launch_.arena + arena_.buffers[static_cast<size_t>(program_.logits)];
  const size_t bytes = logits_.size() * sizeof(float);
  if (!device_->download(logits_.data(), place + static_cast<size_t>(sequence) * bytes, bytes)
           .ok()) {
    return {};
  }
  return logits_;
}

Result<std::optional<int32_t>> HopperRunner::run(int32_t token, int64_t position, int32_t end) {
  // Shorter lists, over the memory of the whole ones.
  std::vector<Code> codes;
  std::vector<uint32_t> begin{0};
  for (const auto& worker : lowered_.codes) {
    const std::vector<Code> cut = codes_until(worker, end);
    codes.insert(codes.end(), cut.begin(), cut.end());
    begin.push_back(static_cast<uint32_t>(codes.size()));
  }
  WEFT_TRY(
      device_->upload(const_cast<Code*>(launch_.codes), codes.data(), codes.size() * sizeof(Code)));
  WEFT_TRY(device_->upload(const_cast<uint32_t*>(launch_.code_begin), begin.data(),
                           begin.size() * sizeof(uint32_t)));
  WEFT_TRY(device_->upload(launch_.tokens + position, &token, sizeof(token)));
  at(0).position = position;
  ended_ = 0;
  std::optional<int32_t> drawn;
  WEFT_TRY(run(1, 0, {}, [&](int, int32_t next) {
    drawn = next;
    return true;
  }));
  return drawn;
}

Result<Image> HopperRunner::read(BufferId id, size_t worker) {
  const auto index = static_cast<size_t>(id);
  const Buffer& buffer = program_.buffers[index];
  const auto own = buffer.space == Space::worker ? static_cast<int64_t>(worker) : 0;
  std::vector<std::byte> bytes(static_cast<size_t>(image_bytes(buffer)));
  WEFT_TRY(device_->download(bytes.data(),
                             launch_.arena + arena_.buffers[index] + own * arena_.worker_bytes,
                             bytes.size()));
  return decode_buffer(program_, arena_, id, bytes, launch_.first_tag);
}

Status HopperRunner::run_rows(std::span<const RowStep> rows, int64_t steps,
                              const OnToken& on_token) {
  static_assert(TokenList::kMost >= kMostSequences);
  TokenList list;
  ended_ = all_sequences();
  for (size_t i = 0; i < rows.size(); ++i) {
    sequences_[i].position = rows[i].position;
    if (rows[i].live) {
      ended_ &= ~(1u << i);
      list.token[list.count] = rows[i].token;
      list.place[list.count] = tokens_of(static_cast<int>(i)) + rows[i].position - launch_.tokens;
      ++list.count;
    }
  }
  const auto stream = static_cast<cudaStream_t>(device_->stream().native);
  WEFT_TRY(check(launch_set_tokens(list, launch_.tokens, stream), "writing tokens"));
  return run(steps, 0, {}, on_token);
}

Status HopperRunner::copy_logits(int row, float* to) {
  const auto bytes = static_cast<size_t>(config_.vocabulary) * sizeof(float);
  const char* place = launch_.arena + arena_.buffers[static_cast<size_t>(program_.logits)];
  return check(
      cudaMemcpyAsync(to, place + static_cast<size_t>(row) * bytes, bytes, cudaMemcpyDeviceToHost,
                      static_cast<cudaStream_t>(device_->stream().native)),
      "copying logits");
}

/// A runner for any of its roles.
Result<std::unique_ptr<HopperRunner>> make_runner(const ModelConfig& config, const Weights& weights,
                                                  const RunnerOptions& options) {
  auto runner = std::make_unique<HopperRunner>(config, weights, options);
  WEFT_TRY(runner->create());
  return runner;
}

}  // namespace

Status put_weights(const ModelConfig& config, const Weights& weights, uint64_t seed, char* arena,
                   std::span<const int64_t> places, std::span<const int64_t> scale_places,
                   Device& device) {
  const std::vector<TensorSpec> specs = tensor_specs(config);  // in the order of tensors
  const auto stream = static_cast<cudaStream_t>(device.stream().native);
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    if (places[i] == kNowhere) {
      continue;
    }
    const Tensor& tensor = weights.tensors()[i];
    char* place = arena + places[i];
    if (tensor.mx.codes != nullptr) {
      const std::vector<uint8_t> packed = pack_mx(tensor);
      WEFT_TRY(device.upload(place, packed.data(), packed.size()));
    } else if (tensor.mx.k > 0) {
      std::vector<uint8_t> made(static_cast<size_t>(tensor.bytes()));
      fill_random_mx(seed, specs[i], 0, tensor.elements(), made.data(),
                     made.data() + tensor.elements() / 2);
      WEFT_TRY(device.upload(place, made.data(), made.size()));
    } else if (tensor.data != nullptr) {
      WEFT_TRY(device.upload(place, tensor.data, static_cast<size_t>(tensor.bytes())));
    } else {
      WEFT_TRY(check(launch_fill_random(random_tensor(seed, specs[i]), tensor.dtype,
                                        tensor.elements(), place, stream),
                     "making weights"));
    }
    if (tensor.scale_count() == 0) {
      continue;
    }
    std::vector<float> made;
    const float* scales = tensor.scales.data;
    if (scales == nullptr) {
      made = make_random_scales(config.quantization, seed, specs[i]);
      scales = WeightScales{tensor.scales.scaling, made.data(), tensor.scales.row_stride}.of_row(
          specs[i].first_row);
    }
    WEFT_TRY(device.upload(arena + scale_places[i], scales,
                           static_cast<size_t>(tensor.scale_count()) * sizeof(float)));
  }
  return {};
}

PrefillPlaces::Widen widen_on(Device& device) {
  return [&device](const Tensor& tensor, const void* codes, const float* scales, DType type,
                   void* to) -> Status {
    const cudaError_t error =
        launch_widen(codes, scales, grid_of(tensor.scales), tensor.rows(), tensor.columns(), type,
                     to, static_cast<cudaStream_t>(device.stream().native));
    return check(error, "widening " + tensor.name);
  };
}

bool compresses(const RunnerOptions& options, const Weights& weights, const DeviceInfo& device) {
  return options.compress_weights.value_or(weights.bytes() > static_cast<int64_t>(device.l2));
}

Result<int64_t> room_for_tiles(const RunnerOptions& options, const Weights& weights,
                               const DeviceInfo& device) {
  constexpr int64_t kShare = 3;
  WEFT_ASSIGN(const int64_t free, free_bytes());
  return compresses(options, weights, device) ? free / kShare : 0;
}

Result<std::unique_ptr<Runner>> create_runner(const ModelConfig& config, const Weights& weights,
                                              const RunnerOptions& options) {
  WEFT_ASSIGN(std::unique_ptr<HopperRunner> runner, make_runner(config, weights, options));
  return std::unique_ptr<Runner>(std::move(runner));
}

Result<std::unique_ptr<Subject>> create_subject(const ModelConfig& config, const Weights& weights,
                                                const RunnerOptions& options) {
  WEFT_ASSIGN(std::unique_ptr<HopperRunner> runner, make_runner(config, weights, options));
  if (runner->refusal()) {
    return *runner->refusal();
  }
  return std::unique_ptr<Subject>(std::move(runner));
}

Result<std::unique_ptr<Rows>> create_rows(const ModelConfig& config, const Weights& weights,
                                          const RunnerOptions& options) {
  WEFT_ASSIGN(std::unique_ptr<HopperRunner> runner, make_runner(config, weights, options));
  if (runner->refusal()) {
    runner.reset();
    return create_launched_rows(config, weights, options);
  }
  if (!runner->has_prefill()) {
    return input_error(fmt::format(
        "{} has no slots on {}: {}", config.name, options.device,
        refuse_prefill(Arch::hopper, config, weights, {options.kv, options.round_activations})));
  }
  return std::unique_ptr<Rows>(std::move(runner));
}

}  // namespace weft::hopper
