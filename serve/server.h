// The server: endpoints, limits, keys, and the way between connections and the engine.
//
// Three kinds of threads: one does all input and output and keeps every state (http/server.h), some
// read requests and tokenize (worker.h), and the caller's steps the engine. Tokens go from there to
// the first in the order they were drawn, a step's together. Where the CPU is the engine, the
// caller's thread is pinned to a core, and the first keeps off those of the engine's threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/http/server.h"
#include "serve/prepare.h"

namespace weft::serve {

struct ServeOptions {
  HttpOptions http;
  std::vector<std::string> api_keys;      ///< empty: none is asked for
  std::vector<std::string> cors_origins;  ///< beside the server's own; "*": every
  int64_t max_requests = 1024;            ///< read, queued or answered at a time; more: 503
  std::chrono::seconds drain_limit{30};   ///< for what is being answered at SIGTERM
  bool log = true;                        ///< a line of JSON for each request, to standard error
};

/// Listens, loads the model, serves until SIGTERM or SIGINT. Errors: load's; usage, an address that
/// cannot be had; device, the engine failed.
Result<int> serve(const ServeOptions& options, const std::function<Result<ServedModel>()>& load);

}  // namespace weft::serve
