// weft devices: what this build can run on here.
#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "arch/cdna/target.h"
#include "arch/cpu/dispatch.h"
#include "arch/cpu/threads.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/origin.h"

namespace weft::cli {
namespace {

std::string describe(const DeviceListing& listing) {
  if (!listing.missing.empty()) {
    return fmt::format("{:<10} none: {}\n", listing.kind, listing.missing);
  }
  const DeviceInfo& info = listing.info;
  std::string text =
      fmt::format("{:<10} {} ({}), {} units, {:.0f} GiB", info.id, info.name, info.target,
                  info.units, static_cast<double>(info.memory) / (1 << 30));
  if (info.bandwidth > 0) {
    text += fmt::format("; by its maker {:.2f} TB/s", info.bandwidth / 1e12);
    for (int i = 0; i < kPeaks; ++i) {
      text += fmt::format(", {:.0f} TFLOP/s {}", info.peak[static_cast<size_t>(i)] / 1e12,
                          name_of(static_cast<Peak>(i)));
    }
  }
  if (listing.kind == "sim") {
    text += fmt::format("; {}*{}:0 is the first of a node of {}", info.id, cdna::kMaxNode,
                        cdna::kMaxNode);
  }
  return text + "\n";
}

}  // namespace

void add_devices(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("devices", "List the devices programs can run on here");
  command->callback([&action] {
    action = []() -> Result<int> {
      const double memory =
          static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
      WEFT_TRY(write_text("-", fmt::format("cpu        {}, {} cores, {}, {:.0f} GiB\n",
                                           processor_name(), cpu::usable_cpus(),
                                           cpu::name_of(cpu::current_isa()), memory / (1 << 30))));
      for (const DeviceListing& listing : list_devices()) {
        WEFT_TRY(write_text("-", describe(listing)));
      }
      return 0;
    };
  });
}

}  // namespace weft::cli
