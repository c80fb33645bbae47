// weft generate: a prompt's continuation streams to standard output, figures to standard error.
// With `--stats-json -` standard output is JSON alone, the text in it, so that it can be parsed.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

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
  std::string prompt, prompt_file, stats_json;
  std::vector<std::string> stops;
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  bool echo = false;
};

std::atomic<bool> interrupted{false};

/// Keeps what was generated and prints it as it comes, if it shall; remembers a failure, which ends
/// the generation.
class Output {
 public:
  explicit Output(bool prints) : prints_(prints) {}

  bool show(std::string_view text) {
    text_ += text;
    if (prints_ && status_.ok() && !text.empty()) {
      status_ = write_text("-", text);
    }
    return status_.ok();
  }
  const std::string& text() const { return text_; }
  const Status& status() const { return status_; }

 private:
  bool prints_;
  std::string text_;
  Status status_;
};

Result<int> generate(const GenerateFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  WEFT_ASSIGN(const EngineOptions options, flags.engine.options());
  std::string prompt = flags.prompt;
  if (!flags.prompt_file.empty()) {
    WEFT_ASSIGN(prompt, read_text(flags.prompt_file));
  }
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  WEFT_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(flags.source.directory));
  WEFT_ASSIGN(
      const std::vector<int32_t> ids,
      encode(tokenizer, prompt, flags.prompt_file.empty() ? "--prompt" : flags.prompt_file));
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, 1));
  WEFT_ASSIGN(const auto engine, Engine::create(config, std::move(weights), options));

  const bool prints = flags.stats_json != "-";
  Output output(prints);
  StreamDecoder decoder(tokenizer);
  StopFilter filter(flags.stops);
  double first_token = 0;
  std::signal(SIGINT, [](int) { interrupted = true; });
  if (flags.echo) {
    output.show(prompt);
  }
  WEFT_ASSIGN(
      const Generation result,
      engine->generate(ids, flags.sampling, flags.max_tokens, [&](int32_t token) {
        if (first_token == 0) {
          first_token =
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        return output.show(filter.push(decoder.push(token))) && !filter.stopped() && !interrupted;
      }));
  if (!filter.stopped()) {
    output.show(filter.push(decoder.flush()));
    output.show(filter.flush());
  }
  WEFT_TRY(output.status());
  if (prints && isatty(STDOUT_FILENO) != 0) {
    WEFT_TRY(write_text("-", "\n"));
  }

  const double decode = median(result.decode_seconds);
  const auto prompt_tokens = static_cast<double>(ids.size());
  const std::string_view stop = interrupted ? "interrupted" : name_of(result.stop);
  fmt::print(stderr,
             "[{} prompt tokens in {:.1f} ms ({:.0f} per second), first token {:.1f} ms after "
             "start, {} new tokens at {:.3f} ms each ({:.0f} per second), stop: {}]\n",
             ids.size(), result.prefill_seconds * 1e3,
             result.prefill_seconds > 0 ? prompt_tokens / result.prefill_seconds : 0,
             first_token * 1e3, result.tokens.size(), decode * 1e3, decode > 0 ? 1 / decode : 0,
             stop);
  if (!flags.stats_json.empty()) {
    nlohmann::ordered_json stats;
    stats["prompt_tokens"] = ids.size();
    stats["new_tokens"] = result.tokens.size();
    stats["prefill_seconds"] = result.prefill_seconds;
    stats["first_token_seconds"] = first_token;
    stats["decode_seconds_per_token"] = decode;
    stats["stop"] = stop;
    stats["seed"] = flags.sampling.seed;
    stats["workers"] = engine->workers();
    stats["ids"] = result.tokens;
    stats["text"] = output.text();
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
  prompt->add_option("--prompt", flags->prompt, "the text to continue")->type_name("TEXT");
  prompt->add_option("--prompt-file", flags->prompt_file, "a file with it; - for standard input")
      ->type_name("F");
  prompt->require_option(1);
  command->add_flag("--echo", flags->echo, "print the prompt first");
  command->add_option("--max-tokens", flags->max_tokens, "new tokens at most")
      ->type_name("N")
      ->check(at_least(0))
      ->capture_default_str();
  SamplingOptions& s = flags->sampling;
  command->add_option("--temperature", s.temperature, "0: greedy")
      ->type_name("T")
      ->check(number_within(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", s.top_k, "draw from the K likeliest (0: off)")
      ->type_name("K")
      ->check(at_least(0));
  command->add_option("--top-p", s.top_p, "draw from the likeliest whose sum reaches P (1: off)")
      ->type_name("P")
      ->check(number_within(0.0, 1.0));
  command->add_option("--min-p", s.min_p, "leave out tokens below P times the likeliest (0: off)")
      ->type_name("P")
      ->check(number_within(0.0, 1.0));
  command->add_option("--repetition-penalty", s.repetition_penalty, "above 1: repeat less (1: off)")
      ->type_name("R")
      ->check(number_within(0.01, 100.0));
  command->add_option("--seed", s.seed, "the same seed draws the same tokens")->type_name("S");
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
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return generate(*flags); }; });
}

}  // namespace weft::cli
