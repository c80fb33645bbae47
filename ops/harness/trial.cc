#include "ops/harness/trial.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
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
  return std::nullopt;
}

std::optional<Mismatch> compare(std::span<const Expectation> expectations) {
  std::optional<Mismatch> result;
  double worst = 1;  // error in tolerances
  for (const Expectation& expected : expectations) {
    const Tensor& tensor = *expected.tensor;
    size_t i = 0;
    for (int64_t r = expected.rows.begin; r < expected.rows.end; ++r) {
      for (int64_t c = 0; c < tensor.columns(); ++c, ++i) {
        const double want = expected.value[i];
        const double got = tensor.get(r, c);
        const double tolerance = expected.tolerance[i];
        double error = 0;
        if (std::isnan(want) || std::isnan(got)) {
          error = std::isnan(want) == std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
        } else if (want != got) {
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
    if (tensor->role() != Tensor::Role::output) {
      inputs.push_back(tensor.get());
    }
  }
  WEFT_CHECK(!inputs.empty());
  Tensor& tensor = *inputs[static_cast<size_t>(random.below(static_cast<int64_t>(inputs.size())))];
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    const int64_t r = random.below(tensor.rows());
    const int64_t c = random.below(tensor.columns());
    tensor.set(r, c, x);
  }
}

}  // namespace weft::trial
