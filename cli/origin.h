// Where figures come from. What `weft bench --json` writes begins with it, so that no figure can be
// older than it says: docs/performance/ is made of such files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "arch/device.h"

namespace weft::cli {

/// The project's version: "0.1.0".
extern const char* const kVersion;
/// The commit that this command was built from: ten hexadecimal digits, and "+changes" where the
/// sources differ from it; "unknown" where they are no checkout and the build was not told
/// (WEFT_COMMIT). cmake/Commit.cmake writes both.
extern const char* const kCommit;

/// "0.1.0 (0123456789)".
std::string version();

/// As the processor names itself: "AMD EPYC 9R14".
std::string processor_name();

/// "version", "commit", "date" (now, UTC), "device" (as --device names it), "name" (what hardware
/// that is), "target" (its instruction set), "method" (one sentence). Null: the CPU.
nlohmann::ordered_json origin(const DeviceInfo* device, std::string_view method);

}  // namespace weft::cli
