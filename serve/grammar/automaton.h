// Rules as a recursive automaton over bytes: each rule a nondeterministic one, whose edges are
// bytes or other rules.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/grammar/rules.h"

namespace weft::grammar {

class Automaton {
 public:
  struct Edge {
    enum class Kind : uint8_t { bytes, empty, call } kind;
    uint8_t first = 0, last = 0;  ///< of bytes
    uint32_t to = 0;
    uint32_t rule = 0;  ///< of a call: `to` is where it comes back to
  };

  /// Errors (input): a rule that begins with itself, or more states than kMostStates.
  static Result<Automaton> make(const Rules& rules);

  /// A state's edges.
  const std::vector<Edge>& edges(uint32_t state) const { return edges_[state]; }
  /// Whether a rule may end in it.
  bool ends(uint32_t state) const { return ends_[state]; }
  /// Whether nothing but the rule's end follows.
  bool only_ends(uint32_t state) const { return ends_[state] && edges_[state].empty(); }
  uint32_t start(size_t rule) const { return starts_[rule]; }
  uint32_t start() const { return starts_[root_]; }
  size_t states() const { return edges_.size(); }

  static constexpr size_t kMostStates = 200'000;

 private:
  friend class Builder;
  std::vector<std::vector<Edge>> edges_;
  std::vector<bool> ends_;
  std::vector<uint32_t> starts_;
  size_t root_ = 0;
};

}  // namespace weft::grammar
