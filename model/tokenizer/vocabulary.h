// Tokens by id and ids by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::tokenizer {

/// Ids from texts: an index over texts that somebody else keeps.
class TextIndex {
 public:
  /// Room for up to `most` texts.
  explicit TextIndex(size_t most = 0);
  /// False when the text is there already.
  bool insert(std::string_view text, int32_t id);
  std::optional<int32_t> find(std::string_view text) const;

 private:
  struct Slot {
    std::string_view text;
    int32_t id = -1;
  };
  size_t find_slot(std::string_view text) const;
  std::vector<Slot> slots_;
};

class Vocabulary {
 public:
  /// The ids that a vocabulary of `count` tokens may use are below this: gaps are allowed, but an
  /// absurd id must not cost absurd memory.
  static constexpr int64_t id_limit(size_t count) {
    return 2 * static_cast<int64_t>(count) + 1'000'000;
  }

  /// Room for `count` tokens with `bytes` bytes in all. More cannot be added: their texts must not
  /// move.
  Vocabulary(size_t count, size_t bytes);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  /// Fails, with a message that does not name the place, when the id is out of range or the token
  /// or the id is there already.
  Status add(std::string_view token, int64_t id);

  std::optional<int32_t> find(std::string_view token) const { return index_.find(token); }
  /// Empty for an id that no token has.
  std::string_view token(int64_t id) const;
  bool contains(int64_t id) const;
  size_t count() const { return count_; }
  /// The highest id + 1.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<char> bytes_;               ///< all texts, one after the other
  std::vector<std::string_view> tokens_;  ///< by id; without data for an id that no token has
  TextIndex index_;
  size_t most_;
  size_t count_ = 0;
};

}  // namespace weft::tokenizer
