#include "model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>

#include "model/json.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

template <class Word>
uint64_t load(const char* p) {
  Word word = 0;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

/// A hash of 1 to 30 bytes, read as overlapping words so that nothing beyond them is touched.
uint64_t hash_of(std::string_view text) {
  const char* p = text.data();
  const size_t n = text.size();
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  if (n < 4) {
    const uint64_t bytes =
        load<uint8_t>(p) | load<uint8_t>(p + n / 2) << 8 | load<uint8_t>(p + n - 1) << 16;
    return mix(bytes | n << 24);
  }
  if (n < 8) {
    return mix((load<uint32_t>(p) | load<uint32_t>(p + n - 4) << 32) + n * kOdd);
  }
  uint64_t hash = load<uint64_t>(p) * kOdd + load<uint64_t>(p + n - 8) + n;
  if (n > 16) {
    hash = mix(hash) + load<uint64_t>(p + 8) * kOdd + load<uint64_t>(p + n - 16);
  }
  return mix(hash);
}

/// Whether n bytes are equal, 1 <= n <= 30, likewise.
bool equal_bytes(const char* a, const char* b, size_t n) {
  if (n < 4) {
    return a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1];
  }
  if (n < 8) {
    return load<uint32_t>(a) == load<uint32_t>(b) &&
           load<uint32_t>(a + n - 4) == load<uint32_t>(b + n - 4);
  }
  if (load<uint64_t>(a) != load<uint64_t>(b) ||
      load<uint64_t>(a + n - 8) != load<uint64_t>(b + n - 8)) {
    return false;
  }
  return n <= 16 || (load<uint64_t>(a + 8) == load<uint64_t>(b + 8) &&
                     load<uint64_t>(a + n - 16) == load<uint64_t>(b + n - 16));
}

char32_t first_character(std::string_view text) { return decode_utf8(text.data()).value; }

char32_t last_character(std::string_view text) {
  return decode_utf8(previous_utf8(text.data(), text.data() + text.size())).value;
}

}  // namespace

bool WordMemo::Entry::holds(std::string_view text) const {
  return bytes == text.size() && equal_bytes(word.data(), text.data(), text.size());
}

void WordMemo::Entry::set(std::string_view text, const int32_t* first, size_t size) {
  bytes = static_cast<uint8_t>(text.size());
  count = static_cast<uint8_t>(size);
  std::copy(text.begin(), text.end(), word.begin());
  std::copy(first, first + size, ids.begin());
}

WordMemo::Entry& WordMemo::entry(std::string_view word) {
  return entries_[hash_of(word) >> (64 - kBits)];
}

Result<Bpe> Bpe::parse(const Field& model,
                       const std::vector<std::pair<std::string, std::string>>& merges,
                       const Vocabulary& vocabulary, bool byte_level) {
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  WEFT_TRY(bpe.read_options(model));
  bpe.read_symbols(vocabulary);
  WEFT_TRY(bpe.read_merges(model, merges, vocabulary));
  return bpe;
}

Status Bpe::check_type(const Field& model) {
  // Files from before the field existed leave "type" out.
  if (const Field type = model["type"]; !type.missing()) {
    WEFT_ASSIGN(const std::string name, type.text());
    if (name != "BPE") {
      return type.error("an unknown model; the one known is BPE");
    }
  }
  return {};
}

Status Bpe::read_options(const Field& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Field field = model[name]; !field.missing()) {
      WEFT_ASSIGN(const std::string text, field.text());
      if (!text.empty()) {
        return field.error("is not supported; it must be null or empty");
      }
    }
  }
  if (const Field dropout = model["dropout"]; !dropout.missing() && !dropout.is_zero()) {
    return dropout.error("is not supported, for it makes tokens random; it must be null or 0");
  }
  if (const Field unknown = model["unk_token"]; !unknown.missing()) {
    WEFT_ASSIGN(unknown_text_, unknown.text());
  }
  WEFT_ASSIGN(byte_fallback_, model["byte_fallback"].flag_or(false));
  WEFT_ASSIGN(fuse_unknown_, model["fuse_unk"].flag_or(false));
  WEFT_ASSIGN(ignore_merges_, model["ignore_merges"].flag_or(false));
  return {};
}

void Bpe::read_symbols(const Vocabulary& vocabulary) {
  std::string text;
  for (size_t byte = 0; byte < 256; ++byte) {
    text.clear();
    append_utf8(text, byte_character(static_cast<uint8_t>(byte)));
    byte_symbols_[byte] = vocabulary.find(text).value_or(kNone);
    fallback_[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte)).value_or(kNone);
  }
  ascii_symbols_.fill(kNone);
  std::vector<std::pair<char32_t, int32_t>> others;
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.token(id);
    if (token.empty()) {
      continue;
    }
    const CodePoint c = decode_utf8(token.data());
    if (c.size != token.size()) {
      continue;
    }
    if (c.value < 128) {
      ascii_symbols_[c.value] = static_cast<int32_t>(id);
    } else {
      others.emplace_back(c.value, static_cast<int32_t>(id));
    }
  }
  other_symbols_ = FlatMap<int32_t>(others.size());
  for (const auto& [c, id] : others) {
    other_symbols_.insert(c, id);
  }
  unknown_ = vocabulary.find(unknown_text_).value_or(kNone);
  if (ignore_merges_) {
    words_ = TextIndex(vocabulary.count());
    word_texts_.reserve(vocabulary.count());  // the index points into them
    for (int64_t id = 0; id < vocabulary.size(); ++id) {
      if (vocabulary.token(id).empty()) {
        continue;
      }
      std::optional<std::string> word(vocabulary.token(id));
      word = byte_level_ ? bytes_of_characters(*word) : word;
      if (word.has_value()) {
        word_texts_.push_back(std::move(*word));
        words_.insert(word_texts_.back(), static_cast<int32_t>(id));
      }
    }
  }
}

Status Bpe::read_merges(const Field& model,
                        const std::vector<std::pair<std::string, std::string>>& merges,
                        const Vocabulary& vocabulary) {
  const auto bad = [&model](size_t i, std::string_view what) {
    return input_error(fmt::format("{}.merges[{}]: {}", model.path(), i, what));
  };
  const auto all_known = [](const std::array<int32_t, 256>& ids) {
    return std::find(ids.begin(), ids.end(), kNone) == ids.end();
  };
  // Then every character gives its own symbols, whatever stands beside it.
  splits_ = byte_level_ ? all_known(byte_symbols_) : byte_fallback_ && all_known(fallback_);
  if (!unknown_text_.empty() && unknown_ == kNone && !splits_) {
    return model["unk_token"].error(
        "is not in the vocabulary, though there are texts that need it");
  }
  merges_ = FlatMap<Merge>(merges.size());
  joins_.assign((size_t{1} << kJoinBits) / 64, 0);
  const auto is_fallback = [this](int32_t id) {
    return id == unknown_ || std::find(fallback_.begin(), fallback_.end(), id) != fallback_.end();
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    if (left.empty() || right.empty()) {
      return bad(i, "one side is empty");
    }
    const std::optional<int32_t> left_id = vocabulary.find(left);
    const std::optional<int32_t> right_id = vocabulary.find(right);
    const std::optional<int32_t> joined = vocabulary.find(left + right);
    if (!left_id || !right_id || !joined) {
      return bad(
          i, fmt::format("token {} is not in the vocabulary", show(!left_id    ? left
                                                                   : !right_id ? right
                                                                               : left + right)));
    }
    const uint64_t key = static_cast<uint64_t>(*left_id) << 32 | static_cast<uint32_t>(*right_id);
    if (!merges_.insert(key, {static_cast<uint32_t>(i), *joined})) {
      return bad(i, fmt::format("{} and {} are there twice", show(left), show(right)));
    }
    if (left.size() == 6 || right.size() == 6 || *left_id == unknown_ || *right_id == unknown_) {
      // A symbol that stands for other characters than its text has: nothing is known about its
      // neighbours.
      splits_ = splits_ && !is_fallback(*left_id) && !is_fallback(*right_id);
    }
    const size_t bit = join_bit(last_character(left), first_character(right));
    joins_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  return {};
}

int32_t Bpe::symbol_of(char32_t c) const {
  if (c < 128) {
    return ascii_symbols_[c];
  }
  const int32_t* id = other_symbols_.find(c);
  return id != nullptr ? *id : kNone;
}

void Bpe::add_symbols(std::string_view text, std::vector<int32_t>& symbols) const {
  bool pending = false;  // an unknown character that has not been written yet
  const auto add = [&](int32_t symbol, std::string_view character) {
    if (symbol != kNone) {
      if (pending) {
        symbols.push_back(unknown_);
        pending = false;
      }
      symbols.push_back(symbol);
      return;
    }
    const auto fallback = [this](char byte) { return fallback_[static_cast<uint8_t>(byte)]; };
    if (byte_fallback_ && std::none_of(character.begin(), character.end(),
                                       [&](char byte) { return fallback(byte) == kNone; })) {
      // The reference does not write a pending unknown first either.
      std::transform(character.begin(), character.end(), std::back_inserter(symbols), fallback);
    } else if (unknown_ != kNone) {
      if (pending && !fuse_unknown_) {
        symbols.push_back(unknown_);
      }
      pending = true;
    }
  };
  if (byte_level_) {
    for (const char byte : text) {
      const int32_t symbol = byte_symbols_[static_cast<uint8_t>(byte)];
      if (symbol != kNone && !pending) {
        symbols.push_back(symbol);
      } else {
        std::string character;
        append_utf8(character, byte_character(static_cast<uint8_t>(byte)));
        add(symbol, character);
      }
    }
  } else {
    for (const char* p = text.data(); p != text.data() + text.size();) {
      const CodePoint c = decode_utf8(p);
      add(symbol_of(c.value), {p, c.size});
      p += c.size;
    }
  }
  if (pending) {
    symbols.push_back(unknown_);
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  const bool remember = word.size() <= WordMemo::kMostBytes && !word.empty();
  WordMemo::Entry* entry = remember ? &scratch.memo.entry(word) : nullptr;
  if (remember && entry->holds(word)) {
    ids.insert(ids.end(), entry->ids.begin(), entry->ids.begin() + entry->count);
    return;
  }
  const size_t begin = ids.size();
  const std::optional<int32_t> id = ignore_merges_ ? words_.find(word) : std::nullopt;
  if (id.has_value()) {
    ids.push_back(*id);
  } else if (remember || !splits_) {
    encode_part(word, scratch, ids);
  } else {
    for (size_t at = 0; at < word.size();) {
      const size_t end = part_end(word, at);
      const std::string_view part = word.substr(at, end - at);
      // With ignore_merges a part of a word is not what the same text is as a word: the memo is for
      // words.
      if (ignore_merges_ || part.size() == word.size()) {
        encode_part(part, scratch, ids);
      } else {
        encode(part, scratch, ids);
      }
      at = end;
    }
  }
  if (remember && ids.size() - begin <= WordMemo::kMostIds) {
    entry->set(word, ids.data() + begin, ids.size() - begin);
  }
}

/// Where the part of `word` ends that no merge can join to what follows.
size_t Bpe::part_end(std::string_view word, size_t begin) const {
  const char* const end = word.data() + word.size();
  const char* p = word.data() + begin;
  if (byte_level_) {
    char32_t left = byte_character(static_cast<uint8_t>(*p));
    for (++p; p != end; ++p) {
      const char32_t right = byte_character(static_cast<uint8_t>(*p));
      if (!may_join(left, right)) {
        break;
      }
      left = right;
    }
  } else {
    CodePoint left = decode_utf8(p);
    for (p += left.size; p != end; p += left.size) {
      const CodePoint right = decode_utf8(p);
      if (!may_join(left.value, right.value)) {
        break;
      }
      left = right;
    }
  }
  return static_cast<size_t>(p - word.data());
}

void Bpe::encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  symbols.clear();
  add_symbols(part, symbols);
  if (symbols.size() <= kSmallWord) {
    merge_small(symbols);
  } else {
    merge_large(scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_small(std::vector<int32_t>& symbols) const {
  std::array<Merge, kSmallWord> pairs;  // of each symbol with the next
  size_t count = symbols.size();
  const auto look_up = [&](size_t i) {
    const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
    pairs[i] = merge != nullptr ? *merge : Merge{kNoRank, kNone};
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    look_up(i);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      best = pairs[i].rank < pairs[best].rank ? i : best;
    }
    if (pairs[best].rank == kNoRank) {
      break;
    }
    symbols[best] = pairs[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
    }
    for (size_t i = best + 1; i + 1 < count; ++i) {
      pairs[i] = pairs[i + 1];
    }
    if (best > 0) {
      look_up(best - 1);
    }
    if (best + 1 < count) {
      look_up(best);
    }
  }
  symbols.resize(count);
}

/// The same with a queue of pairs. A queue entry whose rank is no longer that of the pair at its
/// place is stale.
void Bpe::merge_large(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<int32_t>& previous = scratch.previous;
  std::vector<int32_t>& next = scratch.next;
  std::vector<uint32_t>& ranks = scratch.ranks;
  std::vector<uint64_t>& queue = scratch.queue;
  const auto count = static_cast<int32_t>(symbols.size());
  previous.resize(symbols.size());
  next.resize(symbols.size());
  ranks.assign(symbols.size(), kNoRank);
  queue.clear();
  const auto at = [](int32_t i) { return static_cast<size_t>(i); };
  const auto look_up = [&](int32_t i) {
    const Merge* merge =
        next[at(i)] < count ? find_merge(symbols[at(i)], symbols[at(next[at(i)])]) : nullptr;
    ranks[at(i)] = merge != nullptr ? merge->rank : kNoRank;
    if (merge != nullptr) {
      queue.push_back(static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(i));
    }
    return merge != nullptr;
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[at(i)] = i - 1;
    next[at(i)] = i + 1;
    look_up(i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto i = static_cast<int32_t>(queue.back() & 0xffffffffu);
    const auto rank = static_cast<uint32_t>(queue.back() >> 32);
    queue.pop_back();
    if (ranks[at(i)] != rank) {
      continue;
    }
    const int32_t gone = next[at(i)];
    symbols[at(i)] = find_merge(symbols[at(i)], symbols[at(gone)])->id;
    symbols[at(gone)] = kNone;
    ranks[at(gone)] = kNoRank;
    next[at(i)] = next[at(gone)];
    if (next[at(i)] < count) {
      previous[at(next[at(i)])] = i;
    }
    if (look_up(i)) {
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
    if (previous[at(i)] >= 0 && look_up(previous[at(i)])) {
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kNone), symbols.end());
}

}  // namespace weft::tokenizer
