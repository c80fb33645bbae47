// Trials of operations that have, on Hopper, one kernel for a chunk's rows
// (ops/<op>/hopper_prefill.h) and so nothing to choose among.
#pragma once

#include <string_view>
#include <vector>

#include "base/built.h"
#include "ops/harness/trial.h"

namespace weft::trial {

class PrefillTrial : public Trial {
 public:
  bool has_kernels(Arch arch) const override { return built::kCuda && arch == Arch::hopper; }
  Plan plan(const DeviceInfo& device) const override {
    if (!has_kernels(device.arch)) {
      return Trial::plan(device);
    }
    const std::string_view why = refuse();
    return why.empty() ? Plan{.kernel = "chunk", .why = "the one kernel for a chunk's rows"}
                       : Plan{.why = why};
  }
  std::vector<Plan> candidates(const DeviceInfo& device) const override {
    const Plan only = plan(device);
    return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
  }

 protected:
  /// Why the kernel cannot take this case; empty: it can. Not called in builds without it.
  virtual std::string_view refuse() const = 0;
  virtual Status launch_rows(Stream stream) = 0;
  Status launch_on(const Plan& /*plan*/, Workspace /*workspace*/, Stream stream) override {
    return launch_rows(stream);
  }

  /// A gap after rows of `columns` that makes strides multiples of 8.
  static int64_t gap_after(int64_t columns) { return 8 - columns % 8; }
};

}  // namespace weft::trial
