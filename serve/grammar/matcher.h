// Which tokens may come next in an answer that follows a grammar.
//
// The grammar's automaton is made deterministic as it is used: a state is a set of places in rules,
// each with the places to come back to. The tokens that are right in the middle of a rule are found
// once for each set of places, whatever is around it; only those that end the rule are looked at
// again with what follows it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serve/grammar/automaton.h"
#include "serve/grammar/vocabulary.h"

namespace weft::grammar {

/// A grammar for a vocabulary, with what was found out of it. Requests with the same grammar share
/// one; safe to use from several threads.
class Grammar {
 public:
  /// Errors (input): as Automaton::make.
  static Result<std::shared_ptr<Grammar>> make(const Rules& rules,
                                               std::shared_ptr<const Vocabulary> vocabulary);

 private:
  friend class Matcher;
  /// A place in a rule, and a stack of those to come back to: 0 is the empty one.
  using Place = std::pair<uint32_t, uint32_t>;
  using Places = std::vector<Place>;  ///< sorted
  struct Frame {
    uint32_t back;   ///< the state to come back to
    uint32_t below;  ///< the stack under it
  };
  /// Tokens right whatever stands below, and nodes of the vocabulary where the stack is left with
  /// more to come.
  struct Inner {
    std::vector<uint32_t> mask;
    std::vector<uint32_t> left;
  };
  struct State {
    Places places;
    bool ends = false;  ///< the empty stack was left
    std::unique_ptr<std::array<uint32_t, 256>> next;
    std::unique_ptr<Inner> inner;
    std::unique_ptr<std::vector<uint32_t>> mask;
    bool dead() const { return places.empty() && !ends; }
  };
  static constexpr uint32_t kUnknown = 0xffffffff;

  Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);

  void close(const Place& from, Places& out, bool& ends);
  uint32_t push(uint32_t back, uint32_t below);
  uint32_t intern(Places places, bool ends);
  uint32_t state_of(const Places& open);  ///< of places whose empty edges are yet to be followed
  uint32_t step(uint32_t state, uint8_t byte);
  const Inner& inner(uint32_t state);
  const std::vector<uint32_t>& mask(uint32_t state);
  void walk(uint32_t from, uint32_t node, std::vector<uint32_t>& mask);
  void forget_if_full();

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, uint32_t> frame_ids_;
  std::vector<State> states_;
  std::map<std::pair<Places, bool>, uint32_t> state_ids_;
  std::vector<uint32_t> seen_;  ///< of close()
  size_t bytes_ = 0;            ///< of states and masks, about
  uint64_t generation_ = 0;     ///< how often the states were forgotten
};

/// One answer on its way through a grammar.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Grammar> grammar);

  /// Takes a token; false, and nothing is taken, when the grammar does not allow it.
  bool accept(int32_t token);
  bool accept(std::string_view bytes);
  /// Whether the answer may end here.
  bool may_end() const { return ends_; }
  /// A bit for each token that may come next, the vocabulary's ends among them where the answer may
  /// end, or where no token of the vocabulary goes on. Good until the next call.
  std::span<const uint32_t> mask();

 private:
  uint32_t state();

  std::shared_ptr<Grammar> grammar_;
  Grammar::Places places_;
  bool ends_ = false;
  uint32_t state_ = 0;
  uint64_t generation_ = 0;
  std::vector<uint32_t> mask_;
};

}  // namespace weft::grammar
