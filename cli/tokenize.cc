// weft tokenize: text to ids and back; needs tokenizer.json alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/common.h"
#include "model/tokenizer.h"

namespace weft::cli {
namespace {

struct TokenizeFlags {
  std::string model, text, file;
  bool ids_only = false;
  bool json = false;
  bool no_special = false;
};

Result<int> tokenize(const TokenizeFlags& flags) {
  WEFT_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(flags.model));
  std::string text = flags.text;
  if (!flags.file.empty()) {
    WEFT_ASSIGN(text, read_text(flags.file));
  }
  WEFT_ASSIGN(
      const std::vector<int32_t> ids,
      encode(tokenizer, text, flags.file.empty() ? "--text" : flags.file, !flags.no_special));
  if (flags.json) {
    nlohmann::ordered_json out;
    out["ids"] = ids;
    out["tokens"] = nlohmann::json::array();
    for (const int32_t id : ids) {
      out["tokens"].push_back(tokenizer.token(id));
    }
    out["text"] = tokenizer.decode(ids);
    WEFT_TRY(write_text("-", out.dump() + "\n"));
    return 0;
  }
  if (flags.ids_only) {
    WEFT_TRY(write_text("-", fmt::format("{}\n", fmt::join(ids, " "))));
    return 0;
  }
  std::string lines;
  for (const int32_t id : ids) {
    lines += fmt::format("{:>8}  {}\n", id, tokenizer.token(id));
  }
  WEFT_TRY(write_text("-", lines));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids and back");
  auto flags = std::make_shared<TokenizeFlags>();
  command->add_option("--model", flags->model, "directory with tokenizer.json")
      ->type_name("DIR")
      ->required();
  CLI::Option_group* text = command->add_option_group("text");
  text->add_option("--text", flags->text, "the text")->type_name("T");
  text->add_option("--file", flags->file, "a file with the text; - for standard input")
      ->type_name("F");
  text->require_option(1);
  command->add_flag("--ids", flags->ids_only, "print ids alone, on one line");
  command->add_flag("--json", flags->json, R"(print {"ids", "tokens", "text"})");
  command->add_flag("--no-special", flags->no_special, "do not add BOS or other special tokens");
  command->callback([flags, &action] { action = [flags] { return tokenize(*flags); }; });
}

}  // namespace weft::cli
