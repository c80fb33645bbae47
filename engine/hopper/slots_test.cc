// Slots on a GPU, or on the interpreter of its kernels: requests that come and go get what each
// gets on the CPU, or, where rows are rounded, what each gets alone.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "arch/device.h"
#include "engine/slots.h"
#include "ops/matrix.h"

namespace weft {
namespace {

constexpr int64_t kVocabulary = 64;

ModelConfig tiny() {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 2;
  config.hidden = 128;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.ffn = 96;
  config.vocabulary = kVocabulary;
  config.context = 256;
  config.rope_scaling = {};
  config.eos = {3};
  return config;
}

class RandomRequests {
 public:
  explicit RandomRequests(uint64_t seed) : random_(seed) {
    for (auto& beginning : beginnings_) {
      beginning = tokens(150);
    }
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  std::vector<int32_t> tokens(int64_t count) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(static_cast<int32_t>(4 + below(kVocabulary - 4)));
    }
    return result;
  }
  Request next() {
    Request request;
    const auto& beginning = beginnings_[static_cast<size_t>(below(2))];
    request.prompt.assign(beginning.begin(), beginning.begin() + below(150));
    const std::vector<int32_t> rest = tokens(1 + below(20));
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    request.max_tokens = 1 + below(10);
    // Most launches are of several steps, of the best tokens.
    if (below(4) == 0) {
      request.sampling = {.temperature = 0.8f, .seed = random_()};
    }
    request.want_logprob = below(3) == 0;
    request.eos = below(2) == 0 ? Eos::ends : Eos::ignore;
    if (below(3) == 0) {
      request.stop_ids = tokens(3);
    }
    return request;
  }

 private:
  std::mt19937_64 random_;
  std::vector<int32_t> beginnings_[2];
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // zeros where they are not wanted
  Stop stop = Stop::caller;
  bool ended = false;
};

std::map<RequestId, Answer> run(Slots& slots, const std::function<bool()>& between = {}) {
  std::map<RequestId, Answer> answers;
  for (;;) {
    const auto more = slots.step(
        [&](const TokenEvent& event) {
          answers[event.id].tokens.push_back(event.token);
          answers[event.id].logprobs.push_back(event.logprob);
        },
        [&](const EndEvent& event) {
          answers[event.id].stop = event.stop;
          answers[event.id].ended = true;
        });
    EXPECT_TRUE(more.ok()) << more.error().message;
    if (!more.ok() || (!(between && between()) && !*more)) {
      return answers;
    }
  }
}

class HopperSlots : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = open_device("cuda"); !device.ok()) {
      GTEST_SKIP() << device.error().message;
    }
  }

  static std::unique_ptr<Slots> make(SlotsOptions options, bool round,
                                     const ModelConfig& config = tiny()) {
    options.kv = round ? DType::bf16 : DType::f32;
    options.round_activations = round;
    auto slots = Slots::create(config, Weights::generate(config, 7, 2).value(), options);
    EXPECT_TRUE(slots.ok()) << slots.error().message;
    return std::move(*slots);
  }

  /// Requests that come and go on `crowded`, each held against what it gets alone on `alone`:
  /// tokens, and the bits of their log-probabilities unless the other is the CPU.
  static void compare(Slots& alone, Slots& crowded, int64_t count, uint64_t seed,
                      bool on_cpu = false) {
    RandomRequests random(seed);
    std::map<RequestId, Answer> expected;
    std::map<RequestId, bool> cancelled;
    int64_t submitted = 0;
    const auto submit_some = [&] {
      for (int64_t i = random.below(4); i > 0 && submitted < count; --i, ++submitted) {
        const Request request = random.next();
        const RequestId id = crowded.submit(request).value();
        EXPECT_TRUE(alone.submit(request).ok());
        expected[id] = run(alone).begin()->second;
        if (random.below(6) == 0) {
          const auto earlier = static_cast<RequestId>(1 + random.below(static_cast<int64_t>(id)));
          crowded.cancel(earlier);
          cancelled[earlier] = true;
        }
      }
      return submitted < count;
    };
    submit_some();
    std::map<RequestId, Answer> answers = run(crowded, submit_some);
    for (const auto& [id, answer] : expected) {
      SCOPED_TRACE("request " + std::to_string(id));
      Answer& got = answers[id];
      EXPECT_TRUE(got.ended);
      if (cancelled.contains(id) && got.stop == Stop::caller) {
        ASSERT_LE(got.tokens.size(), answer.tokens.size());
        EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), answer.tokens.begin()));
      } else {
        EXPECT_EQ(got.tokens, answer.tokens);
        EXPECT_EQ(got.stop, answer.stop);
        EXPECT_TRUE(on_cpu || got.logprobs == answer.logprobs) << "other bits";
      }
    }
    const SlotsStatus status = crowded.status();
    EXPECT_EQ(status.pages_used, 0);
    EXPECT_EQ(status.running + status.joining + status.queued, 0);
    EXPECT_GT(status.cached_tokens, 0);
    EXPECT_GT(status.prefill_pauses.count + status.mixed_steps, 0);
  }
};

TEST_F(HopperSlots, AnswersAreTheCpus) {
  const auto alone = make({.workers = 1, .slots = 1}, false);
  const auto crowded =
      make({.device = "cuda", .workers = 3, .slots = 3, .pages = 10, .prefill_chunk = 64}, false);
  compare(*alone, *crowded, 24, 1, true);
}

// More than four rows are rounded to bf16 where they meet weights, whoever else is there.
TEST_F(HopperSlots, AnswersDoNotDependOnTheCompany) {
  const SlotsOptions options{
      .device = "cuda", .workers = 3, .slots = 6, .pages = 20, .prefill_chunk = 64};
  SlotsOptions unshared = options;
  unshared.share_prefixes = false;
  const auto alone = make(unshared, true);
  const auto crowded = make(options, true);
  compare(*alone, *crowded, 14, 2);
}

// More than eight are steps of launched kernels.
TEST_F(HopperSlots, AnswersOfManyAreTheCpus) {
  const auto alone = make({.workers = 1, .slots = 1}, false);
  const SlotsOptions many{
      .device = "cuda", .workers = 3, .slots = 10, .pages = 30, .prefill_chunk = 64};
  const auto crowded = make(many, false);
  compare(*alone, *crowded, 24, 3, true);
}

TEST_F(HopperSlots, AnswersOfManyDoNotDependOnTheCompanySlow) {
  const SlotsOptions options{
      .device = "cuda", .workers = 3, .slots = 10, .pages = 30, .prefill_chunk = 64};
  const auto alone = make(options, true);
  const auto crowded = make(options, true);
  compare(*alone, *crowded, 14, 4);
}

// Of more than 32 in bf16, steps that feed prompts and steps that do not are the same products.
TEST_F(HopperSlots, AnswersOfVeryManyDoNotDependOnPromptsInTheirStepsSlow) {
  SlotsOptions options{
      .device = "cuda", .workers = 3, .slots = 36, .pages = 60, .prefill_chunk = 128};
  const auto crowded = make(options, true);
  options.share_prefixes = false;
  const auto alone = make(options, true);
  compare(*alone, *crowded, 12, 5);
  EXPECT_GT(crowded->status().mixed_steps, 3);
}

/// A model over latent rows, of which RoPE leaves so many elements of a head.
ModelConfig over_latents(int64_t unturned) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 1;
  config.hidden = 64;
  config.query_heads = 2;
  config.latent.unturned = unturned;
  config.latent.value = 16;
  config.ffn = 64;
  config.experts = {};
  config.vocabulary = kVocabulary;
  config.context = 256;
  config.eos = {3};
  return config;
}

// Latent rows have one cache a layer, and a sequence's keys are summed as if it were alone: in
// prompts those that are multiplied out, and those that are not.
TEST_F(HopperSlots, AnswersOverLatentRowsDoNotDependOnTheCompanySlow) {
  for (const int64_t unturned : {64, 16}) {
    SCOPED_TRACE(unturned);
    const ModelConfig config = over_latents(unturned);
    SlotsOptions options{
        .device = "cuda", .workers = 3, .slots = 3, .pages = 12, .prefill_chunk = 64};
    const auto crowded = make(options, true, config);
    options.share_prefixes = false;
    const auto alone = make(options, true, config);
    compare(*alone, *crowded, 8, 6);
  }
}

// Who else draws experts decides which a worker multiplies, and how many, but not in what order a
// sequence's products are added.
TEST_F(HopperSlots, AnswersOfExpertsDoNotDependOnTheCompanySlow) {
  ModelConfig config = preset("olmoe-1b-7b").value();
  config.layers = 2;
  config.hidden = 512;  // two slices of a unit, which two warps could have
  config.query_heads = config.kv_heads = 4;
  config.head_dim = 32;
  config.experts.count = 7;
  config.experts.chosen = 3;
  config.experts.size = 304;
  config.vocabulary = kVocabulary;
  config.context = 256;
  config.eos = {3};
  SlotsOptions options{.device = "cuda", .workers = 3, .slots = 5, .pages = 20};
  const auto crowded = make(options, true, config);
  options.share_prefixes = false;
  const auto alone = make(options, true, config);
  compare(*alone, *crowded, 10, 5);
}

// Steps of launched kernels, and prompts of which experts have few tokens, or many.
TEST_F(HopperSlots, AnswersOfManyExpertsDoNotDependOnTheCompanySlow) {
  ModelConfig config = tiny();
  config.hidden = 512;
  config.experts = preset("qwen3-30b-a3b").value().experts;
  config.experts.count = 32;
  config.experts.chosen = 2;
  config.experts.size = 32;
  SlotsOptions options{
      .device = "cuda", .workers = 3, .slots = 10, .pages = 30, .prefill_chunk = 64};
  const auto crowded = make(options, true, config);
  options.prefill_chunk = 0;
  options.share_prefixes = false;
  const auto alone = make(options, true, config);
  compare(*alone, *crowded, 14, 7);
}

/// Requests whose answers repeat themselves, all at once.
std::vector<Answer> repeat(Slots& slots, int64_t count) {
  std::map<RequestId, Answer> expected;
  for (int64_t i = 0; i < count; ++i) {
    Request request;
    for (int64_t t = 0; t < 12 + i; ++t) {
      request.prompt.push_back(static_cast<int32_t>(4 + t % (3 + i)));
    }
    request.max_tokens = 30;
    request.eos = Eos::ignore;
    if (i % 3 == 2) {
      request.sampling = {.temperature = 0.5f, .top_k = 2, .seed = 5};
    }
    EXPECT_TRUE(slots.submit(request).ok());
  }
  std::vector<Answer> answers;
  for (auto& [id, answer] : run(slots)) {
    answers.push_back(std::move(answer));
  }
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << "request " << i;
  }
}

// Few rows feed prompts in their steps where bits may move.
TEST_F(HopperSlots, PromptsAreFedInStepsOfFewUnlessExact) {
  for (const bool exact : {true, false}) {
    const auto slots = make({.device = "cuda",
                             .workers = 3,
                             .slots = 3,
                             .pages = 10,
                             .prefill_chunk = 64,
                             .exact = exact},
                            false);
    const auto cpu = make({.workers = 1, .slots = 1}, false);
    expect_same(repeat(*slots, 3), repeat(*cpu, 3));
    EXPECT_EQ(slots->status().mixed_steps > 0, !exact);
  }
}

// Between launches of the resident kernel, drafts are rows of a launched step.
TEST_F(HopperSlots, DraftsChangeNoTokens) {
  const auto cpu = make({.workers = 1, .slots = 1}, false);
  for (const int64_t count : {1, 3}) {
    const auto slots = make(
        {.device = "cuda", .workers = 3, .slots = count, .pages = 10, .draft = 4, .exact = false},
        false);
    expect_same(repeat(*slots, count), repeat(*cpu, count));
    EXPECT_GT(slots->status().accepted, 5 * count);
    EXPECT_GT(slots->status().drafted, slots->status().accepted);
  }
}

// Steps of launched kernels are as they are without drafts, which are rows that nobody has.
TEST_F(HopperSlots, DraftsAmongManyChangeNoBit) {
  const SlotsOptions options{.device = "cuda", .workers = 3, .slots = 10, .pages = 30};
  SlotsOptions drafting = options;
  drafting.draft = 3;
  const auto with = make(drafting, true);
  expect_same(repeat(*with, 4), repeat(*make(options, true), 4));
  EXPECT_GT(with->status().accepted, 20);
}

TEST_F(HopperSlots, BeginningsComeBackFromHostMemory) {
  const auto slots =
      make({.device = "cuda", .workers = 3, .slots = 1, .pages = 2, .host_pages = 4}, false);
  RandomRequests random(9);
  const std::vector<int32_t> first = random.tokens(2 * kKvPage - 20);
  const std::vector<int32_t> second = random.tokens(2 * kKvPage - 20);
  std::vector<Answer> answers;
  for (const auto* prompt : {&first, &second, &first}) {
    ASSERT_TRUE(slots->submit({.prompt = *prompt, .max_tokens = 4, .eos = Eos::ignore}).ok());
    answers.push_back(run(*slots).begin()->second);
  }
  EXPECT_EQ(answers[0].tokens, answers[2].tokens);
  EXPECT_EQ(slots->status().cached_tokens, kKvPage);
  EXPECT_EQ(slots->status().pages_brought, 1);
}

TEST_F(HopperSlots, RefusesInASentence) {
  const auto refusal = [](const SlotsOptions& options) {
    const auto slots = Slots::create(tiny(), Weights::generate(tiny(), 7, 2).value(), options);
    return slots.ok() ? std::string() : slots.error().message;
  };
  EXPECT_EQ(refusal({.device = "cuda", .prefill_chunk = 4096}),
            "4096 tokens of a prefill chunk cannot be had: use 1 to 2048");
  EXPECT_EQ(refusal({.device = "cuda", .draft = 2}),
            "drafts on cuda with up to 8 slots are verified by other kernels than those that draw "
            "without them, and a logit's last bits differ: use --exact off, more slots or no "
            "--draft");
}

}  // namespace
}  // namespace weft
