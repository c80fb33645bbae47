// How an operation has kernels for devices: one object per architecture that tells how a launch is
// cut (a pure function, testable on any machine) and launches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/device.h"
#include "base/result.h"

namespace weft {

/// Device memory that a kernel may use besides its operands: partial sums and counters. It belongs
/// to one operation at a time. Before an operation's first use its first kCounterBytes are zero,
/// and every operation leaves them zero; the rest holds anything.
struct Workspace {
  void* data = nullptr;  ///< aligned to 256 bytes
  size_t bytes = 0;
};
inline constexpr size_t kCounterBytes = 64 << 10;

/// How one launch is cut: which of an operation's kernels, and its sizes. What a number means in
/// detail, and which are used, is the kernel's to say; 0 or 1 where it has no such thing.
struct Plan {
  std::string_view kernel = {};  ///< a literal: "tile", "stream"; empty: none can run this
  int tile_m = 0;                ///< rows of the output per block
  int tile_n = 0;                ///< columns of the output per block
  int tile_k = 0;                ///< elements of k per stage
  int stages = 0;                ///< tiles in flight
  int splits = 1;                ///< blocks that share one output tile's k
  int cluster = 1;               ///< blocks in a cluster
  int threads = 0;               ///< per block, where the kernel leaves that open
  bool swapped = false;          ///< computes the transposed product, so that n fills the wide side
  std::string_view why = {};     ///< a literal: the rule that chose it

  friend bool operator==(const Plan& a, const Plan& b) {  // not why
    return a.kernel == b.kernel && a.tile_m == b.tile_m && a.tile_n == b.tile_n &&
           a.tile_k == b.tile_k && a.stages == b.stages && a.splits == b.splits &&
           a.cluster == b.cluster && a.threads == b.threads && a.swapped == b.swapped;
  }
};

/// "tile 128x256x64, 4 stages, 2 splits (from the table of measured shapes)".
std::string to_text(const Plan& plan);

/// What a table of measured plans is asked with.
struct PlanKey {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;  ///< 0 for operations on rows
  std::string_view format =
      {};  ///< a literal: formats and layouts that change the choice: "e4m3fn,row"
};

/// A row of ops/OP/hopper_table.inc or cdna_table.inc, which `weft tune` writes.
struct TunedPlan {
  PlanKey key;
  std::string_view target;  ///< "sm_90a"
  int units = 0;            ///< of the device it was measured on
  Plan plan;
};

/// The plan measured for this key and device; where m itself was not measured, that of the next
/// larger m (the largest below, failing that) if it is within a factor of `reach`. nullptr: none.
const Plan* find_tuned(std::span<const TunedPlan> table, const PlanKey& key,
                       const DeviceInfo& device, double reach = 2);

/// One architecture's kernels of an operation. op.h declares `extern const Kernel<Args> NAME` in
/// the architecture's namespace; the file with the kernels defines it.
///
/// Kernels of one stream run as if each began when the one before has ended. On sm_90a they overlap
/// all the same: a kernel's blocks prepare themselves while the last blocks of the kernel before
/// finish, and wait for it before they read or write. Where the caller says `constant_b`, that no
/// operation which may still run writes b (it is a weight), b's first loads do not wait either.
template <class Args>
struct Kernel {
  /// The choice for operands that are valid (see the operation's check()); Plan::kernel is empty
  /// where this device has no kernel for their formats, and `why` is the sentence that says so.
  Plan (*plan)(const Args&, const DeviceInfo&);
  /// All plans worth measuring for such operands.
  std::vector<Plan> (*candidates)(const Args&, const DeviceInfo&);
  /// Bytes of Args::workspace that a plan needs. A launch with less is an error (usage).
  size_t (*workspace)(const Args&, const Plan&);
  /// Starts it on the stream. Neither allocates nor waits; can be captured in a graph.
  Status (*launch)(const Args&, const Plan&, Stream);
};

/// The error of an operation on a device for which there is no kernel.
Error no_kernel(std::string_view operation, const DeviceInfo& device, std::string_view why);

/// What `args` need on a stream's device. `kernel` may be null.
template <class Args>
Result<size_t> workspace_bytes(std::string_view operation, const Kernel<Args>* kernel,
                               const Args& args, Stream stream) {
  const DeviceInfo& info = stream.device->info();
  const Plan plan = kernel != nullptr ? kernel->plan(args, info) : Plan{};
  if (plan.kernel.empty()) {
    return no_kernel(operation, info, plan.why);
  }
  return kernel->workspace(args, plan);
}

/// The end of every operation's public function: plans and launches, from any thread. `kernel` may
/// be null.
template <class Args>
Status launch(std::string_view operation, const Kernel<Args>* kernel, const Args& args,
              Stream stream) {
  WEFT_TRY(stream.device->use());
  const DeviceInfo& info = stream.device->info();
  const Plan plan = kernel != nullptr ? kernel->plan(args, info) : Plan{};
  if (plan.kernel.empty()) {
    return no_kernel(operation, info, plan.why);
  }
  return kernel->launch(args, plan, stream);
}

}  // namespace weft

/// In an operation's op.cc, which includes "base/built.h" (written by the build: which kernels it
/// has): a function from Arch to this build's Kernel of operation OP, or to null.
#define WEFT_KERNEL_OF(OP)                                 \
  [](::weft::Arch arch) -> decltype(&::weft::hopper::OP) { \
    if constexpr (::weft::built::hopper(#OP)) {            \
      if (arch == ::weft::Arch::hopper) {                  \
        return &::weft::hopper::OP;                        \
      }                                                    \
    }                                                      \
    if constexpr (::weft::built::cdna(#OP)) {              \
      if (arch == ::weft::Arch::cdna) {                    \
        return &::weft::cdna::OP;                          \
      }                                                    \
    }                                                      \
    return nullptr;                                        \
  }
