// weft new-model: a preset with random weights, as a Hugging Face directory.
#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/common.h"

namespace weft::cli {
namespace {

struct NewModelFlags {
  std::string preset, out, format;
  uint64_t seed = 0;
  int64_t layers = 0;
};

void show_progress(int64_t done, int64_t total) {
  fmt::print(stderr, "\r{:.2f} of {:.2f} GB written{}", static_cast<double>(done) / 1e9,
             static_cast<double>(total) / 1e9, done == total ? "\n" : "");
}

Result<int> new_model(const NewModelFlags& flags) {
  WEFT_ASSIGN(const ModelConfig config, preset_as(flags.preset, flags.layers, flags.format));
  WEFT_TRY(write_random_model(config, flags.seed, flags.out,
                              isatty(STDERR_FILENO) != 0 ? show_progress : nullptr));
  WEFT_TRY(write_text("-", fmt::format("{}: {} with random weights (seed {})\n", flags.out,
                                       flags.preset, flags.seed)));
  return 0;
}

}  // namespace

void add_new_model(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("new-model", "Write a preset with random weights in Hugging Face format");
  auto flags = std::make_shared<NewModelFlags>();
  std::string names;
  for (const std::string& name : preset_names()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  command->add_option("--preset", flags->preset, "one of: " + names)->type_name("NAME")->required();
  command->add_option("--out", flags->out, "directory to make")->type_name("DIR")->required();
  command->add_option("--seed", flags->seed, "seed of the weights")->type_name("S");
  command->add_option("--layers", flags->layers, "only the first N layers")
      ->type_name("N")
      ->check(at_least(1));
  declare_format(*command, flags->format);
  command->callback([flags, &action] { action = [flags] { return new_model(*flags); }; });
}

}  // namespace weft::cli
