#include "serve/grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "model/tokenizer/unicode.h"

namespace weft::grammar {
namespace {

using Kind = Expression::Kind;
using EdgeKind = Automaton::Edge::Kind;

/// Thrown inside this file: the recursion that adds expressions is left when there are too many
/// states, or too much is done without any.
struct TooLarge {};

constexpr size_t kMostWork = 20'000'000;

std::string utf8(char32_t c) {
  std::string text;
  tokenizer::append_utf8(text, c);
  return text;
}

}  // namespace

class Builder {
 public:
  explicit Builder(const Rules& rules) : rules_(rules) {}

  Result<Automaton> run() {
    try {
      for (const Expression& expression : rules_.rules) {
        const uint32_t start = state();
        out_.starts_.push_back(start);
        out_.ends_[add(expression, start)] = true;
      }
      out_.root_ = rules_.root;
      find_empty_rules();
      WEFT_TRY(check_recursion());
    } catch (const TooLarge&) {
      return input_error(fmt::format(
          "the grammar is too large, with more than {} states or as much work: repeat less",
          Automaton::kMostStates));
    }
    return std::move(out_);
  }

 private:
  void work(size_t amount) {
    work_ += amount;
    if (work_ > kMostWork) {
      throw TooLarge{};
    }
  }

  uint32_t state() {
    if (out_.edges_.size() >= Automaton::kMostStates) {
      throw TooLarge{};
    }
    out_.edges_.emplace_back();
    out_.ends_.push_back(false);
    return static_cast<uint32_t>(out_.edges_.size() - 1);
  }

  uint32_t bytes(uint32_t from, uint8_t first, uint8_t last) {
    const uint32_t to = state();
    out_.edges_[from].push_back({EdgeKind::bytes, first, last, to});
    return to;
  }
  void empty(uint32_t from, uint32_t to) {
    out_.edges_[from].push_back({EdgeKind::empty, 0, 0, to});
  }

  /// Adds `expression` behind `from`; gives where it ends.
  uint32_t add(const Expression& expression, uint32_t from) {
    work(1);
    switch (expression.kind) {
      case Kind::text:
        for (const char c : expression.text) {
          from = bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
        }
        return from;
      case Kind::set: {
        const uint32_t to = state();
        for (const auto& [first, last] : expression.ranges) {
          characters(from, to, first, last);
        }
        return to;
      }
      case Kind::sequence:
        for (const Expression& part : expression.parts) {
          from = add(part, from);
        }
        return from;
      case Kind::choice: {
        const uint32_t to = state();
        for (const Expression& part : expression.parts) {
          const uint32_t start = state();
          empty(from, start);
          empty(add(part, start), to);
        }
        return to;
      }
      case Kind::repeat:
        return repeated(expression, from);
      case Kind::rule: {
        const uint32_t to = state();
        out_.edges_[from].push_back(
            {EdgeKind::call, 0, 0, to, static_cast<uint32_t>(expression.rule)});
        return to;
      }
    }
    return from;
  }

  uint32_t repeated(const Expression& expression, uint32_t from) {
    const Expression& part = expression.parts[0];
    for (int i = 0; i < expression.least; ++i) {
      from = add(part, from);
    }
    if (expression.most == Expression::kUnbounded) {
      const uint32_t loop = state();
      empty(from, loop);
      empty(add(part, loop), loop);
      return loop;
    }
    const uint32_t to = state();
    for (int i = expression.least; i < expression.most; ++i) {
      empty(from, to);
      from = add(part, from);
    }
    empty(from, to);
    return to;
  }

  /// The characters from `first` to `last` as ranges of the bytes that UTF-8 writes them with.
  void characters(uint32_t from, uint32_t to, char32_t first, char32_t last) {
    if (first <= 0xdfff && last >= 0xd800) {  // surrogates are no characters
      if (first < 0xd800) {
        characters(from, to, first, 0xd7ff);
      }
      if (last > 0xdfff) {
        characters(from, to, 0xe000, last);
      }
      return;
    }
    for (const char32_t longest : {0x7f, 0x7ff, 0xffff}) {
      if (first <= longest && last > longest) {
        characters(from, to, first, longest);
        characters(from, to, longest + 1, last);
        return;
      }
    }
    for (const int bits : {6, 12, 18}) {  // trailing bytes are whole ranges but at the ends
      const char32_t low = (char32_t{1} << bits) - 1;
      if (last >= 0x80 && (first & ~low) != (last & ~low)) {
        if ((first & low) != 0) {
          characters(from, to, first, first | low);
          characters(from, to, (first | low) + 1, last);
          return;
        }
        if ((last & low) != low) {
          characters(from, to, first, (last & ~low) - 1);
          characters(from, to, last & ~low, last);
          return;
        }
      }
    }
    const std::string begin = utf8(first);
    const std::string end = utf8(last);
    for (size_t i = 0; i + 1 < begin.size(); ++i) {
      from = bytes(from, static_cast<uint8_t>(begin[i]), static_cast<uint8_t>(end[i]));
    }
    out_.edges_[from].push_back({EdgeKind::bytes, static_cast<uint8_t>(begin.back()),
                                 static_cast<uint8_t>(end.back()), to});
  }

  /// Which rules may be nothing: a smallest fixed point.
  void find_empty_rules() {
    empty_.assign(rules_.rules.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < empty_.size(); ++rule) {
        if (!empty_[rule] && reaches_end(rule)) {
          empty_[rule] = changed = true;
        }
      }
    }
  }

  /// The states that rule comes to before any byte; calls of `called` on the way.
  std::vector<uint32_t> before_bytes(size_t rule, std::vector<uint32_t>* called) {
    std::vector<uint32_t> todo = {out_.starts_[rule]};
    std::vector<uint32_t> out;
    seen_.resize(out_.edges_.size());
    seen_[todo[0]] = ++visit_;
    while (!todo.empty()) {
      const uint32_t at = todo.back();
      todo.pop_back();
      out.push_back(at);
      work(1 + out_.edges_[at].size());
      for (const Automaton::Edge& edge : out_.edges_[at]) {
        if (edge.kind == EdgeKind::call && called != nullptr) {
          called->push_back(edge.rule);
        }
        if ((edge.kind == EdgeKind::empty || (edge.kind == EdgeKind::call && empty_[edge.rule])) &&
            seen_[edge.to] != visit_) {
          seen_[edge.to] = visit_;
          todo.push_back(edge.to);
        }
      }
    }
    return out;
  }

  bool reaches_end(size_t rule) {
    const std::vector<uint32_t> states = before_bytes(rule, nullptr);
    return std::any_of(states.begin(), states.end(),
                       [&](uint32_t state) { return out_.ends_[state]; });
  }

  /// A rule that calls itself before any byte would be called forever.
  Status check_recursion() {
    const size_t count = rules_.rules.size();
    std::vector<std::vector<uint32_t>> calls(count);
    for (size_t rule = 0; rule < count; ++rule) {
      before_bytes(rule, &calls[rule]);
    }
    std::vector<uint8_t> state(count);  // 1: on the way, 2: done
    for (size_t root = 0; root < count; ++root) {
      std::vector<std::pair<size_t, size_t>> path;  // rule, its next call
      if (state[root] == 0) {
        path.emplace_back(root, 0);
        state[root] = 1;
      }
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        if (next == calls[rule].size()) {
          state[rule] = 2;
          path.pop_back();
          continue;
        }
        const size_t callee = calls[rule][next++];
        if (state[callee] == 1) {
          return input_error(fmt::format(
              "the grammar's rule '{}' begins with itself (left recursion): say it with * or +",
              rules_.names[callee]));
        }
        if (state[callee] == 0) {
          state[callee] = 1;
          path.emplace_back(callee, 0);
        }
      }
    }
    return {};
  }

  const Rules& rules_;
  Automaton out_;
  std::vector<bool> empty_;
  std::vector<uint32_t> seen_;  ///< of a state: the last visit that came to it
  uint32_t visit_ = 0;
  size_t work_ = 0;
};

Result<Automaton> Automaton::make(const Rules& rules) { return Builder(rules).run(); }

}  // namespace weft::grammar
