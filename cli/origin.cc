#include "cli/origin.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>

#include "arch/cpu/dispatch.h"

namespace weft::cli {

std::string version() { return fmt::format("{} ({})", kVersion, kCommit); }

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "x86-64 processor";
}

nlohmann::ordered_json origin(const DeviceInfo* device, std::string_view method) {
  nlohmann::ordered_json out;
  out["version"] = kVersion;
  out["commit"] = kCommit;
  out["date"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  out["device"] = device == nullptr ? "cpu" : device->id;
  out["name"] = device == nullptr ? processor_name() : device->name;
  out["target"] =
      device == nullptr ? std::string(cpu::name_of(cpu::current_isa())) : device->target;
  out["method"] = method;
  return out;
}

}  // namespace weft::cli
