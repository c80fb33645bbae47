// Trials of operations that have, on a GPU, one kernel for a chunk's rows (ops/chunk_kernels.h) and
// so nothing to choose among.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "ops/chunk_kernels.h"
#include "ops/harness/trial.h"

namespace weft::trial {

class PrefillTrial : public Trial {
 public:
  bool has_kernels(Arch arch) const override { return chunk_kernels(arch) != nullptr; }
  Plan plan(const DeviceInfo& device) const override {
    if (!has_kernels(device.arch)) {
      return Trial::plan(device);
    }
    const std::string_view why = refuse(device.arch);
    return why.empty() ? Plan{.kernel = "chunk", .why = "the one kernel for a chunk's rows"}
                       : Plan{.why = why};
  }
  std::vector<Plan> candidates(const DeviceInfo& device) const override {
    const Plan only = plan(device);
    return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
  }

 protected:
  /// Why the architecture's kernel cannot take this case; empty: it can. Not called in builds
  /// without it.
  virtual std::string_view refuse(Arch arch) const = 0;
  virtual Status launch_rows(Arch arch, Stream stream) = 0;
  Status launch_on(const Plan& /*plan*/, Workspace /*workspace*/, Stream stream) override {
    return launch_rows(device().info().arch, stream);
  }
  /// launch(part) for each part of rows() that are cut as a prompt may be.
  template <class Launch>
  Status launch_cut(const Launch& launch) const {
    const int64_t cuts[] = {0, rows() / 3, rows() - rows() / 4, rows()};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      if (cuts[i] < cuts[i + 1]) {
        WEFT_TRY(launch(Range{cuts[i], cuts[i + 1]}));
      }
    }
    return {};
  }

  /// Token ids where the kernel reads them. They are no tensor: a check would put NaN there.
  Result<const int32_t*> on_device(const std::vector<int32_t>& ids) {
    if (ids_.data() == nullptr) {
      WEFT_ASSIGN(ids_, device().allocate(ids.size() * sizeof(int32_t)));
      WEFT_TRY(device().upload(ids_.data(), ids.data(), ids.size() * sizeof(int32_t)));
    }
    return reinterpret_cast<const int32_t*>(ids_.data());
  }

  /// A gap after rows of `columns` that makes strides multiples of 8.
  static int64_t gap_after(int64_t columns) { return 8 - columns % 8; }

 private:
  DeviceMemory ids_;
};

}  // namespace weft::trial
