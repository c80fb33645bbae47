// What an operation tells `weft check` and `weft bench` about itself, in ops/<op>/trial.cc: its
// cases, and for each case the data, the call of the kernel, what the reference says, and how much
// work it is. The build collects the operations by their folders (ops/harness/registry.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/range.h"
#include "ops/harness/tensor.h"

namespace weft::trial {

/// Piece `index` of `count` about equal ones, as the workers of a program share an instruction.
struct Piece {
  int64_t index = 0;
  int64_t count = 1;
};

/// This piece's part of [0, size), cut at multiples of `unit`.
constexpr Range share(int64_t size, Piece piece, int64_t unit = 1) {
  const int64_t units = (size + unit - 1) / unit;
  const auto cut = [&](int64_t index) {
    const int64_t at = units * index / piece.count * unit;
    return at < size ? at : size;
  };
  return {cut(piece.index), cut(piece.index + 1)};
}

/// Which of the device's arithmetic peaks bounds the operation.
enum class Peak { f32, bf16 };

/// The least that one run must move and compute.
struct Work {
  double bytes = 0;
  double flops = 0;
  Peak peak = Peak::f32;
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
  /// Runs a piece of a phase on the device. Pieces may run at once, each with its own index.
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

 protected:
  Tensor& add(std::string name, Tensor::Role role, int64_t rows, int64_t columns, DType dtype,
              int64_t gap = 0);
  /// An input of normal numbers.
  Tensor& input(std::string name, int64_t rows, int64_t columns, DType dtype, Random& random,
                float deviation = 1, int64_t gap = 0);
  Tensor& output(std::string name, int64_t rows, int64_t columns, DType dtype, int64_t gap = 0);
  std::span<std::byte> scratch(Piece piece);

 private:
  friend void spoil(Trial& trial, Random& random);
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::unique_ptr<Tensor>> scratch_;
};

/// Puts NaN and both infinities into one of the trial's inputs, chosen at random.
void spoil(Trial& trial, Random& random);

/// Which commands run a case.
enum class Use { check, bench };

struct CaseInfo {
  std::string name;
  Use use;
};

struct Operation {
  std::string_view name;
  std::vector<CaseInfo> cases;
  std::function<std::unique_ptr<Trial>(size_t index, Random& random)> make;
  /// Whether NaN and infinities in its inputs mean something.
  bool any_number = true;
};

/// For cases of a type with `use` and `name()`, and trials made from (case, random).
template <class T, class Case>
Operation operation_of(std::string_view name, std::span<const Case> cases) {
  Operation operation;
  operation.name = name;
  for (const Case& each : cases) {
    operation.cases.push_back({each.name(), each.use});
  }
  operation.make = [cases](size_t index, Random& random) -> std::unique_ptr<Trial> {
    return std::make_unique<T>(cases[index], random);
  };
  return operation;
}

}  // namespace weft::trial
