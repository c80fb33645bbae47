// weft: the command. Parses arguments, runs one sub-command, turns errors into sentences.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/origin.h"
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

/// Gives standard streams that are closed their numbers back, so that no file which is opened later
/// takes them. Writing to standard output fails then as it should; what goes to standard error is
/// dropped.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) {
      // Takes the lowest free number, which is this one.
      static_cast<void>(::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
}

int output_lost() {
  complain("standard output: cannot be written to its end: is the disk full, or the reader gone?");
  return exit_code(ErrorKind::input);
}

/// What CLI11 does not say: which word is no sub-command. Empty: it is one.
std::string unknown_command(const CLI::App& app, std::string_view word) {
  std::string known;
  for (const CLI::App* each : app.get_subcommands({})) {
    if (each->get_name() == word) {
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each->get_name());
  }
  return fmt::format("unknown sub-command '{}': known are {}", word, known);
}

int parse_and_act(int argc, char** argv) {
#ifdef WEFT_WITH_SIM
  sim::install();
#endif

  CLI::App app("weft: lowest-latency decoding of large language models", "weft");
  app.set_version_flag("--version", "weft " + version());
  app.require_subcommand(1);
  Action action;
  add_devices(app, action);
  add_generate(app, action);
  add_tokenize(app, action);
  add_score(app, action);
  add_serve(app, action);
  add_inspect(app, action);
  add_diff(app, action);
  add_check(app, action);
  add_bench(app, action);
  add_tune(app, action);
  add_new_model(app, action);

  if (argc > 1 && argv[1][0] != '-') {
    if (const std::string unknown = unknown_command(app, argv[1]); !unknown.empty()) {
      complain(unknown);
      return exit_code(ErrorKind::usage);
    }
  }
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
    complain("out of memory: use a smaller model, context, prompt or shape");
    return exit_code(ErrorKind::device);
  } catch (const std::exception& error) {
    // From a library below (threads, files): expected failures come back as values. fmt::print
    // throws when a stream fails.
    if (std::ferror(stdout) != 0 || std::ferror(stderr) != 0) {
      return output_lost();
    }
    complain(error.what());
    return exit_code(ErrorKind::device);
  }
}

int run(int argc, char** argv) {
  occupy_standard_streams();
  // A closed pipe and a file past its limit are write errors, said like any other.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = parse_and_act(argc, argv);
  // Whether all that was printed has arrived is known only now.
  const bool arrived = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return arrived || code != 0 ? code : output_lost();
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) { return weft::cli::run(argc, argv); }
