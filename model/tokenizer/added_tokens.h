// Added tokens: texts, special ones among them, that are found in the input before anything else
// happens to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/normalizer.h"

namespace weft::tokenizer {

/// An entry of "added_tokens".
struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string
      normalized_content;  ///< what the normaliser makes of it when `normalized`, else the content
  bool single_word = false;  ///< only where no letter, digit or underscore touches it
  bool lstrip = false;       ///< takes the white space on its left with it
  bool rstrip = false;       ///< and on its right
  bool normalized = false;   ///< looked for in the normalised text, not in the text as given
  bool special = false;      ///< left out of decoded text on request
};

/// A stretch of the input: an added token, or text between them (id < 0).
struct Stretch {
  std::string_view text;
  int32_t id = -1;
};

/// Finds the longest of a set of texts at the leftmost place, over and over.
class TokenFinder {
 public:
  TokenFinder() = default;
  /// `tokens` must outlive this. Of several with the same text the first counts.
  TokenFinder(const std::vector<AddedToken>& tokens, bool normalized);

  bool empty() const { return nodes_.size() <= 1; }
  /// Appends the stretches that `text` consists of.
  void split(std::string_view text, std::vector<Stretch>& out) const;

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
    int32_t token = -1;  ///< index of the token that ends here
  };
  const Node* child(const Node& node, char byte) const;

  std::vector<Node> nodes_;  ///< a trie; the children of a node stand side by side, sorted by byte
  std::vector<bool> starts_ = std::vector<bool>(256);  ///< the bytes that tokens begin with
  const std::vector<AddedToken>* tokens_ = nullptr;
};

class AddedTokens {
 public:
  /// The field "added_tokens" of a tokenizer.json.
  static Result<AddedTokens> parse(const Field& field, const Normalizer& normalizer);

  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  const std::vector<AddedToken>& all() const { return *tokens_; }
  const AddedToken* find(int32_t id) const;
  const TokenFinder& in_text() const { return in_text_; }              ///< those not normalised
  const TokenFinder& in_normalized() const { return in_normalized_; }  ///< the others

 private:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  std::unique_ptr<std::vector<AddedToken>> tokens_;  ///< on the heap: the finders point to it
  std::unordered_map<int32_t, size_t> by_id_;
  TokenFinder in_text_, in_normalized_;
};

}  // namespace weft::tokenizer
