#include "program/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "program/access.h"
#include "program/disassemble.h"

namespace weft {
namespace {

bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }
bool overlap(const Access& a, const Access& b) {
  return overlap(a.rows, b.rows) && overlap(a.columns, b.columns);
}

/// Whether two accesses, each of a step, must be ordered.
bool meet(const Access& a, int64_t step_a, const Access& b, int64_t step_b) {
  // A cache's rows of earlier steps are not those that this step or a later one writes.
  return (a.write || b.write) && overlap(a, b) && !(a.earlier && step_b >= step_a) &&
         !(b.earlier && step_a >= step_b);
}

/// Two steps of a program (one of a program that runs for one only), executed symbolically. Every
/// executed instruction gets a vector clock: how many instructions of each worker are certain to be
/// over when it starts.
class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program), steps_(program.sampled == kNone ? 1 : kSteps) {}

  Status run() {
    WEFT_TRY(check_structure());
    const size_t workers = program_.workers.size();
    next_.assign(workers, 0);
    clock_.assign(workers, std::vector<int64_t>(workers, 0));
    signalled_.assign(program_.events.size(), 0);
    event_clock_.assign(program_.events.size() * kSteps, std::vector<int64_t>(workers, 0));
    histories_.resize(program_.buffers.size() * (workers + 1));
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t worker = 0; worker < workers; ++worker) {
        while (next_[worker] < steps_ * length(worker) && ready(worker)) {
          WEFT_TRY(execute(worker));
          progress = true;
        }
      }
    }
    for (size_t worker = 0; worker < workers; ++worker) {
      if (next_[worker] < steps_ * length(worker)) {
        return input_error(fmt::format(
            "program {}: worker {} never gets past its instruction {} ({}): a wait has no producer "
            "that can run before it",
            program_.name, worker, next_[worker] % length(worker),
            disassemble(program_, at(worker))));
      }
    }
    return {};
  }

 private:
  static constexpr int64_t kSteps = 2;

  int64_t length(size_t worker) const {
    return static_cast<int64_t>(program_.workers[worker].size());
  }
  const Instruction& at(size_t worker) const {
    return program_.workers[worker][static_cast<size_t>(next_[worker] % length(worker))];
  }
  int64_t step(size_t worker) const { return next_[worker] / length(worker); }

  Status check_structure() const {
    const auto bad = [&](size_t worker, size_t index, const std::string& what) {
      return input_error(fmt::format("program {}: worker {}, instruction {}: {}", program_.name,
                                     worker, index, what));
    };
    if (program_.workers.empty()) {
      return input_error(fmt::format("program {}: it has no workers", program_.name));
    }
    std::vector<int32_t> signals(program_.events.size(), 0);
    const auto known = [&](EventId event) {
      return event >= 0 && static_cast<size_t>(event) < program_.events.size();
    };
    for (size_t worker = 0; worker < program_.workers.size(); ++worker) {
      for (size_t i = 0; i < program_.workers[worker].size(); ++i) {
        const Instruction& instruction = program_.workers[worker][i];
        if (instruction.operation < 0 ||
            static_cast<size_t>(instruction.operation) >= program_.operations.size()) {
          return bad(worker, i, fmt::format("operation {} does not exist", instruction.operation));
        }
        if (instruction.tile.empty() || instruction.rows.begin < 0 ||
            instruction.rows.end > program_.rows) {
          return bad(worker, i, "its tile is empty or lies outside the step's rows");
        }
        for (const Access& access : accesses_of(program_, instruction)) {
          if (access.buffer < 0 || static_cast<size_t>(access.buffer) >= program_.buffers.size()) {
            return bad(worker, i, fmt::format("buffer {} does not exist", access.buffer));
          }
        }
        for (const Wait& wait : instruction.waits) {
          if (!known(wait.event)) {
            return bad(worker, i,
                       fmt::format("it waits for event {}, which does not exist", wait.event));
          }
        }
        if (instruction.signal != kNone) {
          if (!known(instruction.signal)) {
            return bad(
                worker, i,
                fmt::format("it signals event {}, which does not exist", instruction.signal));
          }
          ++signals[static_cast<size_t>(instruction.signal)];
        }
      }
    }
    for (size_t event = 0; event < signals.size(); ++event) {
      if (signals[event] != program_.events[event].signals) {
        return input_error(fmt::format(
            "program {}: event {} ({}) expects {} signals a step but {} instructions signal it",
            program_.name, event, program_.events[event].name, program_.events[event].signals,
            signals[event]));
      }
    }
    return {};
  }

  int64_t steps_wanted(const Wait& wait, int64_t step) const {
    return wait.previous_step ? step : step + 1;
  }

  bool ready(size_t worker) const {
    for (const Wait& wait : at(worker).waits) {
      const auto event = static_cast<size_t>(wait.event);
      const int64_t wanted = steps_wanted(wait, step(worker)) * program_.events[event].signals;
      if (wanted > signalled_[event] ||
          (program_.events[event].signals == 0 && !wait.previous_step)) {
        return false;
      }
    }
    return true;
  }

  Status execute(size_t worker) {
    const Instruction& instruction = at(worker);
    std::vector<int64_t>& clock = clock_[worker];
    for (const Wait& wait : instruction.waits) {
      const int64_t steps = steps_wanted(wait, step(worker));
      if (steps > 0) {
        merge(clock, event_clock_[index(wait.event, steps - 1)]);
      }
    }
    WEFT_TRY(check_accesses(worker, instruction));
    clock[worker] = ++next_[worker];
    if (instruction.signal != kNone) {
      const auto event = static_cast<size_t>(instruction.signal);
      const int64_t step = signalled_[event] / program_.events[event].signals;
      merge(event_clock_[index(instruction.signal, step)], clock);
      ++signalled_[event];
    }
    return {};
  }

  size_t index(EventId event, int64_t step) const {
    return static_cast<size_t>(event) * kSteps + static_cast<size_t>(step);
  }
  static void merge(std::vector<int64_t>& into, const std::vector<int64_t>& from) {
    for (size_t i = 0; i < into.size(); ++i) {
      into[i] = std::max(into[i], from[i]);
    }
  }

  struct Past {
    Access access;
    int64_t time;  // instructions its worker had begun, it included
  };
  /// What happened to a buffer (or to one worker's copy) so far.
  struct History {
    std::vector<std::vector<Past>> by_worker;
    int64_t writes = 0;
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t> covered;  // -> writes then
  };

  History& history_of(size_t worker, const Access& access) {
    const bool own = program_.buffers[static_cast<size_t>(access.buffer)].space == Space::worker;
    const size_t copies = program_.workers.size() + 1;
    History& history =
        histories_[static_cast<size_t>(access.buffer) * copies + (own ? worker + 1 : 0)];
    history.by_worker.resize(program_.workers.size());
    return history;
  }

  Status check_accesses(size_t worker, const Instruction& instruction) {
    for (const Access& access : accesses_of(program_, instruction)) {
      const Buffer& buffer = program_.buffers[static_cast<size_t>(access.buffer)];
      History& history = history_of(worker, access);
      if (!access.write && (buffer.space == Space::activation || buffer.space == Space::worker) &&
          !covered(history, access)) {
        return input_error(
            fmt::format("program {}: worker {} reads {} before all of it is written: {}",
                        program_.name, worker, buffer.name, disassemble(program_, instruction)));
      }
      for (size_t other = 0; other < history.by_worker.size(); ++other) {
        // A worker's clock only grows, so its latest conflicting access decides.
        const auto& past = history.by_worker[other];
        const auto conflict = std::find_if(past.rbegin(), past.rend(), [&](const Past& p) {
          return meet(p.access, (p.time - 1) / length(other), access, step(worker));
        });
        if (other != worker && conflict != past.rend() && clock_[worker][other] < conflict->time) {
          return input_error(fmt::format(
              "program {}: worker {} {} {} while worker {} may still {} it: nothing orders {} "
              "after "
              "instruction {} there",
              program_.name, worker, access.write ? "writes" : "reads", buffer.name, other,
              conflict->access.write ? "write" : "read", disassemble(program_, instruction),
              (conflict->time - 1) % length(other)));
        }
      }
    }
    for (const Access& access : accesses_of(program_, instruction)) {
      History& history = history_of(worker, access);
      history.by_worker[worker].push_back({access, next_[worker] + 1});
      history.writes += access.write ? 1 : 0;
    }
    return {};
  }

  /// Whether writes so far cover the rectangle. What was covered once stays so.
  static bool covered(History& history, const Access& access) {
    const auto key = std::make_tuple(access.rows.begin, access.rows.end, access.columns.begin,
                                     access.columns.end);
    if (history.covered.contains(key)) {
      return true;
    }
    std::vector<Access> open = {access};
    for (const auto& worker : history.by_worker) {
      for (const Past& past : worker) {
        if (past.access.write) {
          open = subtract(open, past.access);
        }
      }
    }
    if (open.empty()) {
      history.covered[key] = history.writes;
    }
    return open.empty();
  }

  static std::vector<Access> subtract(const std::vector<Access>& open, const Access& cut) {
    std::vector<Access> rest;
    for (const Access& a : open) {
      if (!overlap(a, cut)) {
        rest.push_back(a);
        continue;
      }
      const Range middle{std::max(a.rows.begin, cut.rows.begin),
                         std::min(a.rows.end, cut.rows.end)};
      const auto keep = [&](Range rows, Range columns) {
        if (!rows.empty() && !columns.empty()) {
          rest.push_back({a.buffer, rows, columns, a.write});
        }
      };
      keep({a.rows.begin, middle.begin}, a.columns);
      keep({middle.end, a.rows.end}, a.columns);
      keep(middle, {a.columns.begin, cut.columns.begin});
      keep(middle, {cut.columns.end, a.columns.end});
    }
    return rest;
  }

  const Program& program_;
  int64_t steps_;
  std::vector<int64_t> next_;                      // [worker]: instructions executed
  std::vector<std::vector<int64_t>> clock_;        // [worker][worker]
  std::vector<int64_t> signalled_;                 // [event]
  std::vector<std::vector<int64_t>> event_clock_;  // [event, step][worker]
  std::vector<History> histories_;                 // [buffer, shared or worker]
};

}  // namespace

Status verify(const Program& program) { return Verifier(program).run(); }

}  // namespace weft
