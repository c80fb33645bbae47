// weft: the command. Parses arguments, runs one sub-command, turns errors into sentences.
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "fmt/format.h"
#ifdef WEFT_WITH_SIM
#include "sim/hip.h"
#endif

int main(int argc, char** argv) {
  using namespace weft::cli;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error, said like any other

#ifdef WEFT_WITH_SIM
  weft::sim::install();
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
  add_check(app, action);
  add_bench(app, action);
  add_tune(app, action);
  add_new_model(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : weft::exit_code(weft::ErrorKind::usage);
  }
  try {
    const weft::Result<int> result = action();
    if (result.ok()) {
      return *result;
    }
    fmt::print(stderr, "weft: {}\n", result.error().message);
    return weft::exit_code(result.error().kind);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "weft: out of memory: use a smaller model, context or prompt\n");
    return weft::exit_code(weft::ErrorKind::device);
  } catch (const std::exception& error) {
    // From a library below (threads, files): expected failures come back as values.
    fmt::print(stderr, "weft: {}\n", error.what());
    return weft::exit_code(weft::ErrorKind::device);
  }
}
