// What an operation tells `weft check`, `weft bench` and `weft tune` about itself, in
// ops/<op>/trial.cc: its cases, and for each case the data, the calls of the kernels (the CPU's,
// and those of the device that the trial is placed on), what the reference says, and how much work
// it is. The build collects the operations by their folders (ops/harness/registry.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/divide.h"
#include "base/range.h"
#include "ops/harness/shape.h"
#include "ops/harness/tensor.h"
#include "ops/kernel.h"

namespace weft::trial {

using weft::Peak;

/// Piece `index` of `count` about equal ones, as the workers of a program share an instruction.
struct Piece {
  int64_t index = 0;
  int64_t count = 1;
};

/// This piece's part of [0, size), cut at multiples of `unit`.
constexpr Range share(int64_t size, Piece piece, int64_t unit = 1) {
  const int64_t units = ceil_div(size, unit);
  const auto cut = [&](int64_t index) {
    const int64_t at = units * index / piece.count * unit;
    return at < size ? at : size;
  };
  return {cut(piece.index), cut(piece.index + 1)};
}

/// The least that one run must move and compute.
struct Work {
  double bytes = 0;
  double flops = 0;
  Peak peak = Peak::f32;  ///< which of the device's arithmetic peaks bounds it
};

/// The element that misses its tolerance by most, or what else is wrong.
struct Mismatch {
  std::string message;
};

/// Compares outputs with what was expected of them.
std::optional<Mismatch> compare(std::span<const Expectation> expectations);

/// One case with its data.
class Trial {
 public:
  virtual ~Trial() = default;

  /// Rows that expect() can be asked for apart; 1 where there is nothing to divide.
  virtual int64_t rows() const = 0;
  /// What the outputs must hold in `rows` after a run, by the reference. To be called before the
  /// run, which may overwrite inputs.
  virtual std::vector<Expectation> expect(Range rows) = 0;
  /// Steps that each need the one before complete.
  virtual int phases() const { return 1; }
  /// Runs a piece of a phase on the CPU. Pieces may run at once, each with its own index.
  virtual void run(int phase, Piece piece) = 0;
  virtual Work work() const = 0;
  /// Bytes of scratch that run() wants for a piece.
  virtual size_t scratch_bytes() const { return 0; }

  /// All tensors are made and filled; makes scratch for so many pieces.
  void prepare(int64_t pieces);
  /// Puts every tensor back to what it was before a run.
  void restore();
  /// Runs all phases, piece after piece.
  void run_all(int64_t pieces);
  /// What was written where nothing may be.
  std::optional<Mismatch> damage() const;
  std::span<const std::unique_ptr<Tensor>> tensors() const { return tensors_; }

  // On another device than the CPU; see KernelTrial for operations that have kernels there.

  /// Whether this build has kernels of the operation for an architecture.
  virtual bool has_kernels(Arch /*arch*/) const { return false; }
  /// The dispatch's choice; an empty Plan::kernel, and why, where there is none.
  virtual Plan plan(const DeviceInfo& device) const;
  virtual std::vector<Plan> candidates(const DeviceInfo& device) const;
  virtual PlanKey key() const { return {}; }
  /// Makes copies of all tensors there, and a workspace for any of these plans. To be called before
  /// expect(): a device's way to sum may be in the tolerance.
  Status place(Device& device, std::span<const Plan> plans, int copies = 1);
  /// Which of the copies launch() and download() mean: the first until told.
  void select(int copy);
  /// Copies all tensors as they are after restore(). The workspace is as an operation leaves it:
  /// zeros where the counters are, and what was there before in the rest.
  Status upload();
  Status launch(const Plan& plan);
  /// The same, in pieces where the operation promises that these change no bit.
  Status launch_pieces(const Plan& plan);
  /// Waits and copies back: the inputs too when `all`, or only what may be written.
  Status download(bool all);
  Device& device() const { return *device_; }

 protected:
  Tensor& add(std::string name, Tensor::Role role, int64_t rows, int64_t columns, DType dtype,
              int64_t gap = 0);
  /// An input of normal numbers.
  Tensor& input(std::string name, int64_t rows, int64_t columns, DType dtype, Random& random,
                float deviation = 1, int64_t gap = 0);
  Tensor& output(std::string name, int64_t rows, int64_t columns, DType dtype, int64_t gap = 0);
  std::span<std::byte> scratch(Piece piece);
  /// Adds to tolerances how far sums of fp8 products may be off, besides sum_tolerance(), where the
  /// trial runs; `of_blocks` as the references give it. Hopper's tensor cores align the products of
  /// a step, and the sum so far, to the largest of them and drop what is below 14 bits (DeepSeek-V3
  /// technical report, section 3.5.2), so a kernel must add the sums of 128 products in f32. In a
  /// block of 128 about 130 terms lose up to u = 2^-13 of the largest product, which is a sixteenth
  /// of the block's sum of magnitudes S; they lose it towards zero and their signs are random:
  /// deviation sqrt(130 / 3) u, or 0.41 * 2^-13 S. Four and a half of these, 1.8 * 2^-13 S, are
  /// passed less than once in 10^5 sums; twice that, for what is not known of the adders, is
  /// 4 * 2^-13 S. Blocks add like independent errors: the root of the sum of the squares of their
  /// S. Sums that are never added in f32 err by up to 10 of these units over 512 products and by 24
  /// over 7168 (ops/fp8_sums_test.cc). Where infinities were put into the data, an fp8 operand has
  /// them as its largest number: one product is then most of S, and every other loses its part of
  /// that: 6.6 * 2^-13 S, three and a half times which is 24.
  void allow_fp8_sums(Expectation& out, std::span<const double> of_blocks) const;

  /// Whether x, NaN or an infinity, may be among an input's numbers: not NaN among those in e4m3fn
  /// whose code of it the operation reads as a number, nor what makes anything of a sum.
  virtual bool may_have(const Tensor& /*input*/, float /*x*/) const { return true; }

  virtual size_t workspace_bytes(const Plan& /*plan*/) const { return 0; }
  virtual Status launch_on(const Plan& /*plan*/, Workspace /*workspace*/, Stream /*stream*/) {
    return device_error("this operation runs on the CPU alone");
  }
  virtual Status launch_pieces_on(const Plan& plan, Workspace workspace, Stream stream) {
    return launch_on(plan, workspace, stream);
  }

 private:
  friend void spoil(Trial& trial, Random& random);
  Workspace workspace() const;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::unique_ptr<Tensor>> scratch_;
  Device* device_ = nullptr;
  std::unique_ptr<Tensor> workspace_;
  bool spoiled_ = false;
};

/// A trial of an operation whose kernels are Kernel<Args>.
template <class Args>
class KernelTrial : public Trial {
 public:
  bool has_kernels(Arch arch) const override { return kernel_of_(arch) != nullptr; }
  Plan plan(const DeviceInfo& device) const override {
    const Kernel<Args>* kernel = kernel_of_(device.arch);
    return kernel != nullptr ? kernel->plan(args(Side::host), device) : Trial::plan(device);
  }
  std::vector<Plan> candidates(const DeviceInfo& device) const override {
    const Kernel<Args>* kernel = kernel_of_(device.arch);
    return kernel != nullptr ? kernel->candidates(args(Side::host), device) : std::vector<Plan>{};
  }
  PlanKey key() const override { return plan_key(args(Side::host)); }

 protected:
  explicit KernelTrial(const Kernel<Args>* (*kernel_of)(Arch)) : kernel_of_(kernel_of) {}

  /// The operation's arguments, with the addresses of one side; without a workspace.
  virtual Args args(Side side) const = 0;

  size_t workspace_bytes(const Plan& plan) const override {
    return kernel_of_(device().info().arch)->workspace(args(Side::host), plan);
  }
  Status launch_on(const Plan& plan, Workspace workspace, Stream stream) override {
    Args on_device = args(Side::device);
    on_device.workspace = workspace;
    WEFT_TRY(check(on_device));
    return kernel_of_(device().info().arch)->launch(on_device, plan, stream);
  }

 private:
  const Kernel<Args>* (*kernel_of_)(Arch);
};

/// Trial::expect() of all rows, or of the first row, the last and one between where the reference
/// takes too long for all; in several threads.
std::vector<Expectation> expect_all_rows(Trial& trial);
std::vector<Expectation> expect_some_rows(Trial& trial, Random& random);

/// Puts NaN, where it may be, and both infinities into one of the trial's inputs, chosen at random.
void spoil(Trial& trial, Random& random);

/// Which commands run a case.
enum class Use {
  check,
  check_large,  ///< checked on devices; it would take the CPU's slowest instruction set too long
  bench
};

struct CaseInfo {
  std::string name;  ///< its shape (ops/harness/shape.h)
  Use use = Use::check;
  std::function<std::unique_ptr<Trial>(Random& random)> make;
};

struct Operation {
  std::string_view name;
  std::vector<CaseInfo> cases;
  /// The case of any shape. Error (usage): what is wrong with the shape, and what its keys are.
  std::function<Result<CaseInfo>(std::string_view shape, Use use)> read;
};

/// For cases of a type with `use`, `fields()` (ops/harness/shape.h) and, where not all fields go
/// together, `conflict()`, a sentence that says why they do not; and trials made from (case,
/// random).
template <class T, class Case>
Operation operation_of(std::string_view name, std::span<const Case> cases) {
  constexpr auto kInfo = [](const Case& c) {
    return CaseInfo{shape_of(c), c.use, [c](Random& random) -> std::unique_ptr<Trial> {
                      return std::make_unique<T>(c, random);
                    }};
  };
  Operation operation;
  operation.name = name;
  for (const Case& each : cases) {
    operation.cases.push_back(kInfo(each));
  }
  operation.read = [name, kInfo](std::string_view shape, Use use) -> Result<CaseInfo> {
    Case c{};
    c.use = use;
    ShapeReader reader(name, shape);
    c.fields(reader);
    WEFT_TRY(reader.finish());
    if constexpr (requires { c.conflict(); }) {
      WEFT_TRY(reader.refuse(c.conflict()));
    }
    return kInfo(c);
  };
  return operation;
}

}  // namespace weft::trial
