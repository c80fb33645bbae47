#include "serve/grammar/matcher.h"

#include <algorithm>

namespace weft::grammar {
namespace {

using EdgeKind = Automaton::Edge::Kind;

constexpr size_t kMostBytes = 48 << 20;    // of states and masks; then they are found anew
constexpr size_t kMostFrames = 1'000'000;  // a deeper answer is not allowed to go deeper
constexpr size_t kMostPlaces = 2'000;      // of a state: readings beyond are given up

void allow(std::vector<uint32_t>& mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (static_cast<uint32_t>(token) % 32);
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)), frames_(1) {}

Result<std::shared_ptr<Grammar>> Grammar::make(const Rules& rules,
                                               std::shared_ptr<const Vocabulary> vocabulary) {
  WEFT_ASSIGN(Automaton automaton, Automaton::make(rules));
  return std::shared_ptr<Grammar>(new Grammar(std::move(automaton), std::move(vocabulary)));
}

uint32_t Grammar::push(uint32_t back, uint32_t below) {
  if (automaton_.only_ends(back)) {
    return below;  // to come back would be to go on back
  }
  const auto [there, fresh] =
      frame_ids_.try_emplace(uint64_t{back} << 32 | below, static_cast<uint32_t>(frames_.size()));
  if (fresh) {
    frames_.push_back({back, below});
  }
  return there->second;
}

/// Follows what takes no byte from `from`; `out` gets the places where bytes come.
void Grammar::close(const Place& from, Places& out, bool& ends) {
  Places todo = {from};
  std::map<Place, bool> seen = {{from, true}};
  const auto go = [&](Place place) {
    if (seen.try_emplace(place, true).second) {
      todo.push_back(place);
    }
  };
  while (!todo.empty() && seen.size() < kMostPlaces) {
    const auto [at, stack] = todo.back();
    todo.pop_back();
    bool takes_bytes = false;
    for (const Automaton::Edge& edge : automaton_.edges(at)) {
      if (edge.kind == EdgeKind::bytes) {
        takes_bytes = true;
      } else if (edge.kind == EdgeKind::empty) {
        go({edge.to, stack});
      } else if (frames_.size() < kMostFrames) {
        go({automaton_.start(edge.rule), push(edge.to, stack)});
      }
    }
    if (takes_bytes) {
      out.emplace_back(at, stack);
    }
    if (automaton_.ends(at) && stack != 0) {
      go({frames_[stack].back, frames_[stack].below});
    } else if (automaton_.ends(at)) {
      ends = true;
    }
  }
}

uint32_t Grammar::intern(Places places, bool ends) {
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  places.resize(std::min(places.size(), kMostPlaces));
  const auto [there, fresh] =
      state_ids_.try_emplace({places, ends}, static_cast<uint32_t>(states_.size()));
  if (fresh) {
    bytes_ += 200 + 2 * sizeof(Place) * places.size();
    State state;
    state.places = std::move(places);
    state.ends = ends;
    states_.push_back(std::move(state));
  }
  return there->second;
}

uint32_t Grammar::state_of(const Places& open) {
  Places places;
  bool ends = false;
  for (const Place& place : open) {
    close(place, places, ends);
  }
  return intern(std::move(places), ends);
}

uint32_t Grammar::step(uint32_t state, uint8_t byte) {
  if (states_[state].next == nullptr) {
    states_[state].next = std::make_unique<std::array<uint32_t, 256>>();
    states_[state].next->fill(kUnknown);
    bytes_ += sizeof(std::array<uint32_t, 256>);
  }
  if (const uint32_t known = (*states_[state].next)[byte]; known != kUnknown) {
    return known;
  }
  Places open;
  for (const auto& [at, stack] : states_[state].places) {
    for (const Automaton::Edge& edge : automaton_.edges(at)) {
      if (edge.kind == EdgeKind::bytes && edge.first <= byte && byte <= edge.last) {
        open.emplace_back(edge.to, stack);
      }
    }
  }
  std::sort(open.begin(), open.end());
  open.erase(std::unique(open.begin(), open.end()), open.end());
  const uint32_t next = state_of(open);
  (*states_[state].next)[byte] = next;
  return next;
}

const Grammar::Inner& Grammar::inner(uint32_t state) {
  if (states_[state].inner == nullptr) {
    auto found = std::make_unique<Inner>();
    found->mask.resize(vocabulary_->mask_words());
    const auto nodes = vocabulary_->nodes();
    std::array<uint32_t, Vocabulary::kLongestToken + 1> path{state};
    for (uint32_t i = 0; i + 1 < nodes.size();) {
      const Vocabulary::Node& node = nodes[i];
      const uint32_t next = step(path[node.depth - 1], node.byte);
      if (states_[next].dead()) {
        i = node.behind;
        continue;
      }
      path[node.depth] = next;
      for (uint32_t id = node.first; id < nodes[i + 1].first; ++id) {
        allow(found->mask, vocabulary_->ids()[id]);
      }
      if (states_[next].ends && node.behind > i + 1) {
        found->left.push_back(i);
      }
      ++i;
    }
    bytes_ += sizeof(uint32_t) * (found->mask.size() + found->left.size());
    states_[state].inner = std::move(found);
  }
  return *states_[state].inner;
}

/// Adds to `mask` the tokens below `node` whose further bytes are right from the state `from`.
void Grammar::walk(uint32_t from, uint32_t node, std::vector<uint32_t>& mask) {
  const auto nodes = vocabulary_->nodes();
  std::array<uint32_t, Vocabulary::kLongestToken + 1> path;
  path[nodes[node].depth] = from;
  for (uint32_t i = node + 1; i < nodes[node].behind;) {
    const uint32_t next = step(path[nodes[i].depth - 1], nodes[i].byte);
    if (states_[next].dead()) {
      i = nodes[i].behind;
      continue;
    }
    path[nodes[i].depth] = next;
    for (uint32_t id = nodes[i].first; id < nodes[i + 1].first; ++id) {
      allow(mask, vocabulary_->ids()[id]);
    }
    ++i;
  }
}

const std::vector<uint32_t>& Grammar::mask(uint32_t state) {
  if (states_[state].mask == nullptr) {
    auto out = std::make_unique<std::vector<uint32_t>>(vocabulary_->mask_words());
    std::map<uint32_t, Places> inside;  // places by the stack below them
    for (const auto& [at, stack] : states_[state].places) {
      inside[stack].emplace_back(at, 0);
    }
    for (auto& [stack, places] : inside) {
      const Inner& found = inner(intern(std::move(places), false));
      std::transform(found.mask.begin(), found.mask.end(), out->begin(), out->begin(),
                     [](uint32_t a, uint32_t b) { return a | b; });
      if (stack != 0) {
        const std::vector<uint32_t>& left = found.left;
        const uint32_t below = state_of({{frames_[stack].back, frames_[stack].below}});
        for (const uint32_t node : left) {
          walk(below, node, *out);
        }
      }
    }
    bytes_ += sizeof(uint32_t) * out->size();
    states_[state].mask = std::move(out);
  }
  return *states_[state].mask;
}

void Grammar::forget_if_full() {
  if (bytes_ > kMostBytes) {
    states_.clear();
    state_ids_.clear();
    bytes_ = 0;
    ++generation_;
  }
}

Matcher::Matcher(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->mutex_);
  state_ = grammar_->state_of({{grammar_->automaton_.start(), 0}});
  generation_ = grammar_->generation_;
  places_ = grammar_->states_[state_].places;
  ends_ = grammar_->states_[state_].ends;
  mask_.resize(grammar_->vocabulary_->mask_words());
}

uint32_t Matcher::state() {
  grammar_->forget_if_full();
  if (generation_ != grammar_->generation_) {
    generation_ = grammar_->generation_;
    state_ = grammar_->intern(places_, ends_);
  }
  return state_;
}

bool Matcher::accept(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= grammar_->vocabulary_->size()) {
    return false;
  }
  const std::string& bytes = grammar_->vocabulary_->bytes(token);
  return !bytes.empty() && accept(bytes);
}

bool Matcher::accept(std::string_view bytes) {
  const std::lock_guard lock(grammar_->mutex_);
  uint32_t at = state();
  for (const char byte : bytes) {
    at = grammar_->step(at, static_cast<uint8_t>(byte));
  }
  const Grammar::State& reached = grammar_->states_[at];
  if (reached.dead()) {
    return false;
  }
  state_ = at;
  places_ = reached.places;
  ends_ = reached.ends;
  return true;
}

std::span<const uint32_t> Matcher::mask() {
  const std::lock_guard lock(grammar_->mutex_);
  mask_ = grammar_->mask(state());
  const bool stuck =
      std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; });
  if (ends_ || stuck) {
    for (const int32_t id : grammar_->vocabulary_->ends()) {
      allow(mask_, id);
    }
  }
  return mask_;
}

}  // namespace weft::grammar
