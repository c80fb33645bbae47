// What an interpreter shows of itself, so that it can be held against the CPU interpreter
// (engine/diff.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "program/program.h"

namespace weft {

/// What a buffer holds, row-major as the program has it, in f32 whatever its format.
struct Image {
  std::vector<float> values;
  /// For each element the operation that wrote it in the last run, or kNone: none did. Empty where
  /// the interpreter does not record it.
  std::vector<int32_t> writers;
};

class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  /// A decode program: one token a step.
  virtual const Program& program() const = 0;
  /// Executes operations [0, end) of the step that feeds `token` at `position`, from their
  /// beginning, over what earlier steps left in the caches; greedy. A step may be run again and
  /// again. The token that the step draws, if sampling is among the operations. Error (device).
  virtual Result<std::optional<int32_t>> run(int32_t token, int64_t position, int32_t end) = 0;
  /// Whether the buffer is one that this interpreter fills: shared, a worker's own, or a cache.
  virtual bool keeps(BufferId id) const = 0;
  /// A buffer that it keeps, after the last run. `worker`: whose, of Space::worker. Error (device).
  virtual Result<Image> read(BufferId id, size_t worker) = 0;
};

}  // namespace weft
