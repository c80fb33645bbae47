#include "ops/harness/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <thread>
#include <utility>

#include "base/check.h"

namespace weft::trial {

Tensor& Trial::add(std::string name, Tensor::Role role, int64_t rows, int64_t columns, DType dtype,
                   int64_t gap) {
  return *tensors_.emplace_back(
      std::make_unique<Tensor>(std::move(name), role, rows, columns, dtype, gap));
}

Tensor& Trial::input(std::string name, int64_t rows, int64_t columns, DType dtype, Random& random,
                     float deviation, int64_t gap) {
  Tensor& tensor = add(std::move(name), Tensor::Role::input, rows, columns, dtype, gap);
  tensor.fill(random, deviation);
  return tensor;
}

Tensor& Trial::output(std::string name, int64_t rows, int64_t columns, DType dtype, int64_t gap) {
  return add(std::move(name), Tensor::Role::output, rows, columns, dtype, gap);
}

std::span<std::byte> Trial::scratch(Piece piece) {
  Tensor& tensor = *scratch_[static_cast<size_t>(piece.index)];
  return {static_cast<std::byte*>(tensor.data()), tensor.bytes()};
}

void Trial::prepare(int64_t pieces) {
  scratch_.clear();
  const auto halves = static_cast<int64_t>((scratch_bytes() + 1) / 2);
  for (int64_t i = 0; i < pieces; ++i) {
    scratch_.push_back(
        std::make_unique<Tensor>("scratch", Tensor::Role::output, 1, halves, DType::bf16));
  }
  for (const auto& tensor : tensors_) {
    tensor->seal();
  }
}

void Trial::restore() {
  for (const auto* list : {&tensors_, &scratch_}) {
    for (const auto& tensor : *list) {
      tensor->restore();
    }
  }
}

void Trial::run_all(int64_t pieces) {
  for (int phase = 0; phase < phases(); ++phase) {
    for (int64_t i = 0; i < pieces; ++i) {
      run(phase, {i, pieces});
    }
  }
}

std::optional<Mismatch> Trial::damage() const {
  for (const auto* list : {&tensors_, &scratch_}) {
    for (const auto& tensor : *list) {
      if (auto what = tensor->damage()) {
        return Mismatch{*std::move(what)};
      }
    }
  }
  if (workspace_ != nullptr) {
    if (auto what = workspace_->damage()) {
      return Mismatch{*std::move(what)};
    }
    const auto* counters = static_cast<const uint8_t*>(workspace_->data());
    const auto* end = counters + std::min(kCounterBytes, workspace_->bytes());
    const auto* used = std::find_if(counters, end, [](uint8_t byte) { return byte != 0; });
    if (used != end) {
      return Mismatch{
          fmt::format("the workspace's counters are not zero after the run: byte {} is {}",
                      used - counters, *used)};
    }
  }
  return std::nullopt;
}

namespace {

/// What the reference says of each range, in threads of their own.
std::vector<Expectation> expect_ranges(Trial& trial, std::span<const Range> ranges) {
  std::vector<std::future<std::vector<Expectation>>> parts;
  for (const Range& range : ranges) {
    parts.push_back(
        std::async(std::launch::async, [&trial, range] { return trial.expect(range); }));
  }
  std::vector<Expectation> result;
  for (auto& part : parts) {
    for (Expectation& each : part.get()) {
      result.push_back(std::move(each));
    }
  }
  return result;
}

}  // namespace

std::vector<Expectation> expect_all_rows(Trial& trial) {
  const auto threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t count = std::min(trial.rows(), threads);
  std::vector<Range> ranges;
  for (int64_t i = 0; i < count; ++i) {
    ranges.push_back(share(trial.rows(), {i, count}));
  }
  return expect_ranges(trial, ranges);
}

std::vector<Expectation> expect_some_rows(Trial& trial, Random& random) {
  const int64_t rows = trial.rows();
  std::vector<Range> some{{0, 1}};
  if (rows > 1) {
    some.push_back({rows - 1, rows});
  }
  if (rows > 2) {
    const int64_t r = 1 + random.below(rows - 2);
    some.push_back({r, r + 1});
  }
  return expect_ranges(trial, some);
}

Plan Trial::plan(const DeviceInfo& /*device*/) const {
  return {.why = "the operation has no kernel for it in this build"};
}

std::vector<Plan> Trial::candidates(const DeviceInfo& /*device*/) const { return {}; }

Status Trial::place(Device& device, std::span<const Plan> plans, int copies) {
  device_ = &device;
  size_t bytes = 0;
  for (const Plan& plan : plans) {
    bytes = std::max(bytes, workspace_bytes(plan));
  }
  if (bytes > 0) {
    workspace_ = std::make_unique<Tensor>("the workspace", Tensor::Role::output, 1,
                                          static_cast<int64_t>(bytes), DType::e4m3fn);
    std::memset(workspace_->data(), 0, std::min(bytes, kCounterBytes));
    WEFT_TRY(workspace_->place(device));
    WEFT_TRY(workspace_->upload(device));
  }
  for (const auto& tensor : tensors_) {
    WEFT_TRY(tensor->place(device, copies));
  }
  return {};
}

void Trial::select(int copy) {
  for (const auto& tensor : tensors_) {
    tensor->select(copy);
  }
}

Status Trial::upload() {
  for (const auto& tensor : tensors_) {
    WEFT_TRY(tensor->upload(*device_));
  }
  return {};
}

Workspace Trial::workspace() const {
  return workspace_ != nullptr ? Workspace{workspace_->data(Side::device), workspace_->bytes()}
                               : Workspace{};
}

Status Trial::launch(const Plan& plan) { return launch_on(plan, workspace(), device_->stream()); }
Status Trial::launch_pieces(const Plan& plan) {
  return launch_pieces_on(plan, workspace(), device_->stream());
}

Status Trial::download(bool all) {
  WEFT_TRY(device_->synchronize());
  for (const auto& tensor : tensors_) {
    if (all || !tensor->read_only()) {
      WEFT_TRY(tensor->download(*device_));
    }
  }
  return workspace_ != nullptr ? workspace_->download(*device_) : Status();
}

void Trial::allow_fp8_sums(Expectation& out, std::span<const double> of_blocks) const {
  constexpr int kF32Bits = 24;
  const int bits = device_ != nullptr ? device_->info().fp8_sum_bits : kF32Bits;
  if (bits >= kF32Bits) {
    return;
  }
  const double share = (spoiled_ ? 24 : 4) * std::ldexp(1.0, 1 - bits);
  for (size_t i = 0; i < of_blocks.size(); ++i) {
    out.tolerance[i] += share * of_blocks[i];
  }
  out.any_infinity = true;
}

std::optional<Mismatch> compare(std::span<const Expectation> expectations) {
  std::optional<Mismatch> result;
  double worst = 1;  // error in tolerances
  for (const Expectation& expected : expectations) {
    const Tensor& tensor = *expected.tensor;
    size_t i = 0;
    for (int64_t r = expected.rows.begin; r < expected.rows.end; ++r) {
      for (int64_t c = expected.columns.begin; c < expected.columns.end; ++c, ++i) {
        const double want = expected.value[i];
        const double got = tensor.get(r, c);
        const double tolerance = expected.tolerance[i];
        double error = 0;
        const auto also_right = [&] {
          return !expected.others.empty() &&
                 std::find(expected.others[i].begin(), expected.others[i].end(), got) !=
                     expected.others[i].end();
        };
        if (expected.any_infinity && std::isinf(tolerance)) {
          error = std::isfinite(got) ? std::numeric_limits<double>::infinity() : 0;
        } else if (std::isnan(want) || std::isnan(got)) {
          error = std::isnan(want) == std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
        } else if (want != got && !also_right()) {
          error = std::fabs(want - got) / tolerance;  // also where one is infinite: then NaN or inf
          error = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        }
        if (error > worst) {
          worst = error;
          result = Mismatch{fmt::format("{}[{}, {}] is {:.9g}, expected {:.9g} +- {:.2g}",
                                        tensor.name(), r, c, got, want, tolerance)};
        }
      }
    }
  }
  return result;
}

void spoil(Trial& trial, Random& random) {
  std::vector<Tensor*> inputs;
  for (const auto& tensor : trial.tensors_) {
    const bool numbers =
        tensor->role() == Tensor::Role::input || tensor->role() == Tensor::Role::inout;
    if (numbers && tensor->rows() * tensor->columns() > 0) {
      inputs.push_back(tensor.get());
    }
  }
  WEFT_CHECK(!inputs.empty());
  trial.spoiled_ = true;
  Tensor& tensor = *inputs[static_cast<size_t>(random.below(static_cast<int64_t>(inputs.size())))];
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    const int64_t r = random.below(tensor.rows());
    const int64_t c = random.below(tensor.columns());
    if (trial.may_have(tensor, x)) {
      tensor.set(r, c, x);
    }
  }
}

}  // namespace weft::trial
