// weft generate: a prompt's continuation streams to standard output, figures to standard error.
// With `--stats-json -` standard output is JSON alone, the text in it, so that it can be parsed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "engine/stop_filter.h"
#include "model/tokenizer.h"

namespace weft::cli {
namespace {

struct GenerateFlags {
  ModelSource source;
  EngineFlags engine;
  std::vector<std::string> prompts, prompt_files, ids;
  std::string stats_json;
  std::vector<std::string> stops;
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  bool echo = false;
  bool logits = false;
};

std::atomic<bool> interrupted{false};

/// A prompt and its continuation: keeps what was generated and prints it as it comes, if it shall;
/// remembers a failure, which ends the generation. Without a tokenizer its text is the ids.
class Sequence {
 public:
  Sequence(std::string prompt, Engine::Prompt ids, const std::optional<Tokenizer>& tokenizer,
           const std::vector<std::string>& stops, bool prints)
      : prompt_(std::move(prompt)), ids_(std::move(ids)), filter_(stops), prints_(prints) {
    if (tokenizer) {
      decoder_.emplace(*tokenizer);
    }
  }

  void echo() { show(prompt_); }
  /// False: it ends here.
  bool take(int32_t token) {
    const std::string text = decoder_ ? decoder_->push(token) : fmt::format("{} ", token);
    return show(filter_.push(text)) && !filter_.stopped() && !interrupted;
  }
  void finish() {
    if (!filter_.stopped()) {
      show(filter_.push(decoder_ ? decoder_->flush() : ""));
      show(filter_.flush());
    }
  }
  const Engine::Prompt& ids() const { return ids_; }
  const std::string& text() const { return text_; }
  const Status& status() const { return status_; }

 private:
  bool show(std::string_view text) {
    text_ += text;
    if (prints_ && status_.ok() && !text.empty()) {
      status_ = write_text("-", text);
    }
    return status_.ok();
  }

  std::string prompt_;
  Engine::Prompt ids_;
  std::optional<StreamDecoder> decoder_;
  StopFilter filter_;
  bool prints_;
  std::string text_;
  Status status_;
};

/// The prompts that the flags name. Errors: input (a file that cannot be read, text that is not
/// UTF-8), usage (no ids).
Result<std::vector<Sequence>> open_sequences(const GenerateFlags& flags,
                                             const std::optional<Tokenizer>& tokenizer) {
  const size_t count = flags.prompts.size() + flags.prompt_files.size() + flags.ids.size();
  const bool prints = flags.stats_json != "-" && count == 1;
  std::vector<Sequence> sequences;
  const auto add = [&](std::string text, const std::string& name) -> Status {
    WEFT_ASSIGN(Engine::Prompt ids, encode(*tokenizer, text, name));
    sequences.emplace_back(std::move(text), std::move(ids), tokenizer, flags.stops, prints);
    return {};
  };
  for (const std::string& prompt : flags.prompts) {
    WEFT_TRY(add(prompt, "--prompt"));
  }
  for (const std::string& file : flags.prompt_files) {
    WEFT_ASSIGN(std::string prompt, read_text(file));
    WEFT_TRY(add(std::move(prompt), file));
  }
  for (const std::string& text : flags.ids) {
    WEFT_ASSIGN(Engine::Prompt ids, parse_ids(text));
    sequences.emplace_back("", std::move(ids), tokenizer, flags.stops, prints);
  }
  return sequences;
}

Result<int> generate(const GenerateFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  WEFT_ASSIGN(EngineOptions options, flags.engine.options());
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  std::optional<Tokenizer> tokenizer;
  if (flags.ids.empty()) {
    WEFT_ASSIGN(tokenizer, Tokenizer::open(flags.source.directory));
  } else if (!flags.stops.empty() || flags.echo) {
    return usage_error(
        "--stop and --echo are of text, and with --ids there is none: leave them out");
  }
  WEFT_ASSIGN(std::vector<Sequence> sequences, open_sequences(flags, tokenizer));
  const bool at_once = options.device != "cpu";  // which takes one at a time
  options.sequences = at_once ? static_cast<int>(sequences.size()) : 1;
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, 1));
  WEFT_ASSIGN(const auto engine, Engine::create(config, std::move(weights), options));

  double first_token = 0;
  std::signal(SIGINT, [](int) { interrupted = true; });
  std::vector<Engine::Prompt> prompts;
  for (Sequence& sequence : sequences) {
    if (flags.echo) {
      sequence.echo();
    }
    prompts.push_back(sequence.ids());
  }
  const auto take = [&](size_t sequence, int32_t token) {
    if (first_token == 0) {
      first_token = seconds_since(start);
    }
    return sequences[sequence].take(token);
  };
  std::vector<Generation> results;
  std::vector<std::vector<float>> logits;  // [sequences]
  const auto keep_logits = [&](int sequence) {
    const std::span<const float> last = engine->last_logits(sequence);
    logits.emplace_back(last.begin(), last.end());
  };
  if (at_once) {
    WEFT_ASSIGN(results, engine->generate_batch(prompts, flags.sampling, flags.max_tokens,
                                                [&](int sequence, int32_t token) {
                                                  return take(static_cast<size_t>(sequence), token);
                                                }));
    for (int i = 0; i < options.sequences; ++i) {
      keep_logits(i);
    }
  }
  for (size_t i = results.size(); i < sequences.size() && (i == 0 || !interrupted); ++i) {
    SamplingOptions sampling = flags.sampling;
    sampling.seed += i;
    WEFT_ASSIGN(Generation result, engine->generate(prompts[i], sampling, flags.max_tokens,
                                                    [&](int32_t token) { return take(i, token); }));
    results.push_back(std::move(result));
    keep_logits(0);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    sequences[i].finish();
    WEFT_TRY(sequences[i].status());
    if (flags.stats_json != "-" && sequences.size() > 1) {
      WEFT_TRY(write_text("-", fmt::format("==> {} <==\n{}\n", i + 1, sequences[i].text())));
    }
  }
  if (flags.stats_json != "-" && sequences.size() == 1 && isatty(STDOUT_FILENO) != 0) {
    WEFT_TRY(write_text("-", "\n"));
  }

  // Sequences that are decoded at once share their prefill and their steps.
  size_t prompt_tokens = 0;
  size_t new_tokens = 0;
  double prefill = 0;
  std::vector<double> steps;
  const auto stop_of = [&](size_t i) {
    return interrupted ? "interrupted" : name_of(results[i].stop);
  };
  std::string stops;
  for (size_t i = 0; i < results.size(); ++i) {
    const Generation& result = results[i];
    prompt_tokens += prompts[i].size();
    new_tokens += result.tokens.size();
    prefill =
        at_once ? std::max(prefill, result.prefill_seconds) : prefill + result.prefill_seconds;
    steps.insert(steps.end(), result.decode_seconds.begin(), result.decode_seconds.end());
    stops += fmt::format("{}{}", i == 0 ? "" : ", ", stop_of(i));
  }
  const double decode = median(steps);
  const double rate =
      decode > 0 ? (at_once ? static_cast<double>(results.size()) : 1.0) / decode : 0;
  fmt::print(
      stderr,
      "[{} prompt tokens in {:.1f} ms ({:.0f} per second), first token {:.1f} ms after "
      "start, {} new tokens at {:.3f} ms each{} ({:.0f} per second), weights: {}, stop: {}]\n",
      prompt_tokens, prefill * 1e3, prefill > 0 ? static_cast<double>(prompt_tokens) / prefill : 0,
      first_token * 1e3, new_tokens, decode * 1e3,
      at_once && results.size() > 1 ? fmt::format(", {} at once", results.size()) : "", rate,
      describe_weights(*engine), stops);
  if (!flags.stats_json.empty()) {
    const auto describe = [&](nlohmann::ordered_json& json, size_t i) {
      json["prompt_tokens"] = prompts[i].size();
      json["new_tokens"] = results[i].tokens.size();
      json["stop"] = stop_of(i);
      json["seed"] = flags.sampling.seed + i;
      json["ids"] = results[i].tokens;
      json["text"] = sequences[i].text();
      if (flags.logits) {
        json["logits"] = logits[i];
      }
    };
    nlohmann::ordered_json stats;
    stats["prefill_seconds"] = prefill;
    stats["first_token_seconds"] = first_token;
    stats["decode_seconds_per_token"] = decode;
    stats["decode_seconds"] = steps;
    stats["workers"] = engine->workers();
    stats["weights"] = name_of_weights(*engine);
    if (const auto time = engine->compressed_time()) {
      stats["compressed_over_plain_time"] = *time;
    }
    if (sequences.size() == 1) {
      describe(stats, 0);
    } else {
      for (size_t i = 0; i < results.size(); ++i) {
        describe(stats["sequences"].emplace_back(), i);
      }
    }
    WEFT_TRY(write_text(flags.stats_json, stats.dump(2) + "\n"));
  }
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  auto flags = std::make_shared<GenerateFlags>();
  flags->source.declare(*command, false);
  CLI::Option_group* prompt = command->add_option_group("prompt");
  prompt
      ->add_option("--prompt", flags->prompts,
                   "the text to continue; given again: another sequence, with the next seed (on "
                   "GPUs they are decoded at once: 8 on cuda, 64 on AMD's)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  prompt
      ->add_option("--prompt-file", flags->prompt_files,
                   "a file with it; - for standard input; may be given again")
      ->type_name("F")
      ->allow_extra_args(false);
  CLI::Option* ids =
      prompt
          ->add_option("--ids", flags->ids,
                       "token ids, 1,2,3: needs no tokenizer, and what is printed are ids; may be "
                       "given again")
          ->type_name("IDS")
          ->allow_extra_args(false);
  for (CLI::Option* text : prompt->get_options()) {
    if (text != ids) {
      ids->excludes(text);
    }
  }
  prompt->require_option(1, 2);
  command->add_flag("--echo", flags->echo, "print the prompt first");
  command->add_option("--max-tokens", flags->max_tokens, "new tokens at most")
      ->type_name("N")
      ->check(at_least(0))
      ->capture_default_str();
  add_sampling_options(*command, flags->sampling);
  command->add_option("--stop", flags->stops, "end before this text; may be given again")
      ->type_name("TEXT")
      ->check(some_text())
      ->allow_extra_args(false);
  command
      ->add_option(
          "--stats-json", flags->stats_json,
          "write figures, ids and text to this file; -: to standard output, in place of the "
          "text")
      ->type_name("F");
  command->add_flag("--logits", flags->logits,
                    "also, in those figures, the logits that each last token was drawn from");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return generate(*flags); }; });
}

}  // namespace weft::cli
