#include "serve/grammar/vocabulary.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "model/tokenizer/byte_alphabet.h"

namespace weft::grammar {

Vocabulary::Vocabulary(const std::vector<std::string>& tokens, std::vector<int32_t> ends)
    : tokens_(tokens), ends_(std::move(ends)) {
  std::erase_if(ends_,
                [&](int32_t id) { return id < 0 || static_cast<size_t>(id) >= tokens_.size(); });
  for (const int32_t id : ends_) {
    tokens_[static_cast<size_t>(id)].clear();
  }
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty() && tokens_[id].size() <= kLongestToken) {
      ids_.push_back(static_cast<int32_t>(id));
    }
  }
  std::sort(ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) { return bytes(a) < bytes(b); });
  std::vector<uint32_t> path;  // the nodes from the root to the token before
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].behind = static_cast<uint32_t>(nodes_.size());
    }
  };
  std::string before;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string& token = bytes(ids_[i]);
    const auto differ = std::mismatch(before.begin(), before.end(), token.begin(), token.end());
    leave(static_cast<size_t>(differ.second - token.begin()));
    for (size_t at = path.size(); at < token.size(); ++at) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(i), static_cast<uint8_t>(token[at]),
                        static_cast<uint8_t>(at + 1)});
    }
    before = token;
  }
  leave(0);
  nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0, 0});
}

Vocabulary Vocabulary::of(const Tokenizer& tokenizer, std::vector<int32_t> ends) {
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < tokens.size(); ++id) {
    tokens[id] = token_bytes(tokenizer, static_cast<int32_t>(id));
  }
  return {tokens, std::move(ends)};
}

std::string token_bytes(const Tokenizer& tokenizer, int32_t id) {
  std::string token(tokenizer.token(id));
  if (tokenizer.is_special(id) || token.empty()) {
    return {};
  }
  if (tokenizer.find("\u0120").has_value()) {  // GPT-2's alphabet writes a space so
    return tokenizer::bytes_of_characters(token).value_or(token);
  }
  if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>') {
    uint8_t byte = 0;
    if (std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5) {
      return {static_cast<char>(byte)};
    }
  }
  constexpr std::string_view kSpace = "\u2581";
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const bool space = std::string_view(token).substr(at).starts_with(kSpace);
    bytes += space ? ' ' : token[at];
    at += space ? kSpace.size() : 1;
  }
  return bytes;
}

}  // namespace weft::grammar
