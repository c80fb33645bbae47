#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

bool is(char32_t c, uint8_t mask) { return (class_table()[c] & mask) != 0; }

bool ends_with_word(std::string_view text) {
  return !text.empty() &&
         is(decode_utf8(previous_utf8(text.data(), text.data() + text.size())).value, kWord);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is(decode_utf8(text.data()).value, kWord);
}

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = decode_utf8(text.data() + at);
    if (!is(c.value, kSpace)) {
      break;
    }
    at += c.size;
  }
  return at;
}

/// Where the white space at the end starts.
size_t trailing_space(std::string_view text) {
  const char* end = text.data() + text.size();
  while (end != text.data()) {
    const char* last = previous_utf8(text.data(), end);
    if (!is(decode_utf8(last).value, kSpace)) {
      break;
    }
    end = last;
  }
  return static_cast<size_t>(end - text.data());
}

}  // namespace

TokenFinder::TokenFinder(const std::vector<AddedToken>& tokens, bool normalized)
    : nodes_(1), tokens_(&tokens) {
  std::vector<std::pair<std::string_view, int32_t>> texts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& text = tokens[i].normalized_content;
    if (tokens[i].normalized == normalized && !text.empty()) {
      texts.emplace_back(text, static_cast<int32_t>(i));
      starts_[static_cast<uint8_t>(text[0])] = true;
    }
  }
  std::sort(texts.begin(), texts.end());
  // Breadth first: each node takes a range of the sorted texts that agree in their first `depth`
  // bytes.
  struct Range {
    size_t node, begin, end, depth;
  };
  std::vector<Range> ranges = {{0, 0, texts.size(), 0}};
  for (size_t next = 0; next < ranges.size(); ++next) {
    auto [node, begin, end, depth] = ranges[next];
    while (begin < end && texts[begin].first.size() == depth) {
      nodes_[node].token = nodes_[node].token < 0 ? texts[begin].second : nodes_[node].token;
      ++begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = texts[begin].first[depth];
      size_t last = begin;
      while (last < end && texts[last].first[depth] == byte) {
        ++last;
      }
      ranges.push_back({nodes_.size(), begin, last, depth + 1});
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      ++nodes_[node].children;
      begin = last;
    }
  }
}

const TokenFinder::Node* TokenFinder::child(const Node& node, char byte) const {
  const auto first = nodes_.begin() + node.first_child;
  const auto last = first + node.children;
  const auto found = std::lower_bound(first, last, static_cast<uint8_t>(byte),
                                      [](const Node& n, uint8_t b) { return n.byte < b; });
  return found != last && found->byte == static_cast<uint8_t>(byte) ? &*found : nullptr;
}

void TokenFinder::split(std::string_view text, std::vector<Stretch>& out) const {
  size_t given = 0;  // the end of what has been appended
  for (size_t at = empty() ? text.size() : 0; at < text.size();) {
    if (!starts_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    int32_t found = -1;
    size_t end = at;
    const Node* node = nodes_.data();
    for (size_t i = at; i < text.size(); ++i) {
      node = child(*node, text[i]);
      if (node == nullptr) {
        break;
      }
      if (node->token >= 0) {
        found = node->token;
        end = i + 1;
      }
    }
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = (*tokens_)[static_cast<size_t>(found)];
    size_t begin = at;
    at = end;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) {
      begin = std::max(trailing_space(text.substr(0, begin)), given);
    }
    if (token.rstrip) {
      end += leading_space(text.substr(end));
    }
    if (given < begin) {
      out.push_back({text.substr(given, begin - given), -1});
    }
    out.push_back({text.substr(begin, end - std::min(begin, end)), token.id});
    given = end;
  }
  if (given < text.size()) {
    out.push_back({text.substr(given), -1});
  }
}

Result<AddedTokens> AddedTokens::parse(const Field& field, const Normalizer& normalizer) {
  std::vector<AddedToken> tokens;
  if (field.missing()) {
    return AddedTokens(std::move(tokens));
  }
  WEFT_ASSIGN(const std::vector<Field> fields, field.elements());
  for (const Field& element : fields) {
    AddedToken token;
    WEFT_ASSIGN(token.content, element["content"].text());
    if (token.content.empty()) {
      continue;  // matches nothing
    }
    WEFT_ASSIGN(const int64_t id, element["id"].number(std::numeric_limits<int32_t>::max()));
    token.id = static_cast<int32_t>(id);
    WEFT_ASSIGN(token.single_word, element["single_word"].flag_or(false));
    WEFT_ASSIGN(token.lstrip, element["lstrip"].flag_or(false));
    WEFT_ASSIGN(token.rstrip, element["rstrip"].flag_or(false));
    WEFT_ASSIGN(token.special, element["special"].flag_or(false));
    WEFT_ASSIGN(token.normalized, element["normalized"].flag_or(!token.special));
    token.normalized_content = token.content;
    if (token.normalized) {
      WEFT_TRY(normalizer.apply(token.normalized_content));
    }
    tokens.push_back(std::move(token));
  }
  return AddedTokens(std::move(tokens));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::make_unique<std::vector<AddedToken>>(std::move(tokens))),
      in_text_(*tokens_, false),
      in_normalized_(*tokens_, true) {
  for (size_t i = 0; i < tokens_->size(); ++i) {
    by_id_.emplace((*tokens_)[i].id, i);
  }
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &(*tokens_)[found->second];
}

}  // namespace weft::tokenizer
