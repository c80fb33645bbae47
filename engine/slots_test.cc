#include "engine/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/splitmix.h"
#include "ops/matrix.h"

namespace weft {
namespace {

constexpr int64_t kVocabulary = 40;

ModelConfig tiny() {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 2;
  config.hidden = 64;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 96;
  config.vocabulary = kVocabulary;
  config.context = 512;
  config.rope_scaling = {};
  config.eos = {3};
  return config;
}

struct Fake {
  bool copies = true;      ///< pages
  int64_t most_steps = 0;  ///< that it takes at once
  bool repeats = false;    ///< logits follow from the last token alone: answers are cycles
  bool mixes = false;      ///< steps feed prompts
};

/// A runner whose cache has in each place a number made of all tokens up to it, and whose logits
/// follow from the last one: cheap, and wrong wherever a page is.
class FakeRunner : public BatchRunner {
 public:
  FakeRunner(int64_t pages, const Fake& fake)
      : fake_(fake), cells_(static_cast<size_t>((pages + 1) * kKvPage)) {}

  Status feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) override {
    waiting_.push_back({{tokens.begin(), tokens.end()}, first, table});
    return fake_.mixes ? Status{} : settle();
  }
  Status settle() override {
    for (const auto& [tokens, first, table] : waiting_) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        write(tokens[i], first + static_cast<int64_t>(i), table);
      }
      for (int64_t i = 0; i < kFedBeyond; ++i) {
        write(-1, first + std::ssize(tokens) + i, table);
      }
    }
    waiting_.clear();
    return {};
  }
  bool mixes() const override { return fake_.mixes; }
  Result<std::span<float>> step(std::span<const StepRow> rows) override {
    WEFT_TRY(settle());
    logits_.resize(rows.size() * kVocabulary);
    for (const StepRow& row : rows) {
      write(row.token, row.position, row.table);
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      const uint64_t state = fake_.repeats ? static_cast<uint64_t>(rows[r].token)
                                           : cell(rows[r].position, rows[r].table);
      for (size_t i = 0; i < kVocabulary; ++i) {
        logits_[r * kVocabulary + i] = static_cast<float>(splitmix(state + i) % 4096) / 512;
      }
    }
    return std::span(logits_);
  }
  Result<std::span<const int32_t>> step_best(std::span<const StepRow> rows) override {
    WEFT_TRY(step(rows));
    best_.clear();
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto first = logits_.begin() + static_cast<ptrdiff_t>(r * kVocabulary);
      best_.push_back(static_cast<int32_t>(std::max_element(first, first + kVocabulary) - first));
    }
    return std::span<const int32_t>(best_);
  }
  Status run(std::span<const StepRow> rows, int64_t steps, const OnBest& on_best) override {
    EXPECT_LE(steps, waiting_.empty() ? fake_.most_steps : 1);
    std::vector<StepRow> live(rows.begin(), rows.end());
    std::vector<size_t> row_of(rows.size());
    std::iota(row_of.begin(), row_of.end(), size_t{0});
    for (int64_t step = 0; step < steps && !live.empty(); ++step) {
      WEFT_TRY(step_best(live));
      size_t kept = 0;
      for (size_t i = 0; i < live.size(); ++i) {
        if (on_best(row_of[i], best_[i])) {
          row_of[kept] = row_of[i];
          live[kept++] = {best_[i], live[i].position + 1, live[i].table};
        }
      }
      live.resize(kept);
    }
    return {};
  }
  int64_t most_steps() const override { return fake_.most_steps; }
  Status copy_page(int32_t from, int32_t to) override {
    WEFT_TRY(settle());
    if (fake_.copies) {
      std::copy_n(&cells_[static_cast<size_t>(from * kKvPage)], kKvPage,
                  &cells_[static_cast<size_t>(to * kKvPage)]);
    }
    return {};
  }
  int64_t most_fed() const override { return 512; }
  int64_t most_rows() const override { return 8; }

 private:
  uint64_t& cell(int64_t position, const int32_t* table) {
    return cells_[static_cast<size_t>(table[position / kKvPage] * kKvPage + position % kKvPage)];
  }
  void write(int32_t token, int64_t position, const int32_t* table) {
    const uint64_t before = position > 0 ? cell(position - 1, table) : 0;
    cell(position, table) = splitmix(before * kSplitMixStep + static_cast<uint32_t>(token) + 1);
  }

  struct Fed {
    std::vector<int32_t> tokens;
    int64_t first;
    const int32_t* table;
  };

  const Fake fake_;
  std::vector<Fed> waiting_;
  std::vector<uint64_t> cells_;
  std::vector<float> logits_;
  std::vector<int32_t> best_;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> numbers;  // log-probabilities
  EndEvent end;
  bool ended = false;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && numbers == other.numbers && end.stop == other.end.stop;
  }
};

/// Steps until nothing is left; `between` runs after each step.
std::map<RequestId, Answer> run(Slots& slots, const std::function<bool()>& between = {}) {
  std::map<RequestId, Answer> answers;
  const auto on_token = [&](const TokenEvent& event) {
    Answer& answer = answers[event.id];
    EXPECT_EQ(event.first, answer.tokens.empty());
    answer.tokens.push_back(event.token);
    answer.numbers.push_back(event.logprob);
    for (const auto& [token, logprob] : event.top) {
      answer.numbers.push_back(logprob);
    }
  };
  const auto on_end = [&](const EndEvent& event) {
    EXPECT_FALSE(answers[event.id].ended);
    answers[event.id].end = event;
    answers[event.id].ended = true;
  };
  for (;;) {
    const bool more = slots.step(on_token, on_end).value();
    if (!(between && between()) && !more) {
      return answers;
    }
  }
}

class RandomRequests {
 public:
  RandomRequests(uint64_t seed, int64_t longest) : random_(seed), longest_(longest) {
    for (auto& beginning : beginnings_) {
      beginning = tokens(longest_);
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
    const auto& beginning = beginnings_[static_cast<size_t>(below(std::ssize(beginnings_)))];
    request.prompt.assign(beginning.begin(), beginning.begin() + below(longest_));
    const std::vector<int32_t> rest = tokens(1 + below(longest_ / 4));
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    request.max_tokens = 1 + below(12);
    request.sampling.seed = random_();
    request.sampling.temperature = below(2) == 0 ? 0.0f : 0.7f;
    request.sampling.top_k = static_cast<int32_t>(below(3) * 5);
    request.sampling.top_p = below(2) == 0 ? 1.0f : 0.9f;
    request.sampling.repetition_penalty = below(4) == 0 ? 1.3f : 1.0f;
    request.eos = below(2) == 0 ? Eos::ends : Eos::ignore;
    if (below(3) == 0) {
      request.stop_ids = tokens(2);
    }
    request.want_logprob = below(2) == 0;
    request.logprobs = static_cast<int>(below(3));
    if (below(4) == 0) {
      request.adjust = [](std::span<const int32_t> generated, std::span<float> logits) {
        logits[generated.size() % logits.size()] = -std::numeric_limits<float>::infinity();
      };
    }
    return request;
  }

 private:
  std::mt19937_64 random_;
  const int64_t longest_;
  std::array<std::vector<int32_t>, 5> beginnings_;
};

using Make = std::function<std::unique_ptr<Slots>(const SlotsOptions&)>;

SlotsOptions alone_options() {
  SlotsOptions options;
  options.slots = 1;
  options.pages = 16;
  options.workers = 1;
  options.share_prefixes = false;
  return options;
}

SlotsOptions crowded_options() {
  SlotsOptions options;
  options.slots = 11;  // more than a step's rows
  options.pages = 40;  // too few for all of them
  options.workers = 2;
  options.prefill_chunk = 64;
  options.host_pages = 10;
  options.queue = 100000;
  options.draft = 3;
  return options;
}

/// How many of `count` random requests are answered otherwise among others than alone.
int64_t count_differences(int64_t count, const Make& make_alone, const Make& make_crowded,
                          uint64_t seed) {
  RandomRequests random(seed, 200);
  const auto alone = make_alone(alone_options());
  const auto crowded = make_crowded(crowded_options());
  std::map<RequestId, Answer> expected;
  std::map<RequestId, bool> cancelled;
  int64_t submitted = 0;
  const auto submit_some = [&] {
    for (int64_t i = random.below(4); i > 0 && submitted < count; --i, ++submitted) {
      const Request request = random.next();
      EXPECT_TRUE(alone->submit(request).ok());
      Answer answer = run(*alone).begin()->second;
      const RequestId id = crowded->submit(request).value();
      expected[id] = std::move(answer);
      if (random.below(10) == 0) {
        const auto earlier = static_cast<RequestId>(1 + random.below(static_cast<int64_t>(id)));
        crowded->cancel(earlier);
        cancelled[earlier] = true;
      }
    }
    return submitted < count;
  };
  submit_some();
  const std::map<RequestId, Answer> answers = run(*crowded, submit_some);
  int64_t different = 0;
  for (const auto& [id, answer] : expected) {
    const auto at = answers.find(id);
    if (at == answers.end() || !at->second.ended) {
      ++different;
      continue;
    }
    const Answer& got = at->second;
    if (cancelled.contains(id) && got.end.stop == Stop::caller) {
      different += got.tokens.size() > answer.tokens.size() ||
                           !std::equal(got.tokens.begin(), got.tokens.end(), answer.tokens.begin())
                       ? 1
                       : 0;
    } else {
      different += got == answer ? 0 : 1;
    }
  }
  const SlotsStatus status = crowded->status();
  EXPECT_EQ(status.pages_used, 0);
  EXPECT_EQ(status.running + status.joining + status.queued, 0);
  EXPECT_GT(status.cached_tokens, 0);
  EXPECT_GT(status.pages_evicted, 0);
  EXPECT_GT(status.pages_brought, 0);
  return different;
}

Make make_fake(const Fake& fake) {
  return [fake](const SlotsOptions& options) {
    return Slots::create(tiny(),
                         std::make_unique<FakeRunner>(options.pages + options.host_pages, fake),
                         options)
        .value();
  };
}

Make on_cpu(DType kv, bool round, const ModelConfig& config = tiny()) {
  return [=](SlotsOptions options) {
    options.kv = kv;
    options.round_activations = round;
    return Slots::create(config, Weights::generate(config, 7, 2).value(), options).value();
  };
}

TEST(Slots, AnswersDoNotDependOnTheCompanyOfAFake) {
  EXPECT_EQ(count_differences(1000, make_fake({}), make_fake({}), 11), 0);
  EXPECT_EQ(count_differences(1000, make_fake({}), make_fake({.most_steps = 5}), 12), 0);
  EXPECT_EQ(count_differences(1000, make_fake({}), make_fake({.mixes = true}), 13), 0);
  const Fake several{.most_steps = 5, .mixes = true};
  EXPECT_EQ(count_differences(1000, make_fake({}), make_fake(several), 14), 0);
}

TEST(Slots, PromptsAreFedInStepsWhereTheseCan) {
  for (const bool mixes : {false, true}) {
    const auto slots = make_fake({.most_steps = 8, .mixes = mixes})(
        {.slots = 2, .pages = 20, .prefill_chunk = 64, .share_prefixes = false});
    RandomRequests random(1, 400);
    ASSERT_TRUE(slots->submit({.prompt = {5}, .max_tokens = 20, .eos = Eos::ignore}).ok());
    bool joined = false;
    run(*slots, [&] {
      const bool joins = !joined;
      if (joins) {
        joined = true;
        Request request{.prompt = random.tokens(4 * 64 + 1), .max_tokens = 4, .eos = Eos::ignore};
        EXPECT_TRUE(slots->submit(std::move(request)).ok());
      }
      return joins;
    });
    // Its first token comes with the last part of its prompt: of 20 tokens of the other 8 came
    // before, and 4 with the prompt's parts.
    EXPECT_EQ(slots->status().mixed_steps, mixes ? 4 : 0);
    EXPECT_EQ(slots->status().prefill_pauses.count, mixes ? 0 : 4);
    EXPECT_EQ(slots->status().steps, 20);
  }
}

TEST(Slots, WhoCollectsTokensIsToldWhereAStepEnds) {
  const auto slots = make_fake({.most_steps = 8})(
      {.slots = 3, .pages = 20, .prefill_chunk = 64, .share_prefixes = false});
  std::map<RequestId, int64_t> wanted;
  for (const int64_t tokens : {4, 9, 20}) {
    const Result<RequestId> id =
        slots->submit({.prompt = {5, 6}, .max_tokens = tokens, .eos = Eos::ignore});
    ASSERT_TRUE(id.ok());
    wanted[*id] = tokens;
  }
  // A group is a step's tokens: one of each that has not ended.
  std::vector<RequestId> group;
  int groups = 0;
  bool more = true;
  while (more) {
    more = slots
               ->step(
                   [&](const TokenEvent& event) {
                     group.push_back(event.id);
                     if (event.more) {
                       return;
                     }
                     std::ranges::sort(group);
                     EXPECT_EQ(std::ranges::adjacent_find(group), group.end());
                     EXPECT_EQ(std::ssize(group), std::ranges::count_if(wanted, [&](auto& each) {
                                 return each.second > groups;
                               }));
                     group.clear();
                     ++groups;
                   },
                   [](const EndEvent&) {})
               .value();
  }
  EXPECT_EQ(groups, 20);
}

TEST(Slots, ThatTestNoticesAPageThatIsNotCopied) {
  EXPECT_GT(count_differences(1000, make_fake({}), make_fake({.copies = false}), 11), 0);
}

TEST(Slots, AnswersDoNotDependOnTheCompany) {
  EXPECT_EQ(count_differences(120, on_cpu(DType::f32, false), on_cpu(DType::f32, false), 12), 0);
  EXPECT_EQ(count_differences(120, on_cpu(DType::bf16, true), on_cpu(DType::bf16, true), 13), 0);
}

// An expert has few of a prompt's rows, or many.
TEST(Slots, AnswersOfExpertsDoNotDependOnTheCompany) {
  ModelConfig config = tiny();
  config.experts = preset("qwen3-30b-a3b").value().experts;
  config.experts.count = 9;
  config.experts.chosen = 2;
  config.experts.size = 24;
  for (const bool round : {false, true}) {
    const Make make = on_cpu(round ? DType::bf16 : DType::f32, round, config);
    EXPECT_EQ(count_differences(120, make, make, 15), 0);
  }
}

TEST(Slots, AnswersOfAThousandDoNotDependOnTheCompanySlow) {
  EXPECT_EQ(count_differences(1000, on_cpu(DType::f32, false), on_cpu(DType::f32, false), 14), 0);
}

TEST(Slots, AnswersAreTheEngines) {
  const ModelConfig config = tiny();
  EngineOptions options;
  options.workers = 2;
  const auto engine =
      Engine::create(config, Weights::generate(config, 7, 2).value(), options).value();
  const auto slots = on_cpu(DType::f32, false)({.workers = 2});
  RandomRequests random(5, 300);
  for (int i = 0; i < 20; ++i) {
    Request request;
    request.prompt = random.tokens(1 + random.below(300));
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = 3};
    ASSERT_TRUE(slots->submit(request).ok());
    EXPECT_EQ(run(*slots).begin()->second.tokens,
              engine->generate(request.prompt, request.sampling, 16)->tokens);
  }
}

// The clock is steps: those of all who run take the same time.
TEST(Slots, WhoComesTogetherEndsTogether) {
  for (const size_t prompt : {7, 60, 200}) {
    const auto slots = make_fake({})({.slots = 64, .pages = 400, .share_prefixes = false});
    RandomRequests random(3, 300);
    for (int i = 0; i < 64; ++i) {
      Request request{.prompt = random.tokens(static_cast<int64_t>(prompt)), .max_tokens = 32};
      request.eos = Eos::ignore;
      ASSERT_TRUE(slots->submit(std::move(request)).ok());
    }
    int64_t step = 0, first = 0, ended = 0;
    const auto on_end = [&](const EndEvent&) {
      first = first == 0 ? step : first;
      ++ended;
    };
    bool more = true;
    while (more) {
      ++step;
      more = slots->step([](const TokenEvent&) {}, on_end).value();
    }
    EXPECT_EQ(ended, 64);
    // Long prompts are fed one after the other, and the first is not kept waiting for the last.
    EXPECT_LE(static_cast<double>(step), (prompt < 64 ? 2.0 : 5.0) * static_cast<double>(first))
        << "prompts of " << prompt;
  }
}

TEST(Slots, TellsHowLongARequestWaitedForItsSlot) {
  const auto slots = make_fake({})({.slots = 1, .pages = 20});
  const RequestId early = slots->submit({.prompt = {1, 2}, .eos = Eos::ignore}).value();
  const RequestId late = slots->submit({.prompt = {1, 2}, .eos = Eos::ignore}).value();
  std::map<RequestId, double> waited;
  const auto on_token = [&](const TokenEvent& event) {
    waited[event.id] = event.waited;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  while (slots->step(on_token, [](const EndEvent&) {}).value()) {
  }
  EXPECT_GE(waited[early], 0);
  EXPECT_GE(waited[late], waited[early] + 0.015);  // 16 tokens
}

TEST(Slots, WholePagesAreSharedAndABeginningCopied) {
  const auto slots = make_fake({})({.slots = 2, .pages = 20});
  RandomRequests random(1, 400);
  Request request;
  request.prompt = random.tokens(4 * kKvPage + 1);
  ASSERT_TRUE(slots->submit(request).ok());
  EXPECT_EQ(run(*slots).begin()->second.end.cached_tokens, 0);
  ASSERT_TRUE(slots->submit(request).ok());
  EXPECT_EQ(run(*slots).begin()->second.end.cached_tokens, 4 * kKvPage);
  request.prompt.resize(3 * kKvPage + 20);
  request.prompt.back() = 1;
  ASSERT_TRUE(slots->submit(request).ok());
  EXPECT_EQ(run(*slots).begin()->second.end.cached_tokens, 3 * kKvPage + 19);
}

TEST(Slots, DraftsAreTakenWhereTheAnswerRepeatsItself) {
  // Masks leave one token that may follow: the answer is a cycle.
  Request request;
  request.prompt = {4, 5, 6, 7};
  request.max_tokens = 100;
  request.adjust = [](std::span<const int32_t> generated, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    logits[4 + generated.size() % 5] = 1;
  };
  const auto slots = make_fake({})({.slots = 1, .pages = 8, .draft = 4});
  ASSERT_TRUE(slots->submit(request).ok());
  const Answer answer = run(*slots).begin()->second;
  ASSERT_EQ(answer.tokens.size(), 100U);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(answer.tokens[i], 4 + static_cast<int32_t>(i % 5));
  }
  EXPECT_LT(slots->status().steps, 40);
  EXPECT_EQ(slots->status().accepted, 100 - slots->status().steps);
  EXPECT_GT(slots->status().drafts, 0);
  EXPECT_LE(slots->status().drafts, slots->status().steps);
}

TEST(Slots, DraftsOfTheBestTokensAreVerifiedBetweenLaunchesOfManySteps) {
  const auto answers = [](const Fake& fake, int64_t draft, SlotsStatus& status) {
    const auto slots = make_fake(fake)({.slots = 2, .pages = 20, .draft = draft});
    for (const int32_t token : {4, 5}) {
      Request request{.prompt = {token, 6, 7}, .max_tokens = 100, .eos = Eos::ignore};
      EXPECT_TRUE(slots->submit(request).ok());
    }
    auto result = run(*slots);
    status = slots->status();
    return result;
  };
  const Fake fake{.most_steps = 8, .repeats = true};
  SlotsStatus without;
  SlotsStatus with;
  EXPECT_EQ(answers(fake, 0, without), answers(fake, 3, with));
  EXPECT_EQ(without.drafted, 0);
  EXPECT_GT(with.accepted, 100);
  EXPECT_LT(with.steps, without.steps * 2 / 3);
  // Where nothing repeats, launches stay as they are.
  const Fake other{.most_steps = 8};
  EXPECT_EQ(answers(other, 0, without), answers(other, 3, with));
  EXPECT_LE(with.steps, without.steps * 51 / 50);
}

TEST(Slots, BeginningsComeBackFromHostMemory) {
  RandomRequests random(2, 400);
  const std::vector<int32_t> prompt = random.tokens(4 * kKvPage + 1);
  const std::vector<int32_t> other = random.tokens(4 * kKvPage + 1);
  const auto cached_again = [&](int64_t host_pages) {
    const auto slots = make_fake({})({.slots = 1, .pages = 5, .host_pages = host_pages});
    std::vector<Answer> answers;
    for (const auto* tokens : {&prompt, &other, &prompt}) {
      EXPECT_TRUE(slots->submit({.prompt = *tokens}).ok());
      answers.push_back(run(*slots).begin()->second);
    }
    EXPECT_EQ(answers[0], answers[2]);
    EXPECT_EQ(slots->status().pages_used, 0);
    return answers[2].end.cached_tokens;
  };
  EXPECT_EQ(cached_again(0), 0);
  EXPECT_EQ(cached_again(4), 0);  // others' take their room
  EXPECT_EQ(cached_again(6), 2 * kKvPage);
  EXPECT_EQ(cached_again(8), 4 * kKvPage);
}

TEST(Slots, RefusesWhatCannotBeAnsweredInASentence) {
  const auto slots = make_fake({})({.slots = 1, .pages = 2, .queue = 1});
  const auto refusal = [&](Request request) {
    const auto result = slots->submit(std::move(request));
    return result.ok() ? std::string() : result.error().message;
  };
  EXPECT_EQ(refusal({}), "the prompt has no tokens: give at least one");
  EXPECT_EQ(refusal({.prompt = {1, kVocabulary}}),
            "token 1 of the prompt is 40: the model's ids are 0 to 39");
  EXPECT_EQ(refusal({.prompt = std::vector<int32_t>(513, 5)}),
            "the prompt has 513 tokens but the context holds 512: shorten the prompt");
  EXPECT_EQ(refusal({.prompt = {5}, .max_tokens = 0}),
            "0 new tokens cannot be drawn: ask for at least one");
  EXPECT_EQ(refusal({.prompt = std::vector<int32_t>(100, 5), .max_tokens = 30}),
            "100 prompt and 30 new tokens need 3 pages of 64 positions but there are 2: ask for "
            "fewer tokens");
  EXPECT_EQ(refusal({.prompt = {5}}), "");
  EXPECT_EQ(refusal({.prompt = {5}}), "1 requests wait already: try again later");
}

TEST(Slots, TheContextEndsAnAnswer) {
  const auto slots = make_fake({})({.slots = 1, .pages = 8});
  Request request{.prompt = std::vector<int32_t>(510, 5), .max_tokens = 100, .eos = Eos::ignore};
  ASSERT_TRUE(slots->submit(request).ok());
  const Answer answer = run(*slots).begin()->second;
  EXPECT_EQ(answer.tokens.size(), 3U);
  EXPECT_EQ(answer.end.stop, Stop::context);
}

TEST(Slots, TakesRequestsFromOtherThreads) {
  const auto slots = make_fake({})({.slots = 4, .pages = 40, .queue = 1000});
  constexpr int kThreads = 3;
  constexpr int kEach = 60;
  std::vector<std::thread> clients;
  std::atomic<int> done{0};
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      RandomRequests random(static_cast<uint64_t>(t), 100);
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = slots->submit(random.next()).value();
        if (i % 5 == 0) {
          slots->cancel(id);
        }
        EXPECT_LE(slots->status().running, 4);
      }
      ++done;
    });
  }
  size_t ended = 0;
  while (ended < kThreads * kEach) {
    ASSERT_TRUE(slots->step([](const TokenEvent&) {}, [&](const EndEvent&) { ++ended; }).ok());
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(done, kThreads);
  EXPECT_EQ(slots->status().pages_used, 0);
}

}  // namespace
}  // namespace weft
