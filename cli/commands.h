// The sub-commands of `weft`, one file each.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace weft::cli {

/// What the command line asked for; gives the process's exit code.
using Action = std::function<Result<int>()>;

// Each declares its sub-command on `app` and sets `action` when that is the one called.
void add_devices(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_score(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_bench_decode(CLI::App& bench, Action& action);
void add_bench_load(CLI::App& bench, Action& action);
void add_bench_kernel(CLI::App& bench, Action& action);  ///< where there is a simulator
void add_serve(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_new_model(CLI::App& app, Action& action);

}  // namespace weft::cli
