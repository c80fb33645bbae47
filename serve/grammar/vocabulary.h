// The bytes of a model's tokens as a tree, to be walked together with an automaton.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace weft::grammar {

class Vocabulary {
 public:
  /// A node of the tree of all tokens' bytes, in the order of a walk from the root, which is left
  /// out.
  struct Node {
    uint32_t behind;  ///< the node that follows when this one's subtree is skipped
    uint32_t first;   ///< the tokens that end with it are ids()[first] to before ids()[the next
                      ///< node's first]
    uint8_t byte;
    uint8_t depth;  ///< 1: the first byte of tokens
  };
  static constexpr size_t kLongestToken = 255;  ///< longer ones are never chosen

  /// `tokens[id]` are a token's bytes; empty for what is no text. `ends`: tokens that end an
  /// answer.
  Vocabulary(const std::vector<std::string>& tokens, std::vector<int32_t> ends);
  static Vocabulary of(const Tokenizer& tokenizer, std::vector<int32_t> ends);

  /// The nodes and one more, where the walk ends.
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> ids() const { return ids_; }
  std::span<const int32_t> ends() const { return ends_; }
  const std::string& bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  size_t size() const { return tokens_.size(); }
  size_t mask_words() const { return (tokens_.size() + 31) / 32; }

 private:
  std::vector<std::string> tokens_;
  std::vector<int32_t> ends_;
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
};

/// The bytes that a token stands for in the middle of a text; empty for special tokens.
std::string token_bytes(const Tokenizer& tokenizer, int32_t id);

}  // namespace weft::grammar
