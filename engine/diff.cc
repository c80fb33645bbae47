#include "engine/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/number.h"
#include "program/access.h"
#include "program/disassemble.h"
#include "program/planner.h"

namespace weft {
namespace {

/// A unit in the last place of bf16, relative to the number: what two roundings of nearly the same
/// number may be apart.
constexpr double kBf16Unit = 0x1p-7;

/// `rounding`: what an element may differ by relative to itself, beside the tolerance.
Difference compare(std::span<const float> expected, std::span<const float> got, double tolerance,
                   double rounding) {
  WEFT_CHECK(expected.size() == got.size());
  double squares = 0;
  double apart = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    squares += e * e;
    apart += (got[i] - e) * (got[i] - e);
  }
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  Difference result;
  result.relative = apart == 0 ? 0 : std::sqrt(apart / squares);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) {
      continue;
    }
    const double size = std::abs(static_cast<double>(expected[i]));
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    const double error = std::isnan(difference) ? INFINITY : difference / std::max(size, rms);
    if (error > result.largest) {
      result.largest = error;
      result.worst = static_cast<int64_t>(i);
    }
    if (!(difference <= tolerance * std::max(size, rms) + rounding * size)) {
      result.first = result.beyond++ == 0 ? static_cast<int64_t>(i) : result.first;
    }
  }
  return result;
}

/// Calls visit(place, instruction) for every instruction of an operation.
template <class Visit>
void for_each_instruction(const Program& program, int32_t operation, Visit visit) {
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    const auto& list = program.workers[worker];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].operation == operation) {
        visit(InstructionPlace{worker, i}, list[i]);
      }
    }
  }
}

/// Buffers that an operation writes, but for the sequence's state.
std::vector<BufferId> buffers_written(const Program& program, int32_t operation) {
  std::vector<BufferId> result;
  for_each_instruction(program, operation, [&](InstructionPlace, const Instruction& instruction) {
    for (const Access& access : accesses_of(program, instruction)) {
      if (access.write &&
          program.buffers[static_cast<size_t>(access.buffer)].space != Space::state &&
          std::find(result.begin(), result.end(), access.buffer) == result.end()) {
        result.push_back(access.buffer);
      }
    }
  });
  return result;
}

/// The workers whose copies of a buffer an operation writes; one where all share it.
std::vector<size_t> owners_of(const Program& program, int32_t operation, BufferId id) {
  if (program.buffers[static_cast<size_t>(id)].space != Space::worker) {
    return {0};
  }
  std::vector<size_t> result;
  for_each_instruction(program, operation, [&](InstructionPlace place, const Instruction&) {
    result.push_back(place.worker);
  });
  return result;
}

/// A split's slot in partials: sums [head_dim], their maximum, the sum of exponentials.
template <class T>
std::span<T> slot_of(const AttentionOp& op, std::span<T> partials, int64_t head, int64_t split) {
  const auto size = static_cast<size_t>(op.head_dim) + 2;
  return partials.subspan(static_cast<size_t>(head * op.splits + split) * size, size);
}

/// What attention's splits make together: [query_heads, head_dim]; `totals`: [query_heads], the
/// logarithm of what they divide by, which sinks join later. Splits without keys have maximum
/// -infinity.
std::vector<float> merged(const AttentionOp& op, std::span<const float> partials,
                          std::vector<float>* totals = nullptr) {
  const auto dim = static_cast<size_t>(op.head_dim);
  std::vector<float> result;
  for (int64_t head = 0; head < op.query_heads; ++head) {
    double highest = -INFINITY;
    for (int64_t s = 0; s < op.splits; ++s) {
      highest = std::max<double>(highest, slot_of(op, partials, head, s)[dim]);
    }
    std::vector<double> sums(dim);
    double total = 0;
    for (int64_t s = 0; s < op.splits; ++s) {
      const std::span<const float> slot = slot_of(op, partials, head, s);
      if (slot[dim] == -INFINITY) {
        continue;
      }
      const double factor = std::exp(slot[dim] - highest);
      for (size_t d = 0; d < dim; ++d) {
        sums[d] += factor * slot[d];
      }
      total += factor * slot[dim + 1];
    }
    for (const double sum : sums) {
      result.push_back(static_cast<float>(sum / total));
    }
    if (totals != nullptr) {
      totals->push_back(static_cast<float>(highest + std::log(total)));
    }
  }
  return result;
}

std::string name_of(const Operation& operation) {
  return operation.layer >= 0 ? fmt::format("{} of layer {}", operation.name, operation.layer)
                              : operation.name;
}

}  // namespace

/// A layer's keys or values, [heads, capacity, dim], a row [heads, dim] at a time.
struct Differ::Cache {
  std::byte* data;
  DType dtype;
  int64_t heads, capacity, dim;

  int64_t at(int64_t position, int64_t element) const {
    return (element / dim * capacity + position) * dim + element % dim;
  }
  std::vector<float> row(int64_t position) const {
    std::vector<float> row;
    for (int64_t i = 0; i < heads * dim; ++i) {
      row.push_back(dtype == DType::bf16
                        ? to_float(reinterpret_cast<const bf16*>(data)[at(position, i)])
                        : reinterpret_cast<const float*>(data)[at(position, i)]);
    }
    return row;
  }
  std::vector<float> row_of(std::span<const float> image, int64_t position) const {
    std::vector<float> row;
    for (int64_t i = 0; i < heads * dim; ++i) {
      row.push_back(image[static_cast<size_t>(at(position, i))]);
    }
    return row;
  }
  void set_row(int64_t position, std::span<const float> row) const {
    for (int64_t i = 0; i < heads * dim; ++i) {
      const float x = row[static_cast<size_t>(i)];
      if (dtype == DType::bf16) {
        reinterpret_cast<bf16*>(data)[at(position, i)] = to_bf16(x);
      } else {
        reinterpret_cast<float*>(data)[at(position, i)] = x;
      }
    }
  }
};

/// What is compared of a buffer, as the subject made it.
struct Differ::Made {
  std::vector<float> values;
  std::vector<float> cache;    // of a cache: all of it
  int64_t missing = 0;         // elements that carry another mark than the writer's
  int64_t first_missing = -1;  // of `values`
  std::optional<int32_t> missing_split;
  int32_t splits = 0;         // of attention: [0, splits) were written by some head
  std::vector<float> totals;  // of attention: see merged()
};

Differ::Differ(const ModelConfig& config, const Weights& weights, Subject& subject,
               const DiffOptions& options, CpuSequence sequence)
    : subject_(subject),
      options_(options),
      sequence_(std::move(sequence)),
      team_(options.threads),
      cpu_(config, weights, sequence_, team_) {}

Result<std::unique_ptr<Differ>> Differ::create(const ModelConfig& config, const Weights& weights,
                                               Subject& subject, const DiffOptions& options) {
  WEFT_CHECK(subject.program().rows == 1);
  WEFT_ASSIGN(CpuSequence sequence, CpuSequence::create(config, options.capacity, options.kv, 1));
  std::unique_ptr<Differ> differ(
      new Differ(config, weights, subject, options, std::move(sequence)));
  WEFT_ASSIGN(differ->step_, differ->cpu_.load(subject.program()));
  PlanOptions feed;
  feed.workers = options.threads;
  feed.capacity = options.capacity;
  feed.kv = options.kv;
  feed.logits = Logits::none;
  feed.sample = false;
  WEFT_ASSIGN(differ->feed_, differ->cpu_.load(plan(config, weights, feed)));
  const auto operations = static_cast<int32_t>(subject.program().operations.size());
  for (int32_t i = 0; i < operations; ++i) {
    std::vector<BufferId> ids = buffers_written(subject.program(), i);
    std::erase_if(ids, [&](BufferId id) { return !subject.keeps(id); });
    differ->written_by_.push_back(std::move(ids));
  }
  return differ;
}

const AttentionOp* Differ::attention_into(BufferId id) const {
  for (const Operation& operation : program().operations) {
    const auto* attention = std::get_if<AttentionOp>(&operation.body);
    if (attention != nullptr && attention->partials == id) {
      return attention;
    }
  }
  return nullptr;
}

// --- the two sides of a buffer ---

Differ::Cache Differ::cache(BufferId id) const {
  const Buffer& b = buffer(id);
  const auto layer = static_cast<size_t>(b.layer);
  const auto& operations = program().operations;
  const bool keys = std::any_of(operations.begin(), operations.end(), [&](const Operation& op) {
    const auto* attention = std::get_if<AttentionOp>(&op.body);
    return attention != nullptr && attention->keys == id;
  });
  return {(keys ? sequence_.keys : sequence_.values)[layer].data(), options_.kv, b.rows,
          options_.capacity, b.columns / options_.capacity};
}

std::span<float> Differ::memory(BufferId id, size_t owner) const {
  const std::span<std::byte> bytes = CpuInterpreter::buffer(*step_, id, owner);
  WEFT_CHECK(buffer(id).element == Element::f32);  // as all of a decode step's
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::vector<float> Differ::mine(BufferId id, size_t owner) const {
  if (is_cache(id)) {
    return cache(id).row(position_);
  }
  const std::span<const float> values = memory(id, owner);
  if (const AttentionOp* attention = attention_into(id)) {
    return merged(*attention, values);
  }
  return {values.begin(), values.end()};
}

void Differ::take_over(BufferId id, size_t owner, const Made& made) {
  const std::span<const float> values = made.values;
  if (is_cache(id)) {
    cache(id).set_row(position_, values);
    return;
  }
  const std::span<float> to = memory(id, owner);
  const AttentionOp* attention = attention_into(id);
  if (attention == nullptr) {
    std::copy(values.begin(), values.end(), to.begin());
    return;
  }
  // As if the first split had all keys.
  const auto dim = static_cast<size_t>(attention->head_dim);
  for (int64_t head = 0; head < attention->query_heads; ++head) {
    for (int64_t split = 0; split < attention->splits; ++split) {
      const std::span<float> slot = slot_of(*attention, to, head, split);
      std::fill(slot.begin(), slot.end(), 0.0f);
      slot[dim] = -INFINITY;
    }
    const std::span<float> slot = slot_of(*attention, to, head, 0);
    std::copy_n(values.begin() + head * attention->head_dim, dim, slot.begin());
    slot[dim] = made.totals[static_cast<size_t>(head)];
    slot[dim + 1] = 1;
  }
}

Result<Differ::Made> Differ::theirs(BufferId id, size_t owner, int32_t writer) {
  WEFT_ASSIGN(Image image, subject_.read(id, owner));
  Made made;
  const auto marked = [&](size_t element) {
    return image.writers.empty() || image.writers[element] == writer;
  };
  const auto miss = [&](int64_t element, std::optional<int32_t> split) {
    if (made.missing++ == 0) {
      made.first_missing = element;
      made.missing_split = split;
    }
  };
  if (is_cache(id)) {
    made.values = cache(id).row_of(image.values, position_);
    made.cache = std::move(image.values);
    return made;
  }
  const AttentionOp* attention = attention_into(id);
  if (attention == nullptr) {
    for (size_t i = 0; i < image.values.size(); ++i) {
      if (!marked(i)) {
        miss(static_cast<int64_t>(i), {});
      }
    }
    made.values = std::move(image.values);
    return made;
  }
  // A subject may cut few keys into fewer splits than there are: those up to the last that anybody
  // wrote are the ones that all heads have.
  const AttentionOp& op = *attention;
  const int64_t slot_size = op.head_dim + 2;
  for (int64_t slot = 0; slot < op.query_heads * op.splits; ++slot) {
    if (marked(static_cast<size_t>(slot * slot_size))) {
      made.splits = std::max(made.splits, static_cast<int32_t>(slot % op.splits) + 1);
    }
  }
  for (int64_t head = 0; head < op.query_heads; ++head) {
    for (int64_t split = 0; split < op.splits; ++split) {
      const int64_t first = (head * op.splits + split) * slot_size;
      for (int64_t i = 0; i < slot_size && split < std::max(made.splits, 1); ++i) {
        if (!marked(static_cast<size_t>(first + i))) {
          miss(head * op.head_dim + std::min(i, op.head_dim - 1), static_cast<int32_t>(split));
        }
      }
      if (split >= made.splits) {
        image.values[static_cast<size_t>(first + op.head_dim)] = -INFINITY;
      }
    }
  }
  made.values = merged(op, image.values, &made.totals);
  return made;
}

// --- faults ---

Result<Fault> Differ::fault(Fault::Kind kind, int32_t operation, BufferId id, size_t owner,
                            const Difference& difference, const Made& made,
                            std::span<const float> expected) {
  const bool missing = kind == Fault::Kind::not_written;
  const int64_t element = missing                           ? made.first_missing
                          : kind == Fault::Kind::whole_step ? difference.worst
                                                            : difference.first;
  Fault fault;
  fault.kind = kind;
  fault.position = fault.row = position_;
  fault.operation = operation;
  fault.buffer = id;
  fault.owner = owner;
  fault.element = element;
  fault.count = missing ? made.missing : difference.beyond;
  fault.elements = static_cast<int64_t>(expected.size());
  fault.expected = expected[static_cast<size_t>(element)];
  fault.got = made.values[static_cast<size_t>(element)];
  fault.relative = difference.relative;

  const auto* attention =
      std::get_if<AttentionOp>(&program().operations[static_cast<size_t>(operation)].body);
  if (kind == Fault::Kind::changed) {
    return fault;  // of all instructions none makes it
  }
  const bool own_row = attention != nullptr && is_cache(id);
  const bool partial = attention != nullptr && attention->partials == id;
  int32_t splits = made.splits;
  if (own_row) {
    // The instruction with the last keys appends the step's row.
    WEFT_ASSIGN(const Made partials, theirs(attention->partials, 0, operation));
    splits = partials.splits;
  }
  for_each_instruction(
      program(), operation, [&](InstructionPlace place, const Instruction& instruction) {
        const Range tile = instruction.tile;
        bool makes = false;
        if (own_row || partial) {
          const int64_t head = partial ? element / attention->head_dim / attention->tile_heads()
                               : attention->fused_latent() ? 0  // the first appends for all
                                                           : element / attention->head_dim;
          const bool in_split = own_row              ? instruction.split == splits - 1
                                : made.missing_split ? instruction.split == *made.missing_split
                                                     : instruction.split < splits;
          makes = in_split && head >= tile.begin && head < tile.end;
        } else {
          for (const Access& access : accesses_of(program(), instruction)) {
            const int64_t column = is_cache(id) ? element / cache(id).dim : element;
            makes |= access.write && access.buffer == id && column >= access.columns.begin &&
                     column < access.columns.end;
          }
          makes &= buffer(id).space != Space::worker || place.worker == owner;
        }
        if (makes) {
          fault.instructions.push_back(place);
        }
      });
  return fault;
}

std::string describe(const Program& program, const Fault& fault) {
  const Operation& operation = program.operations[static_cast<size_t>(fault.operation)];
  std::string where = fmt::format("position {}, operation {} ({})", fault.position, fault.operation,
                                  name_of(operation));
  if (fault.kind == Fault::Kind::token) {
    return fmt::format("{}: token {} is drawn where the CPU draws {} from the same logits\n", where,
                       fault.got, fault.expected);
  }
  const Buffer& buffer = program.buffers[static_cast<size_t>(fault.buffer)];
  std::string name = buffer.name;
  if (buffer.space == Space::worker) {
    name += fmt::format(" of worker {}", fault.owner);
  }
  const auto* attention = std::get_if<AttentionOp>(&operation.body);
  std::string element = fmt::format("column {}", fault.element);
  if (attention != nullptr) {  // heads, of a cache or of the row that its splits make
    element = fmt::format("head {}, element {}", fault.element / attention->head_dim,
                          fault.element % attention->head_dim);
  }
  if (buffer.space == Space::kv) {
    element += fmt::format(" of position {}", fault.row);
  }
  const std::string values =
      fmt::format("the first at {}: {:.9g}, on the CPU {:.9g}", element, fault.got, fault.expected);
  std::string text;
  if (fault.kind == Fault::Kind::changed && buffer.space == Space::kv) {
    return fmt::format("position {}: {} changed in a row that the step does not write, {}\n",
                       fault.position, name, values);
  }
  switch (fault.kind) {
    case Fault::Kind::differs:
      text = fmt::format("{} of {} elements of {} differ, {}; relative difference of all {:.2e}",
                         fault.count, fault.elements, name, values, fault.relative);
      break;
    case Fault::Kind::not_written:
      text = fmt::format("{} was not written: {} elements, the first at {}", name, fault.count,
                         element);
      break;
    case Fault::Kind::changed:
      text = fmt::format("{}, which it does not write, changed: {} of {} elements, {}", name,
                         fault.count, fault.elements, values);
      break;
    case Fault::Kind::whole_step:
      text = fmt::format(
          "the whole step's {} differs, relative difference {:.2e}, {}; no operation alone does: "
          "roundings add up, or it depends on timing",
          name, fault.relative, values);
      break;
    case Fault::Kind::token:
      break;
  }
  text = fmt::format("{}: {}\n", where, text);
  for (const InstructionPlace& place : fault.instructions) {
    text += fmt::format("  worker {}, instruction {}: {}\n", place.worker, place.index,
                        disassemble(program, program.workers[place.worker][place.index]));
  }
  return text;
}

// --- steps ---

void Differ::begin_step(int32_t token) {
  sequence_.tokens[0] = token;
  sequence_.positions[0] = static_cast<int32_t>(position_);
  sequence_.history.clear();
}

Result<std::optional<Fault>> Differ::feed(std::span<const int32_t> tokens) {
  // As far as the last operation that writes a cache.
  int32_t end = 0;
  for (size_t i = 0; i < written_by_.size(); ++i) {
    if (std::any_of(written_by_[i].begin(), written_by_[i].end(),
                    [&](BufferId id) { return is_cache(id); })) {
      end = static_cast<int32_t>(i) + 1;
    }
  }
  const int64_t first = position_;
  for (const int32_t token : tokens) {
    begin_step(token);
    cpu_.run(*feed_, 1, 1, {});
    WEFT_TRY(subject_.run(token, position_, end));
    ++position_;
  }
  std::optional<Fault> earliest;
  const int64_t fed = position_;
  for (int32_t i = 0; i < end && fed > first; ++i) {
    for (const BufferId id : written_by_[static_cast<size_t>(i)]) {
      if (!is_cache(id)) {
        continue;
      }
      WEFT_ASSIGN(Made made, theirs(id, 0, i));
      for (position_ = first; position_ < fed; ++position_) {
        made.values = cache(id).row_of(made.cache, position_);
        const std::vector<float> expected = mine(id, 0);
        const Difference d = compare(expected, made.values, options_.whole_step, 0);
        if (!(d.relative <= options_.whole_step) &&
            (!earliest.has_value() || position_ < earliest->position)) {
          WEFT_ASSIGN(earliest, fault(Fault::Kind::whole_step, i, id, 0, d, made, expected));
        }
        take_over(id, 0, made);
      }
    }
  }
  position_ = fed;
  return earliest;
}

Result<StepDiff> Differ::step(int32_t token, int32_t end) {
  StepDiff diff;
  diff.position = position_;
  diff.operations.resize(program().operations.size());
  const Result<std::optional<Fault>> whole = whole_step(token, end, diff);
  if (!whole.ok()) {
    diff.gave_up = whole.error();  // what it waited for may not have been written
  } else if (whole->has_value() && (*whole)->kind == Fault::Kind::changed) {
    diff.fault = *whole;  // the step reads what is no longer there: running it again tells less
  }
  begin_step(token);
  for (int32_t operation = 0; operation < end && !diff.fault.has_value(); ++operation) {
    WEFT_ASSIGN(diff.fault, one_operation(token, operation, diff));
  }
  if (!diff.fault.has_value()) {
    WEFT_TRY(whole);
    diff.fault = *whole;
  }
  ++position_;
  return diff;
}

Result<std::optional<Fault>> Differ::whole_step(int32_t token, int32_t end, StepDiff& diff) {
  begin_step(token);
  cpu_.run_operations(*step_, 1, {0, end});
  if (!sequence_.history.empty()) {
    diff.expected_token = sequence_.history.back();
  }
  WEFT_ASSIGN(diff.token, subject_.run(token, position_, end));

  std::optional<Fault> first;
  for (int32_t i = 0; i < end; ++i) {
    for (const BufferId id : written_by_[static_cast<size_t>(i)]) {
      if (last_writer(id, end) != i) {
        continue;
      }
      BufferDifference worst{.buffer = id, .operation = i, .difference = {}};
      for (const size_t owner : owners_of(program(), i, id)) {
        WEFT_ASSIGN(const Made made, theirs(id, owner, i));
        const std::vector<float> expected = mine(id, owner);
        const Difference d = compare(expected, made.values, options_.whole_step, 0);
        if (!(d.relative <= worst.difference.relative)) {
          worst.owner = owner;
          worst.difference = d;
        }
        if (id == program().logits && diff.token.has_value()) {
          diff.margin = double{expected[static_cast<size_t>(*diff.expected_token)]} -
                        expected[static_cast<size_t>(*diff.token)];
        }
        if (first.has_value()) {
          continue;
        }
        if (made.missing > 0) {
          WEFT_ASSIGN(first, fault(Fault::Kind::not_written, i, id, owner, d, made, expected));
        } else if (expected.size() > 1 ? !(d.relative <= options_.whole_step)
                                       : std::isnan(d.relative)) {
          WEFT_ASSIGN(first, fault(Fault::Kind::whole_step, i, id, owner, d, made, expected));
        } else if (is_cache(id)) {
          WEFT_ASSIGN(first, earlier_rows(i, id, made));
        }
      }
      diff.buffers.push_back(worst);
    }
  }
  return first;
}

Result<std::optional<Fault>> Differ::earlier_rows(int32_t operation, BufferId id, Made made) {
  const int64_t step = position_;
  std::optional<Fault> result;
  for (position_ = 0; position_ < step && !result.has_value(); ++position_) {
    made.values = cache(id).row_of(made.cache, position_);
    const std::vector<float> expected = mine(id, 0);
    const Difference d = compare(expected, made.values, 0, 0);
    if (d.beyond > 0) {
      WEFT_ASSIGN(result, fault(Fault::Kind::changed, operation, id, 0, d, made, expected));
      result->position = step;
    }
  }
  position_ = step;
  return result;
}

Result<std::optional<Fault>> Differ::one_operation(int32_t token, int32_t operation,
                                                   StepDiff& diff) {
  cpu_.run_operations(*step_, 1, {operation, operation + 1});
  const Operation& op = program().operations[static_cast<size_t>(operation)];
  const bool samples = std::holds_alternative<SampleOp>(op.body);
  const std::vector<BufferId>& ids = written_by_[static_cast<size_t>(operation)];
  if (ids.empty() && !samples) {
    return std::optional<Fault>();
  }
  WEFT_ASSIGN(const std::optional<int32_t> drawn, subject_.run(token, position_, operation + 1));
  WEFT_ASSIGN(std::optional<Fault> result, left_alone(operation));
  if (result.has_value()) {
    return result;
  }
  double largest = 0;
  bool row_differs = false;  // of a cache, as it may by a rounding
  for (const BufferId id : ids) {
    const bool rounded = is_cache(id) && options_.kv == DType::bf16;
    // What is made of such a row differs as much.
    const double tolerance = options_.tolerance + (row_differs && !is_cache(id) ? kBf16Unit : 0);
    for (const size_t owner : owners_of(program(), operation, id)) {
      WEFT_ASSIGN(const Made made, theirs(id, owner, operation));
      const std::vector<float> expected = mine(id, owner);
      const Difference d = compare(expected, made.values, tolerance, rounded ? kBf16Unit : 0);
      if (made.missing > 0) {
        WEFT_ASSIGN(result,
                    fault(Fault::Kind::not_written, operation, id, owner, d, made, expected));
        return result;
      }
      if (d.beyond > 0) {
        WEFT_ASSIGN(result, fault(Fault::Kind::differs, operation, id, owner, d, made, expected));
        return result;
      }
      row_differs |= rounded && d.largest > 0;
      largest = std::max(largest, d.largest);
      take_over(id, owner, made);
    }
  }
  if (samples && drawn != sequence_.history.back()) {
    result.emplace();
    result->kind = Fault::Kind::token;
    result->position = position_;
    result->operation = operation;
    result->expected = sequence_.history.back();
    result->got = drawn.value_or(kNone);
    for_each_instruction(program(), operation, [&](InstructionPlace place, const Instruction&) {
      result->instructions.push_back(place);
    });
    return result;
  }
  diff.operations[static_cast<size_t>(operation)] = largest;
  return result;
}

Result<std::optional<Fault>> Differ::left_alone(int32_t operation) {
  const std::vector<BufferId>& ids = written_by_[static_cast<size_t>(operation)];
  std::optional<Fault> result;
  for (size_t i = 0; i < program().buffers.size(); ++i) {
    const auto id = static_cast<BufferId>(i);
    const std::optional<int32_t> writer = last_writer(id, operation);
    if (!writer.has_value() || is_cache(id) || std::find(ids.begin(), ids.end(), id) != ids.end()) {
      continue;
    }
    for (const size_t owner : owners_of(program(), *writer, id)) {
      WEFT_ASSIGN(const Made made, theirs(id, owner, *writer));
      const std::vector<float> expected = mine(id, owner);
      const Difference d = compare(expected, made.values, 0, 0);
      if (d.beyond > 0) {
        WEFT_ASSIGN(result, fault(Fault::Kind::changed, operation, id, owner, d, made, expected));
        return result;
      }
    }
  }
  return result;
}

std::optional<int32_t> Differ::last_writer(BufferId id, int32_t end) const {
  for (int32_t i = end - 1; i >= 0; --i) {
    const std::vector<BufferId>& ids = written_by_[static_cast<size_t>(i)];
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      return i;
    }
  }
  return {};
}

}  // namespace weft
