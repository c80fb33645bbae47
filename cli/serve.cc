// weft serve: a model for clients that speak OpenAI's protocol.
#include <filesystem>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/slot_flags.h"
#include "serve/server.h"

namespace weft::cli {
namespace {

struct ServeFlags {
  std::string model, name, chat_template, api_key_file;
  EngineFlags engine;
  SlotsOptions slots;
  SlotFlags slot_options;
  serve::ServeOptions serve;
  bool no_log = false;
};

/// The keys of a file, one a line.
Status read_keys(const std::string& path, std::vector<std::string>& keys) {
  WEFT_ASSIGN(const std::string text, read_text(path));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    key.erase(key.find_last_not_of(" \t\r") + 1);
    if (!key.empty()) {
      keys.push_back(std::move(key));
    }
    begin = end + 1;
  }
  if (keys.empty()) {
    return input_error(path + ": holds no key; write one a line");
  }
  return {};
}

Result<serve::ServedModel> load(const ServeFlags& flags, const SlotsOptions& slots,
                                const EngineOptions& options) {
  ModelSource source;
  source.directory = flags.model;
  WEFT_ASSIGN(ModelConfig config, source.config());
  WEFT_ASSIGN(Tokenizer tokenizer, Tokenizer::open(flags.model));
  Result<serve::ChatTemplate> chat =
      serve::ChatTemplate::from_directory(flags.model, flags.chat_template);
  if (!chat.ok() && !flags.chat_template.empty()) {
    return chat.error();
  }
  auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(grammar::Vocabulary::of(tokenizer, config.eos));
  WEFT_ASSIGN(Weights weights, load_weights(source, config, options, 1));
  WEFT_ASSIGN(auto opened, Slots::create(std::move(config), std::move(weights), slots));
  const std::filesystem::path directory = std::filesystem::absolute(flags.model).lexically_normal();
  const std::string own =
      (directory.has_filename() ? directory : directory.parent_path()).filename();
  return serve::ServedModel{flags.name.empty() ? own : flags.name, std::move(tokenizer),
                            std::move(chat), std::move(vocabulary), std::move(opened)};
}

Result<int> serve_model(ServeFlags flags) {
  WEFT_ASSIGN(const EngineOptions options, flags.engine.options());
  if (!flags.api_key_file.empty()) {
    WEFT_TRY(read_keys(flags.api_key_file, flags.serve.api_keys));
  }
  SlotsOptions slots = flags.slots;
  flags.slot_options.apply(slots);
  slots.device = options.device;
  slots.workers = options.workers;
  slots.context = options.context;
  slots.kv = options.kv;
  slots.round_activations = options.round_activations;
  slots.quantise_activations = options.quantise_activations;
  slots.compress_weights = options.compress_weights;
  slots.queue = int64_t{1} << 20;  // the server's limits say how many come this far
  flags.serve.log = !flags.no_log;
  return serve::serve(flags.serve, [&] { return load(flags, slots, options); });
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("serve", "Answer clients that speak OpenAI's protocol, and a browser");
  auto flags = std::make_shared<ServeFlags>();
  const auto declare = [&](const char* name, auto& value, const char* help, const char* type) {
    return command->add_option(name, value, help)->type_name(type);
  };
  declare("--model", flags->model, "a model's directory", "DIR")->required();
  declare("--name", flags->name, "what clients call the model (default: its directory)", "NAME");
  declare("--chat-template", flags->chat_template,
          "a Jinja file in place of the model's; bos_token and its like are empty in it", "F");
  declare("--host", flags->serve.http.host, "the address to listen on; 0.0.0.0: every", "ADDRESS")
      ->capture_default_str();
  declare("--port", flags->serve.http.port, "0: any that is free", "PORT")->capture_default_str();
  declare("--slots", flags->slots.slots, "sequences that are answered at once", "N")
      ->check(CLI::Range(int64_t{1}, kMostSlots))
      ->capture_default_str();
  declare(
      "--pages", flags->slots.pages,
      "pages of 64 positions in the KV cache (default: a context for each slot, as memory allows)",
      "N")
      ->check(at_least(1));
  declare("--prefill-chunk", flags->slots.prefill_chunk,
          "tokens of a prompt that are read between two steps of others", "N")
      ->check(at_least(1))
      ->capture_default_str();
  flags->slot_options.declare(*command);
  declare("--max-requests", flags->serve.max_requests,
          "that are answered or wait at a time; more are told to come again", "N")
      ->check(at_least(1))
      ->capture_default_str();
  declare("--max-body", flags->serve.http.body_limit, "bytes of a request's body", "BYTES")
      ->check(at_least(1))
      ->capture_default_str();
  declare("--api-key", flags->serve.api_keys, "clients must send it; may be given again", "KEY")
      ->check(some_text())
      ->envname("WEFT_API_KEY")
      ->allow_extra_args(false);
  declare("--api-key-file", flags->api_key_file, "a file with keys, one a line", "F");
  declare("--cors-origins", flags->serve.cors_origins,
          "whose pages may call, beside the server's own: http://host:port, or * for every; may be "
          "given again",
          "ORIGIN")
      ->allow_extra_args(false);
  command->add_flag("--no-log", flags->no_log, "no line on standard error for each request");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return serve_model(*flags); }; });
}

}  // namespace weft::cli
