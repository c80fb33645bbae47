// weft score: how likely a model finds a text, token by token.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "model/tokenizer.h"

namespace weft::cli {
namespace {

struct ScoreFlags {
  ModelSource source;
  EngineFlags engine;
  std::string text, file;
  std::optional<std::string> ids;
  bool logits = false;
  bool json = false;
};

Result<int> score(const ScoreFlags& flags) {
  WEFT_ASSIGN(EngineOptions options, flags.engine.options());
  if (options.device == "cpu" && !options.compress_weights) {
    options.compress_weights = false;  // a text is read at once: packing would gain nothing
  }
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  std::vector<int32_t> ids;
  std::optional<Tokenizer> tokenizer;
  if (flags.ids.has_value()) {
    WEFT_ASSIGN(ids, parse_ids(*flags.ids));
  } else {
    std::string text = flags.text;
    if (!flags.file.empty()) {
      WEFT_ASSIGN(text, read_text(flags.file));
    }
    WEFT_ASSIGN(tokenizer, Tokenizer::open(flags.source.directory));
    WEFT_ASSIGN(ids, encode(*tokenizer, text, flags.file.empty() ? "--text" : flags.file));
  }
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, 1));
  WEFT_ASSIGN(const auto engine, Engine::create(config, std::move(weights), options));
  WEFT_ASSIGN(const Score result, engine->score(ids));

  const auto scored = static_cast<double>(result.logprobs.size());
  const double sum = std::accumulate(result.logprobs.begin(), result.logprobs.end(), 0.0);
  std::optional<double> perplexity;
  std::optional<double> bits_per_byte;
  if (scored > 0) {
    perplexity = std::exp(-sum / scored);
    if (tokenizer.has_value()) {
      // Bytes of the tokens that were predicted: all but the first.
      const size_t bytes =
          tokenizer->decode(ids).size() - tokenizer->decode(std::span(ids).first(1)).size();
      if (bytes > 0) {
        bits_per_byte = -sum / std::log(2.0) / static_cast<double>(bytes);
      }
    }
  }
  if (flags.json) {
    nlohmann::ordered_json out;
    const auto number = [](std::optional<double> x) {
      return x ? nlohmann::ordered_json(*x) : nlohmann::ordered_json(nullptr);
    };
    out["ids"] = ids;
    out["logprobs"] = result.logprobs;
    out["perplexity"] = number(perplexity);
    out["bits_per_byte"] = number(bits_per_byte);
    if (flags.logits) {
      out["logits"] = result.last_logits;
    }
    WEFT_TRY(write_text("-", out.dump() + "\n"));
    return 0;
  }
  std::string text;
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    const int32_t id = ids[i + 1];
    text += fmt::format("{:>8} {:>10.4f}  {}\n", id, result.logprobs[i],
                        tokenizer ? tokenizer->token(id) : "");
  }
  text += fmt::format("{} tokens scored", result.logprobs.size());
  text += perplexity ? fmt::format(", perplexity {:.4f}", *perplexity) : "";
  text += bits_per_byte ? fmt::format(", {:.4f} bits per byte", *bits_per_byte) : "";
  text += "\n";
  if (flags.logits) {
    text += "logits of the last position:\n";
    for (const float logit : result.last_logits) {
      text += fmt::format("{}\n", logit);
    }
  }
  WEFT_TRY(write_text("-", text));
  return 0;
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "score", "Log-probability of each token of a text after the first, and perplexity");
  auto flags = std::make_shared<ScoreFlags>();
  flags->source.declare(*command, false);
  CLI::Option_group* text = command->add_option_group("text");
  text->add_option("--text", flags->text, "the text")->type_name("T");
  text->add_option("--file", flags->file, "a file with the text; - for standard input")
      ->type_name("F");
  text->add_option("--ids", flags->ids, "token ids, 1,2,3: needs no tokenizer")->type_name("IDS");
  text->require_option(1);
  command->add_flag("--logits", flags->logits, "also the last position's logits");
  command->add_flag("--json", flags->json,
                    R"(print {"ids", "logprobs", "perplexity", "bits_per_byte"[, "logits"]})");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return score(*flags); }; });
}

}  // namespace weft::cli
