// Options of slots that `weft serve` and `weft bench load` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/slots.h"

namespace weft::cli {

/// --draft, --draft-memory, --exact, --prefix-host-gib.
struct SlotFlags {
  std::string draft = "none";
  double draft_memory_mib = 64;
  std::string exact = "on";
  double prefix_host_gib = 0;

  void declare(CLI::App& command);
  void apply(SlotsOptions& options) const;
};

}  // namespace weft::cli
