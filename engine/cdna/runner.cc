#include "engine/cdna/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "arch/cdna/hip.h"
#include "base/check.h"
#include "base/divide.h"
#include "base/pages.h"
#include "engine/cdna/lower.h"
#include "engine/cdna/read.h"
#include "engine/cdna/topology.h"
#include "engine/cdna/widen.h"
#include "engine/prefill/prefill.h"
#include "engine/resident/hold.h"
#include "engine/resident/readback.h"
#include "engine/resident/sequence.h"
#include "engine/score.h"
#include "model/layer.h"
#include "ops/sample/op.h"
#include "program/planner.h"
#include "program/verify.h"

namespace weft::cdna {

using resident::Arena;
using resident::Code;
using resident::Draw;
using resident::Failure;
using resident::Hold;
using resident::kCounterStride;
using resident::kMostEos;
using resident::kMostTag;
using resident::Mailbox;

namespace {

/// A launch from which nothing has come for so long is told to give up.
constexpr std::chrono::seconds kPatience{20};
static_assert(kMostAtOnce == 64, "a bit each, of those that have ended");

class CdnaRunner final : public Runner, public Subject {
 public:
  CdnaRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  Status create();
  /// Why the resident kernel cannot run this model's steps, if that is so.
  const std::optional<Error>& refusal() const { return refusal_; }

  Status begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
               const OnToken& on_token) override;
  Status decode(int64_t steps, Tokens ends, const OnToken& on_token) override;
  Result<Score> score(Tokens ids) override;
  void end(int sequence) override { ended_ |= uint64_t{1} << sequence; }
  int sequences() const override { return options_.sequences; }
  std::span<const float> logits(int sequence) override;
  int64_t position(int sequence) const override { return at(sequence).position; }
  int64_t capacity() const override { return options_.capacity; }
  DType kv() const override { return options_.kv; }
  int workers() const override { return static_cast<int>(program_.workers.size()); }
  Result<double> read_bandwidth() override;
  int64_t saved_bytes() const override {
    return lowered_.plain_bytes - lowered_.packed_bytes - listed_bytes_;
  }

  // As a Subject.
  const Program& program() const override { return program_; }
  Result<std::optional<int32_t>> run(int32_t token, int64_t position, int32_t end) override;
  bool keeps(BufferId id) const override {
    return resident::kept_buffers(program_)[static_cast<size_t>(id)];
  }
  Result<Image> read(BufferId id, size_t worker) override;

 private:
  Status make_program();
  /// What the resident kernel has no registers for.
  Status too_many_sequences() const;
  /// Whether the device has room for all weights, and for the packed ones beside them.
  bool has_room() const;
  /// Lowers the program, its weights of `plain_`'s operations as they are.
  Status lower_program();
  /// The weights that stay as the checkpoint has them.
  Status load_weights();
  /// The packed ones.
  Status load_streams();
  /// The weights of products as they stream, each in the form that has room for it.
  Result<Streams> pack_weights();
  /// Memory for what is known of the sequences.
  Status make_sequences();
  /// What the kernel has besides.
  Status make_launch();
  /// Brings workers' codes to their places, which have room for lowered_.codes.
  Status put_codes(std::span<const std::vector<Code>> workers);
  /// The worker that a workgroup is.
  size_t worker_of(size_t workgroup) const {
    const Topology topology(device_->target(), launch_.workers);
    return static_cast<size_t>(topology.worker(static_cast<int64_t>(workgroup)));
  }
  template <class T>
  Status put(const T* to, const std::vector<T>& data) {
    return device_->upload(const_cast<T*>(to), data.data(), data.size() * sizeof(T));
  }
  Status make_prefill();
  /// See PrefillPlaces::widen.
  Status widen(const Tensor& tensor, const void* codes, const float* scales, DType type, void* to);
  ChunkFormats chunk_formats() const { return {options_.kv, options_.round_activations}; }
  /// What is known of a sequence.
  struct Sequence {
    int64_t position = 0;  ///< of its next step; see Launch::position
    int64_t length = 1;    ///< that its frequencies are for
    bool logits_valid = false;
    // Where steps are launched:
    std::vector<int32_t> tokens = {};  ///< so far
    std::vector<float> logits = {};
  };
  Sequence& at(int sequence) { return sequences_[static_cast<size_t>(sequence)]; }
  const Sequence& at(int sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  uint64_t all_sequences() const { return ~uint64_t{0} >> (kMostAtOnce - options_.sequences); }
  bool ended(int sequence) const { return (ended_ >> sequence & 1) != 0; }
  int32_t* tokens_of(int sequence) const {
    return launch_.tokens + sequence * (options_.capacity + 1);
  }
  /// Makes the frequencies of RoPE by the sequences' lengths: only LongRoPE's differ.
  Status set_frequencies();
  /// LongRoPE has other frequencies from one length on: when a sequence comes to it, all its tokens
  /// so far are fed anew.
  Status lengthen(int sequence);
  template <class T>
  Status place(T*& pointer, int64_t count);
  template <class T>
  Status place(const T*& pointer, const std::vector<T>& data);

  int64_t seen_words() const { return resident::seen_words(config_.vocabulary); }
  Status forget(std::span<const Tokens> ids);
  /// Runs steps from the sequences' positions on; the first `forced` ones' next tokens are forced.
  Status run(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token);
  /// As many of them as one launch has tags for.
  Status run_launch(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token);
  /// The same by launched kernels, where none are forced. Tokens are drawn on the host.
  Status run_launched(int64_t steps, const OnToken& on_token);
  /// Hands on tokens as they come, until the launch has ended.
  Status take_tokens(const OnToken& on_token, std::span<int64_t> taken);
  /// Forgets what is in the tagged buffers: tags begin anew.
  Status clear_tags();
  /// What workers left when they gave up, in words.
  Status explain(std::span<const Failure> failures) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  std::unique_ptr<HipDevice> device_;
  std::vector<DeviceMemory> memory_;
  Program program_;
  Arena arena_;
  Hold hold_ = Hold::twice;
  std::vector<bool> plain_;  // [program_.operations]: their weights are not packed in 12 bits
  Lowered lowered_;
  int64_t listed_bytes_ = 0;
  DecodeLaunch launch_;
  std::unique_ptr<Prefill> prefill_;  ///< null: prompts go through the resident kernel
  /// Why the resident kernel cannot run this model's steps: they are chunks of a row a sequence.
  std::optional<Error> refusal_;
  int32_t* step_rows_ = nullptr;  // of a launched step: tokens, positions, sequences
  Pages sample_scratch_;          // where steps are launched
  Mailbox* mailbox_ = nullptr;
  uint32_t* give_up_ = nullptr;
  float* uniforms_ = nullptr;
  std::vector<float> logits_;
  std::vector<Sequence> sequences_;
  uint64_t ended_ = 0;            // sequences that draw no more, a bit each
  uint32_t next_tag_ = kMostTag;  // of the next launch's first write
  uint32_t next_draw_ = 1;        // of its first step
};

template <class T>
Status CdnaRunner::place(T*& pointer, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  WEFT_ASSIGN(DeviceMemory memory, device_->allocate(bytes));
  WEFT_TRY(device_->clear(memory.data(), bytes));
  pointer = reinterpret_cast<T*>(memory.data());
  memory_.push_back(std::move(memory));
  return {};
}

template <class T>
Status CdnaRunner::place(const T*& pointer, const std::vector<T>& data) {
  T* to = nullptr;
  WEFT_TRY(place(to, std::max<int64_t>(1, std::ssize(data))));
  pointer = to;
  return device_->upload(to, data.data(), data.size() * sizeof(T));
}

Status CdnaRunner::make_program() {
  const int units = device_->info().units;
  const PlanOptions options =
      plan_options(config_, options_.workers > 0 ? std::min(options_.workers, units) : units,
                   options_.capacity, options_.kv, options_.sequences);
  program_ = plan(config_, weights_, options);
  WEFT_TRY(verify(program_));
  // Without chunks nobody reads a product's weights as the checkpoint has them.
  const bool chunks = refuse_prefill(Arch::cdna, config_, weights_, chunk_formats()).empty();
  const bool in_cache = weights_.bytes() <= static_cast<int64_t>(device_->info().l2);
  plain_.assign(program_.operations.size(), !options_.compress_weights.value_or(!in_cache));
  return resident::decide_hold(
      {.first = chunks && !options_.hold_once.value_or(false) ? Hold::twice : Hold::once,
       .fixed = options_.hold_once.has_value()},
      refusal_,
      [&](Hold hold) {
        hold_ = hold;
        arena_ = lay_out(program_, weights_, hold);
      },
      [&] {
        return options_.sequences <= resident::kMostSequences ? lower_program()
                                                              : too_many_sequences();
      },
      [&](const Error& why_not) { return chunks ? Status() : Status(why_not); },
      [&] { return has_room(); });
}

Status CdnaRunner::too_many_sequences() const {
  return input_error(fmt::format("{} of {} sequences: the {} device has no kernel for more than {}",
                                 config_.name, options_.sequences, options_.device,
                                 resident::kMostSequences));
}

bool CdnaRunner::has_room() const {
  return arena_.bytes + lowered_.packed_bytes + resident::kBesideWeights <=
         static_cast<int64_t>(device_->info().memory);
}

Status CdnaRunner::lower_program() {
  WEFT_ASSIGN(lowered_, lower(program_, config_, weights_, arena_, options_.capacity,
                              device_->target(), plain_));
  launch_.workers = static_cast<int32_t>(program_.workers.size());
  launch_.shape = lowered_.shape;
  launch_.most_codes = lowered_.most_codes;
  launch_.events = static_cast<uint32_t>(program_.events.size());
  launch_.versions = static_cast<uint32_t>(program_.operations.size());
  return {};
}

Result<Streams> CdnaRunner::pack_weights() {
  Streams streams = pack(lowered_);
  while (!streams.refused.empty()) {
    for (const int32_t operation : streams.refused) {
      plain_[static_cast<size_t>(operation)] = true;
    }
    WEFT_TRY(lower_program());
    streams = pack(lowered_);
  }
  lowered_.pack = {};
  return streams;
}

Status CdnaRunner::load_weights() {
  WEFT_TRY(place(launch_.arena, arena_.bytes));
  for (size_t i = 0; i < weights_.tensors().size(); ++i) {
    const Tensor& tensor = weights_.tensors()[i];
    if (arena_.stages[i] != resident::kKept) {
      continue;
    }
    char* const place = launch_.arena + arena_.weights[i];
    if (tensor.mx.k > 0) {
      const std::vector<uint8_t> packed = pack_mx(tensor);
      WEFT_TRY(device_->upload(place, packed.data(), packed.size()));
      continue;
    }
    WEFT_CHECK(tensor.data != nullptr);
    WEFT_TRY(device_->upload(place, tensor.data, static_cast<size_t>(tensor.bytes())));
    if (arena_.scales[i] >= 0) {
      WEFT_TRY(device_->upload(launch_.arena + arena_.scales[i], tensor.scales.data,
                               static_cast<size_t>(tensor.scale_count()) * sizeof(float)));
    }
  }
  return {};
}

Status CdnaRunner::load_streams() {
  WEFT_ASSIGN(const Streams packed, pack_weights());
  listed_bytes_ = std::ssize(packed.listed) * static_cast<int64_t>(sizeof(Listed));
  const std::byte* at = nullptr;
  WEFT_TRY(place(at, packed.bytes));
  WEFT_TRY(place(launch_.listed, packed.listed));
  WEFT_TRY(place(launch_.list_begin, packed.list_begin));
  std::vector<const char*> streams;
  std::vector<uint32_t> bytes;
  for (size_t workgroup = 0; workgroup < lowered_.streams.size(); ++workgroup) {
    const auto worker = worker_of(workgroup);
    const int64_t end =
        worker + 1 < lowered_.streams.size() ? lowered_.streams[worker + 1] : lowered_.packed_bytes;
    streams.push_back(reinterpret_cast<const char*>(at) + lowered_.streams[worker]);
    bytes.push_back(static_cast<uint32_t>(end - lowered_.streams[worker]));
  }
  WEFT_TRY(place(launch_.streams, streams));
  return place(launch_.stream_bytes, bytes);
}

Status CdnaRunner::set_frequencies() {
  std::vector<float> frequencies;
  for (const Sequence& sequence : sequences_) {
    const std::vector<float> own = inverse_frequencies(config_, sequence.length);
    frequencies.insert(frequencies.end(), own.begin(), own.end());
  }
  return device_->upload(
      launch_.arena + arena_.buffers[static_cast<size_t>(program_.inverse_frequencies)],
      frequencies.data(), frequencies.size() * sizeof(float));
}

Status CdnaRunner::put_codes(std::span<const std::vector<Code>> workers) {
  const Products of_workers = products_of(lowered_, workers);
  std::vector<Code> codes;
  std::vector<uint32_t> begin;
  Products products;
  for (size_t workgroup = 0; workgroup < workers.size(); ++workgroup) {
    const size_t worker = worker_of(workgroup);
    begin.push_back(static_cast<uint32_t>(codes.size()));
    codes.insert(codes.end(), workers[worker].begin(), workers[worker].end());
    products.begin.push_back(static_cast<uint32_t>(products.places.size()));
    const auto places = of_workers.places.begin();
    products.places.insert(products.places.end(), places + of_workers.begin[worker],
                           places + of_workers.begin[worker + 1]);
  }
  begin.push_back(static_cast<uint32_t>(codes.size()));
  products.begin.push_back(static_cast<uint32_t>(products.places.size()));
  products.places.push_back(of_workers.places.back());  // the one after them
  WEFT_TRY(put(launch_.codes, codes));
  WEFT_TRY(put(launch_.code_begin, begin));
  WEFT_TRY(put(launch_.products, products.places));
  return put(launch_.product_begin, products.begin);
}

Status CdnaRunner::make_launch() {
  size_t codes = 0;
  size_t products = 1;  // the one after them
  for (const auto& worker : lowered_.codes) {
    codes += worker.size();
    products += static_cast<size_t>(std::count_if(worker.begin(), worker.end(),
                                                  [](const Code& code) { return code.units > 0; }));
  }
  const size_t begins = lowered_.codes.size() + 1;
  WEFT_TRY(place(launch_.codes, std::vector<Code>(codes)));
  WEFT_TRY(place(launch_.code_begin, std::vector<uint32_t>(begins)));
  WEFT_TRY(place(launch_.products, std::vector<ProductPlace>(products)));
  WEFT_TRY(place(launch_.product_begin, std::vector<uint32_t>(begins)));
  WEFT_TRY(put_codes(lowered_.codes));
  WEFT_TRY(place(launch_.event_signals, lowered_.event_signals));
  WEFT_TRY(place(launch_.counters, std::ssize(program_.events) * kCounterStride));
  WEFT_TRY(place(launch_.failure, launch_.workers));
  const int64_t tokens = options_.sequences * (options_.capacity + 1);
  WEFT_TRY(place(launch_.draws, 2 * options_.sequences * launch_.workers));
  WEFT_TRY(place(launch_.stop, 1));
  WEFT_TRY(place(uniforms_, tokens));
  launch_.uniforms = uniforms_;
  WEFT_TRY(place(give_up_, launch_.workers * kCounterStride));
  launch_.give_up = give_up_;
  WEFT_ASSIGN(
      DeviceMemory mailbox,
      device_->allocate_host(sizeof(Mailbox) + static_cast<size_t>(tokens) * sizeof(int32_t)));
  mailbox_ = new (mailbox.data()) Mailbox;
  launch_.mailbox = mailbox_;
  memory_.push_back(std::move(mailbox));
  return {};
}

Status CdnaRunner::make_sequences() {
  const int64_t sequences = options_.sequences;
  WEFT_TRY(place(launch_.tokens, sequences * (options_.capacity + 1)));
  WEFT_TRY(place(launch_.seen, sequences * seen_words()));
  logits_.resize(static_cast<size_t>(config_.vocabulary));
  sequences_.resize(static_cast<size_t>(sequences));
  return set_frequencies();
}

Status CdnaRunner::make_prefill() {
  if (hold_ == Hold::once) {  // nobody unpacks what is packed alone
    return {};
  }
  PrefillPlaces places = places_of(program_, arena_, launch_.arena, options_.sequences);
  places.widen = [this](const Tensor& tensor, const void* codes, const float* scales, DType type,
                        void* to) { return widen(tensor, codes, scales, type, to); };
  WEFT_ASSIGN(prefill_, Prefill::create(config_, weights_, std::move(places), chunk_formats(),
                                        options_.capacity, *device_, options_.sequences));
  if (refusal_) {
    WEFT_TRY(place(step_rows_, int64_t{3} * options_.sequences));
    WEFT_ASSIGN(sample_scratch_, Pages::allocate(cpu::sample_scratch_bytes(config_.vocabulary)));
  }
  return {};
}

Status CdnaRunner::widen(const Tensor& tensor, const void* codes, const float* scales, DType type,
                         void* to) {
  const bool blocks = tensor.scales.scaling == Scaling::block;
  const bool rows = tensor.scales.scaling == Scaling::row;
  const WidenParams params{.codes = codes,
                           .scales = scales,
                           .out = to,
                           .columns = static_cast<int32_t>(tensor.columns()),
                           .scale_rows = static_cast<int32_t>(blocks ? kScaleBlock : 1),
                           .row_stride = static_cast<int32_t>(blocks ? tensor.scales.row_stride
                                                              : rows ? 1
                                                                     : 0),
                           .block_stride = static_cast<int32_t>(tensor.scales.step())};
  return device_->launch({.operation = "widen",
                          .kernel = type == DType::bf16 ? "widen_bf16" : "widen_f32",
                          .groups_x = static_cast<uint32_t>(tensor.rows()),
                          .threads = kWidenThreads},
                         params, device_->stream().native);
}

Status CdnaRunner::lengthen(int sequence) {
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

Status CdnaRunner::create() {
  WEFT_ASSIGN(device_, open_hip_device(options_.device));
  WEFT_TRY(make_program());
  WEFT_TRY(load_weights());
  WEFT_TRY(make_sequences());
  if (!refusal_) {
    WEFT_TRY(load_streams());
    WEFT_TRY(make_launch());
  }
  return make_prefill();
}

Status CdnaRunner::forget(std::span<const Tokens> ids) {
  ended_ = 0;
  for (int i = 0; i < options_.sequences; ++i) {
    const Tokens own = static_cast<size_t>(i) < ids.size() ? ids[static_cast<size_t>(i)] : Tokens{};
    at(i) = {.length = std::max<int64_t>(1, std::ssize(own)), .tokens = {own.begin(), own.end()}};
    const std::vector<uint32_t> seen = resident::seen_of(own, config_.vocabulary);
    WEFT_TRY(device_->upload(launch_.seen + i * seen_words(), seen.data(),
                             seen.size() * sizeof(uint32_t)));
    WEFT_TRY(device_->upload(tokens_of(i), own.data(), own.size_bytes()));
  }
  return set_frequencies();
}

Status CdnaRunner::clear_tags() {
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    if (!arena_.tagged[i]) {
      continue;
    }
    const Buffer& buffer = program_.buffers[i];
    const size_t copies = buffer.space == Space::worker ? program_.workers.size() : 1;
    for (size_t copy = 0; copy < copies; ++copy) {
      WEFT_TRY(device_->clear(
          launch_.arena + arena_.buffers[i] + static_cast<int64_t>(copy) * arena_.worker_bytes,
          static_cast<size_t>(buffer.bytes())));
    }
  }
  next_tag_ = 1;
  return {};
}

Status CdnaRunner::run_launched(int64_t steps, const OnToken& on_token) {
  const auto count = static_cast<size_t>(options_.sequences);
  for (; steps > 0 && ended_ != all_sequences(); --steps) {
    std::vector<int32_t> rows(3 * count);
    for (int i = 0; i < options_.sequences; ++i) {
      const auto row = static_cast<size_t>(i);
      if (!ended(i)) {  // otherwise it is stepped with the others, over what its cache held
        rows[row] = at(i).tokens.back();
        rows[count + row] = static_cast<int32_t>(at(i).position);
      }
      rows[2 * count + row] = i;
    }
    WEFT_TRY(device_->upload(step_rows_, rows.data(), rows.size() * sizeof(int32_t)));
    WEFT_TRY(prefill_->step(step_rows_, {step_rows_ + count, step_rows_ + 2 * count},
                            options_.sequences));
    const ConstMatrix logits = prefill_->step_logits();
    for (int i = 0; i < options_.sequences; ++i) {
      Sequence& own = at(i);
      own.logits_valid = !ended(i);
      if (!own.logits_valid) {
        continue;
      }
      own.logits.resize(static_cast<size_t>(config_.vocabulary));
      WEFT_TRY(device_->download(own.logits.data(),
                                 static_cast<const float*>(logits.data) + i * logits.stride,
                                 own.logits.size() * sizeof(float)));
      SamplingOptions sampling = launch_.sampling;
      sampling.seed += static_cast<uint64_t>(i);
      const int32_t token = cpu::sample({.logits = own.logits.data(),
                                         .vocabulary = config_.vocabulary,
                                         .options = sampling,
                                         .history = own.tokens,
                                         .draw = static_cast<uint64_t>(own.position + 1)},
                                        {sample_scratch_.data(), sample_scratch_.size()});
      own.tokens.push_back(token);
      ++own.position;
      if (!on_token(i, token)) {
        end(i);
      }
    }
  }
  return {};
}

Status CdnaRunner::run(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token) {
  if (refusal_) {
    return run_launched(steps, on_token);
  }
  while (steps > 0 && ended_ != all_sequences()) {
    if (next_tag_ + launch_.versions > kMostTag) {
      WEFT_TRY(clear_tags());
    }
    const int64_t now = std::min<int64_t>(steps, (kMostTag - next_tag_) / launch_.versions);
    WEFT_TRY(run_launch(now, std::min(forced, now), ends, on_token));
    steps -= now;
    forced -= std::min(forced, now);
  }
  return {};
}

Status CdnaRunner::run_launch(int64_t steps, int64_t forced, Tokens ends, const OnToken& on_token) {
  for (int i = 0; i < options_.sequences; ++i) {
    launch_.position[i] = static_cast<int32_t>(at(i).position);
  }
  launch_.ended = static_cast<uint32_t>(ended_);
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
    for (int s = 0; s < options_.sequences; ++s) {
      for (int64_t i = 0; i < steps; ++i) {
        uniforms.push_back(uniform_draw(launch_.sampling.seed + static_cast<uint64_t>(s),
                                        static_cast<uint64_t>(at(s).position + i + 1)));
      }
    }
    WEFT_TRY(device_->upload(uniforms_, uniforms.data(), uniforms.size() * sizeof(float)));
  }
  launch_.first_tag = next_tag_;
  next_tag_ += static_cast<uint32_t>(steps) * launch_.versions;
  launch_.first_draw = next_draw_;
  next_draw_ += static_cast<uint32_t>(steps);
  const auto workers = static_cast<size_t>(launch_.workers);
  std::ranges::fill(mailbox_->tokens, 0u);
  WEFT_TRY(device_->clear(launch_.counters, program_.events.size() * kCounterStride * 4));
  WEFT_TRY(device_->clear(launch_.stop, sizeof(*launch_.stop)));
  WEFT_TRY(device_->clear(launch_.failure, workers * sizeof(Failure)));
  static constexpr std::string_view kKernels[][2] = {{"decode", "decode_several"},
                                                     {"decode_fp8", "decode_fp8_several"},
                                                     {"decode_f16", "decode_f16_several"},
                                                     {"decode_mx", ""}};
  const auto of_weights = static_cast<int>(lowered_.weights);
  const std::string_view kernel =
      lowered_.latents ? "decode_latents"
      : lowered_.shape.experts && lowered_.weights == KernelWeights::bf16
          ? "decode_experts"
          : kKernels[of_weights][options_.sequences > 1 ? 1 : 0];
  WEFT_TRY(device_->start({.operation = kernel,
                           .kernel = kernel,
                           .groups_x = static_cast<uint32_t>(workers),
                           .threads = kTeamThreads},
                          launch_, device_->stream().native));
  for (int i = 0; i < options_.sequences; ++i) {
    at(i).position += ended(i) ? 0 : forced;
  }
  const uint64_t ended_before = ended_;
  std::array<int64_t, resident::kMostSequences> taken = {};
  WEFT_TRY(take_tokens(on_token, taken));
  for (int i = 0; i < options_.sequences; ++i) {
    // Otherwise it ended before, or the kernel ran ahead.
    at(i).logits_valid =
        (ended_before >> i & 1) == 0 && forced + taken[static_cast<size_t>(i)] == steps;
  }
  std::vector<Failure> failures(workers);
  WEFT_TRY(device_->download(failures.data(), launch_.failure, workers * sizeof(Failure)));
  return explain(failures);
}

Status CdnaRunner::take_tokens(const OnToken& on_token, std::span<int64_t> taken) {
  using Clock = std::chrono::steady_clock;
  // A sequence of which a token has come; -1: none.
  const auto next = [&] {
    for (int i = 0; i < options_.sequences; ++i) {
      const std::atomic_ref<uint32_t> arrived(mailbox_->tokens[i]);
      if (taken[static_cast<size_t>(i)] < arrived.load(std::memory_order_acquire)) {
        return i;
      }
    }
    return -1;
  };
  Clock::time_point last = Clock::now();
  bool running = true;
  Status told;
  for (int from = next(); running || from >= 0; from = next()) {
    if (from >= 0) {
      const int32_t token =
          mailbox_->token[from * launch_.steps + taken[static_cast<size_t>(from)]++];
      last = Clock::now();
      if (!ended(from)) {
        ++at(from).position;
        if (!on_token(from, token)) {
          end(from);
          const auto stop = static_cast<uint32_t>(ended_);
          told = device_->upload_beside(launch_.stop, &stop, sizeof(stop));
        }
      }
      continue;
    }
    WEFT_ASSIGN(running, device_->is_busy(device_->stream().native));
    if (!device_->info().keeps_time) {  // it needs the processor more than we
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // A simulator finds by itself that nobody gets on.
    if (running && told.ok() && device_->info().keeps_time && Clock::now() - last > kPatience) {
      const std::vector<uint32_t> all(static_cast<size_t>(launch_.workers) * kCounterStride, 1);
      told = device_->upload_beside(give_up_, all.data(), all.size() * sizeof(uint32_t));
      last = Clock::now();
    }
  }
  return told;
}

Status CdnaRunner::explain(std::span<const Failure> failures) const {
  const Failure* first = nullptr;
  for (const Failure& failure : failures) {
    const auto before = [](const Failure& a, const Failure& b) {
      return std::pair(a.tag, a.operation) < std::pair(b.tag, b.operation);
    };
    if (failure.happened != 0 && (first == nullptr || before(failure, *first))) {
      first = &failure;
    }
  }
  if (first == nullptr) {
    return {};
  }
  const auto name = [&](const auto& list, int32_t index, std::string_view otherwise) {
    return index >= 0 ? list[static_cast<size_t>(index)].name : std::string(otherwise);
  };
  const int64_t layer =
      first->operation >= 0 ? program_.operations[static_cast<size_t>(first->operation)].layer : -1;
  return device_error(
      fmt::format("{}: the decode kernel gave up in step {}: worker {} waited too long in {} of "
                  "layer {} for {}",
                  options_.device, (first->tag - launch_.first_tag) / launch_.versions,
                  worker_of(static_cast<size_t>(first->worker)),
                  name(program_.operations, first->operation, "the beginning"), layer,
                  name(program_.events, first->event, "its data")));
}

Status CdnaRunner::begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
                         const OnToken& on_token) {
  WEFT_TRY(forget(prompts));
  launch_.sampling = sampling;
  int64_t steps = 1;
  for (int i = 0; i < options_.sequences; ++i) {
    const int64_t length = std::ssize(prompts[static_cast<size_t>(i)]);
    if (prefill_ != nullptr && (refusal_ || length >= fewest_tokens(chunk_formats()))) {
      WEFT_TRY(prefill_->feed(tokens_of(i), 0, length - 1, i));
      at(i).position = length - 1;
    }
    steps = std::max(steps, length - at(i).position);
  }
  // All reach the ends of their prompts in the same step: shorter ones begin later.
  for (int i = 0; i < options_.sequences; ++i) {
    at(i).position = std::ssize(prompts[static_cast<size_t>(i)]) - steps;
  }
  return run(steps, steps - 1, {}, on_token);
}

Status CdnaRunner::decode(int64_t steps, Tokens ends, const OnToken& on_token) {
  const RopeScaling& scaling = config_.rope_scaling;
  const bool longrope = scaling.kind == RopeScaling::Kind::longrope;
  while (steps > 0 && ended_ != all_sequences()) {
    int64_t now = steps;
    for (int i = 0; longrope && i < options_.sequences; ++i) {
      if (ended(i)) {
        continue;
      }
      if (at(i).position < scaling.original_context) {
        now = std::min(now, scaling.original_context - at(i).position);
      } else if (at(i).length <= scaling.original_context) {
        WEFT_TRY(lengthen(i));
      }
    }
    WEFT_TRY(run(now, 0, ends, on_token));
    steps -= now;
  }
  return {};
}

Result<Score> CdnaRunner::score(Tokens ids) {
  WEFT_TRY(forget({&ids, 1}));
  launch_.sampling = {};
  if (prefill_ != nullptr) {
    return prefill_->score(launch_.tokens, std::ssize(ids));
  }
  const auto step = [&](size_t i) -> Result<std::span<const float>> {
    for (Sequence& sequence : sequences_) {
      sequence.position = static_cast<int64_t>(i);
    }
    WEFT_TRY(run(1, 0, {}, [](int, int32_t) { return true; }));
    // What is drawn takes the place of the next token.
    WEFT_TRY(device_->upload(launch_.tokens, ids.data(), ids.size_bytes()));
    return logits(0);
  };
  WEFT_ASSIGN(Score score, score_by_steps(ids, step));
  for (Sequence& sequence : sequences_) {
    sequence = {};
  }
  return score;
}

std::span<const float> CdnaRunner::logits(int sequence) {
  if (refusal_) {
    return at(sequence).logits_valid ? std::span<const float>(at(sequence).logits)
                                     : std::span<const float>();
  }
  const size_t bytes = logits_.size() * sizeof(float);
  const char* place = launch_.arena + arena_.buffers[static_cast<size_t>(program_.logits)] +
                      static_cast<size_t>(sequence) * bytes;
  const bool there =
      at(sequence).logits_valid && device_->download(logits_.data(), place, bytes).ok();
  return there ? std::span<const float>(logits_) : std::span<const float>();
}

Result<std::optional<int32_t>> CdnaRunner::run(int32_t token, int64_t position, int32_t end) {
  std::vector<std::vector<Code>> cut;
  for (const auto& worker : lowered_.codes) {
    cut.push_back(resident::codes_until(worker, end));
  }
  WEFT_TRY(put_codes(cut));
  WEFT_TRY(device_->upload(launch_.tokens + position, &token, sizeof(token)));
  at(0).position = position;
  ended_ = 0;
  std::optional<int32_t> drawn;
  WEFT_TRY(run(1, 0, {}, [&](int, int32_t next) {
    drawn = next;
    return true;
  }));
  return end == std::ssize(program_.operations) ? drawn : std::nullopt;
}

Result<Image> CdnaRunner::read(BufferId id, size_t worker) {
  const auto index = static_cast<size_t>(id);
  const Buffer& buffer = program_.buffers[index];
  const auto own = buffer.space == Space::worker ? static_cast<int64_t>(worker) : 0;
  std::vector<std::byte> bytes(static_cast<size_t>(resident::image_bytes(buffer)));
  WEFT_TRY(device_->download(bytes.data(),
                             launch_.arena + arena_.buffers[index] + own * arena_.worker_bytes,
                             bytes.size()));
  return resident::decode_buffer(program_, arena_, id, bytes, launch_.first_tag);
}

Result<double> CdnaRunner::read_bandwidth() {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  constexpr int kRuns = 5;
  if (!device_->info().keeps_time) {
    return device_error(fmt::format(
        "{} keeps no time: `weft bench OP` prints what operations count there", options_.device));
  }
  WEFT_ASSIGN(const DeviceMemory out, device_->allocate(sizeof(uint32_t)));
  const int64_t groups = 2 * device_->info().units;
  const int64_t bytes = std::min(arena_.bytes, kMostBytes);
  const ReadParams params{.data = launch_.arena,
                          .bytes = bytes,
                          .each = round_up(ceil_div(bytes, groups), kReadBytes),
                          .out = reinterpret_cast<uint32_t*>(out.data()),
                          .wanted = 1};
  const auto work = [&](Stream stream) {
    return device_->launch({.operation = "read",
                            .kernel = "read",
                            .groups_x = static_cast<uint32_t>(ceil_div(bytes, params.each)),
                            .threads = kReadThreads},
                           params, stream.native);
  };
  WEFT_ASSIGN(std::vector<double> seconds, device_->time(work, kRuns));
  std::ranges::sort(seconds);
  return static_cast<double>(bytes) / seconds[kRuns / 2];
}

}  // namespace

Result<std::unique_ptr<Runner>> create_runner(const ModelConfig& config, const Weights& weights,
                                              const RunnerOptions& options) {
  auto runner = std::make_unique<CdnaRunner>(config, weights, options);
  WEFT_TRY(runner->create());
  return std::unique_ptr<Runner>(std::move(runner));
}

Result<std::unique_ptr<Subject>> create_subject(const ModelConfig& config, const Weights& weights,
                                                const RunnerOptions& options) {
  RunnerOptions own = options;
  own.hold_once = true;  // nothing is looked at but steps
  auto runner = std::make_unique<CdnaRunner>(config, weights, own);
  WEFT_TRY(runner->create());
  if (const auto& refusal = runner->refusal()) {
    return input_error(
        fmt::format("only the resident kernel's steps can be looked into, and {}'s are launched "
                    "({})",
                    config.name, refusal->message));
  }
  return std::unique_ptr<Subject>(std::move(runner));
}

}  // namespace weft::cdna
