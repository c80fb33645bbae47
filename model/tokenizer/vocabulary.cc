#include "model/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <bit>
#include <functional>

#include "base/check.h"
#include "model/json.h"

namespace weft::tokenizer {

TextIndex::TextIndex(size_t most) : slots_(std::bit_ceil(most * 2 + 1)) {}

size_t TextIndex::find_slot(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t at = std::hash<std::string_view>()(text) & mask;
  while (slots_[at].id >= 0 && slots_[at].text != text) {
    at = (at + 1) & mask;
  }
  return at;
}

bool TextIndex::insert(std::string_view text, int32_t id) {
  Slot& slot = slots_[find_slot(text)];
  if (slot.id >= 0) {
    return false;
  }
  slot = {text, id};
  return true;
}

std::optional<int32_t> TextIndex::find(std::string_view text) const {
  const Slot& slot = slots_[find_slot(text)];
  return slot.id >= 0 ? std::optional<int32_t>(slot.id) : std::nullopt;
}

Vocabulary::Vocabulary(size_t count, size_t bytes) : index_(count), most_(count) {
  bytes_.reserve(bytes + 1);  // so that even an empty token has a place
  tokens_.reserve(count);
}

Status Vocabulary::add(std::string_view token, int64_t id) {
  WEFT_CHECK(count_ < most_ && bytes_.size() + token.size() <= bytes_.capacity());
  if (id < 0 || id >= id_limit(most_)) {
    return input_error(fmt::format("the id of token {} is not a whole number from 0 to {}",
                                   show(token), id_limit(most_) - 1));
  }
  if (contains(id)) {
    return input_error(fmt::format("tokens {} and {} have the same id {}", show(this->token(id)),
                                   show(token), id));
  }
  const size_t begin = bytes_.size();
  bytes_.insert(bytes_.end(), token.begin(), token.end());
  const std::string_view kept(bytes_.data() + begin, token.size());
  if (!index_.insert(kept, static_cast<int32_t>(id))) {
    return input_error(fmt::format("token {} is there twice", show(token)));
  }
  if (id >= size()) {
    tokens_.resize(static_cast<size_t>(id) + 1);
  }
  tokens_[static_cast<size_t>(id)] = kept;
  ++count_;
  return {};
}

bool Vocabulary::contains(int64_t id) const {
  return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].data() != nullptr;
}

std::string_view Vocabulary::token(int64_t id) const {
  return contains(id) ? tokens_[static_cast<size_t>(id)] : std::string_view();
}

}  // namespace weft::tokenizer
