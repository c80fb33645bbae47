// Holds an interpreter against the CPU's, so that a wrong token is found down to one instruction.
//
// A step is looked at twice. As a whole: both run it, each on its own activations, from the same
// caches; roundings add up from operation to operation, so what each buffer holds at the end is
// judged loosely. Then operation by operation: the subject runs the step up to and including the
// operation, the CPU the operation alone, and before the next one the CPU takes over what the
// subject wrote. So every operation has the same inputs on both sides, its own rounding is all that
// can differ, and the first that differs by more is where the fault lies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/cpu_interpreter.h"
#include "engine/subject.h"
#include "engine/worker_team.h"
#include "model/config.h"
#include "model/weights.h"
#include "program/program.h"

namespace weft {

struct DiffOptions {
  int64_t capacity = 0;    ///< positions of the caches, as the subject's program has them
  DType kv = DType::bf16;  ///< their format, likewise
  int threads = 1;         ///< of this machine, for what is fed without a look
  /// Most that an element of one operation's result may differ by, relative to the larger of the
  /// CPU's element and the root mean square of its buffer. The resident kernel's differ by up to
  /// 6e-5: it multiplies 16 bits of activations, hands on 17 (arch/hopper/resident.cuh), and sums
  /// in another order.
  double tolerance = 3e-4;
  /// Most that a buffer may differ by after a whole step: 2-norm of the difference over that of the
  /// CPU's buffer. Of one number alone (the weight of a shared expert), which may be near zero by
  /// chance, it is what follows from it that is held to this.
  double whole_step = 1e-2;
};

/// An instruction by its place in a program.
struct InstructionPlace {
  size_t worker = 0;
  size_t index = 0;  ///< in the worker's list
};

/// How the two sides of a buffer compare. What is compared of a cache is the position's row,
/// [kv_heads, head_dim]; of attention's partials the row that its splits make together,
/// [query_heads, head_dim], since the two sides may cut the keys in other places.
struct Difference {
  int64_t beyond = 0;   ///< elements further apart than the tolerance
  int64_t first = -1;   ///< the first of them
  int64_t worst = -1;   ///< the element furthest apart, -1: none differ
  double largest = 0;   ///< how far, in the terms of DiffOptions::tolerance
  double relative = 0;  ///< of all of it, in the terms of DiffOptions::whole_step
};

struct Fault {
  enum class Kind : uint8_t {
    differs,      ///< the result is not what the CPU makes of the same inputs
    not_written,  ///< elements that the operation writes carry the mark of an earlier write
    changed,      ///< elements that the operation does not write are not what they were
    token,        ///< another token from the same logits
    whole_step,   ///< the step as a whole differs, though no operation alone does
  };
  Kind kind = Kind::differs;
  int64_t position = 0;  ///< of the step
  int32_t operation = 0;
  BufferId buffer = kNone;
  size_t owner = 0;      ///< the worker whose copy it is, of Space::worker
  int64_t row = 0;       ///< of a cache: the position
  int64_t element = 0;   ///< the first one, of what is compared (see Difference)
  int64_t count = 0;     ///< elements with this fault
  int64_t elements = 0;  ///< of all that were compared
  double expected = 0;   ///< on the CPU
  double got = 0;        ///< on the subject
  double relative = 0;   ///< Difference::relative
  /// Which make the element. Several where attention is split and none of the splits is missing.
  std::vector<InstructionPlace> instructions;
};

/// One sentence, then a line for each instruction.
std::string describe(const Program& program, const Fault& fault);

/// A buffer after a whole step.
struct BufferDifference {
  BufferId buffer = kNone;
  size_t owner = 0;       ///< of copies the one that differs most
  int32_t operation = 0;  ///< the last that wrote it
  Difference difference;
};

struct StepDiff {
  int64_t position = 0;
  /// The subject could not run the whole step. The fault is where this comes from.
  std::optional<Error> gave_up;
  std::vector<BufferDifference> buffers;  ///< as a whole, in the order of their operations
  std::optional<int32_t> expected_token;  ///< drawn at the end of the whole step, on the CPU
  std::optional<int32_t> token;           ///< on the subject
  double margin = 0;                      ///< by how much the CPU's logits prefer its own token
  /// Of each operation alone, Difference::largest; nothing where the subject keeps no buffer that
  /// it writes, or a fault came before.
  std::vector<std::optional<double>> operations;
  std::optional<Fault> fault;  ///< the first
};

class Differ {
 public:
  /// `config`, `weights` and `subject` outlive it; it runs the subject's program. Error (device):
  /// no memory.
  static Result<std::unique_ptr<Differ>> create(const ModelConfig& config, const Weights& weights,
                                                Subject& subject, const DiffOptions& options);

  /// Feeds tokens on both sides, compares the caches at the end as a whole step's buffers are, and
  /// lets the CPU take over the subject's. The first position at which they differ, if any.
  Result<std::optional<Fault>> feed(std::span<const int32_t> tokens);

  /// Feeds a token and looks at operations [0, end) of its step. No other step may follow one that
  /// ended early. Error (device): the subject's, when no fault can be found.
  Result<StepDiff> step(int32_t token, int32_t end);

  int64_t position() const { return position_; }

 private:
  struct Cache;
  struct Made;

  Differ(const ModelConfig& config, const Weights& weights, Subject& subject,
         const DiffOptions& options, CpuSequence sequence);
  void begin_step(int32_t token);
  Result<std::optional<Fault>> whole_step(int32_t token, int32_t end, StepDiff& diff);
  Result<std::optional<Fault>> one_operation(int32_t token, int32_t operation, StepDiff& diff);
  /// What operations before it wrote and this one does not.
  Result<std::optional<Fault>> left_alone(int32_t operation);
  /// The rows of a cache before the step's. `operation`: the last that wrote it.
  Result<std::optional<Fault>> earlier_rows(int32_t operation, BufferId id, Made made);
  Result<Fault> fault(Fault::Kind kind, int32_t operation, BufferId id, size_t owner,
                      const Difference& difference, const Made& made,
                      std::span<const float> expected);

  /// What is compared of a buffer (see Difference), on the CPU; and on the subject, where
  /// `writer` wrote it last.
  std::vector<float> mine(BufferId id, size_t owner) const;
  Result<Made> theirs(BufferId id, size_t owner, int32_t writer);
  void take_over(BufferId id, size_t owner, const Made& made);
  Cache cache(BufferId id) const;
  std::span<float> memory(BufferId id, size_t owner) const;

  const Program& program() const { return subject_.program(); }
  const Buffer& buffer(BufferId id) const { return program().buffers[static_cast<size_t>(id)]; }
  bool is_cache(BufferId id) const { return buffer(id).space == Space::kv; }
  /// The operation whose partials a buffer is; null: none's.
  const AttentionOp* attention_into(BufferId id) const;
  /// The last of operations [0, end) that writes a buffer.
  std::optional<int32_t> last_writer(BufferId id, int32_t end) const;

  Subject& subject_;
  const DiffOptions options_;
  CpuSequence sequence_;
  WorkerTeam team_;
  CpuInterpreter cpu_;
  std::shared_ptr<CpuInterpreter::Loaded> step_;   ///< the subject's program
  std::shared_ptr<CpuInterpreter::Loaded> feed_;   ///< the same step for this machine's threads
  std::vector<std::vector<BufferId>> written_by_;  ///< [operation]: what the subject keeps of it
  int64_t position_ = 0;
};

}  // namespace weft
