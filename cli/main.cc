// weft: the command. Parses arguments, runs one sub-command, turns errors into sentences.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "fmt/format.h"
#ifdef WEFT_WITH_SIM
#include "sim/hip.h"
#endif

namespace weft::cli {
namespace {

/// fmt::print throws when nobody reads standard error any more; then there is nobody to tell.
void complain(std::string_view sentence) {
  const std::string line = fmt::format("weft: {}\n", sentence);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int run(int argc, char** argv) {
  // A closed pipe and a file past its limit are write errors, said like any other.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);

#ifdef WEFT_WITH_SIM
  sim::install();
#endif

  CLI::App app("weft: lowest-latency decoding of large language models", "weft");
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  app.require_subcommand(1);
  Action action;
  add_devices(app, action);
  add_generate(app, action);
  add_tokenize(app, action);
  add_score(app, action);
  add_inspect(app, action);
  add_diff(app, action);
  add_check(app, action);
  add_bench(app, action);
  add_tune(app, action);
  add_new_model(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorKind::usage);
  }
  try {
    const Result<int> result = action();
    if (result.ok()) {
      return *result;
    }
    complain(result.error().message);
    return exit_code(result.error().kind);
  } catch (const std::bad_alloc&) {
    complain("out of memory: use a smaller model, context or prompt");
    return exit_code(ErrorKind::device);
  } catch (const std::exception& error) {
    // From a library below (threads, files): expected failures come back as values.
    complain(error.what());
    return exit_code(ErrorKind::device);
  }
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) { return weft::cli::run(argc, argv); }
