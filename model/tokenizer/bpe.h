// Byte-pair encoding: a word becomes symbols (its bytes or characters), then the pair of neighbours
// that comes first in the list of merges is joined, the leftmost first, until no pair is in the
// list.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/flat_map.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/vocabulary.h"

namespace weft::tokenizer {

/// The ids of words that were met lately; a table of cache lines in which a newer word replaces an
/// older one.
class WordMemo {
 public:
  static constexpr size_t kMostBytes = 30;
  static constexpr size_t kMostIds = 8;

  struct alignas(64) Entry {
    uint8_t bytes = 0;  ///< 0: nothing here
    uint8_t count = 0;
    std::array<char, kMostBytes> word{};
    std::array<int32_t, kMostIds> ids{};

    bool holds(std::string_view text) const;
    void set(std::string_view text, const int32_t* first, size_t size);
  };

  /// Where `word` (1 to kMostBytes bytes) stands if it is there.
  Entry& entry(std::string_view word);

 private:
  static constexpr int kBits = 14;
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

class Bpe {
 public:
  /// What encode() needs besides the model: a memo and buffers, for one thread at a time.
  struct Scratch {
    WordMemo memo;
    std::vector<int32_t> symbols, previous, next;
    std::vector<uint32_t> ranks;
    std::vector<uint64_t> queue;
  };

  /// Fails when the field "model" of a tokenizer.json is not a byte-pair encoding.
  static Status check_type(const Field& model);

  /// `model` is the field "model" of a tokenizer.json. With `byte_level` the words come as plain
  /// bytes, each of which is the symbol that the byte alphabet writes it as; else each character is
  /// a symbol.
  static Result<Bpe> parse(const Field& model,
                           const std::vector<std::pair<std::string, std::string>>& merges,
                           const Vocabulary& vocabulary, bool byte_level);

  /// Appends the ids of `word` (valid UTF-8, less than 2^31 bytes). Takes time n log n for n bytes
  /// at worst.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  static constexpr int32_t kNone = -1;
  static constexpr size_t kSmallWord =
      40;  // symbols up to which looking at every pair beats a queue

  Bpe() = default;
  Status read_options(const Field& model);
  void read_symbols(const Vocabulary& vocabulary);
  Status read_merges(const Field& model,
                     const std::vector<std::pair<std::string, std::string>>& merges,
                     const Vocabulary& vocabulary);

  const Merge* find_merge(int32_t left, int32_t right) const {
    return merges_.find(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
                        static_cast<uint32_t>(right));
  }
  static size_t join_bit(char32_t left, char32_t right) {
    return ((left * 0x9e3779b1u ^ right) * 0x85ebca6bu) >> (32 - kJoinBits);
  }
  bool may_join(char32_t left, char32_t right) const {
    const size_t bit = join_bit(left, right);
    return (joins_[bit / 64] >> (bit % 64) & 1) != 0;
  }

  int32_t symbol_of(char32_t c) const;
  void add_symbols(std::string_view text, std::vector<int32_t>& symbols) const;
  size_t part_end(std::string_view word, size_t begin) const;
  void encode_part(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_small(std::vector<int32_t>& symbols) const;
  void merge_large(Scratch& scratch) const;

  static constexpr int kJoinBits = 18;

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  bool splits_ = false;  ///< whether words may be cut between characters that no merge joins
  std::string unknown_text_;
  int32_t unknown_ = kNone;
  std::array<int32_t, 256> byte_symbols_{};   ///< byte level: the id of each byte
  std::array<int32_t, 128> ascii_symbols_{};  ///< else: the ids of characters
  FlatMap<int32_t> other_symbols_;
  std::array<int32_t, 256> fallback_{};  ///< the ids of <0x00> to <0xFF>
  FlatMap<Merge> merges_;
  std::vector<uint64_t> joins_;  ///< a filter over the pairs of characters that some merge joins
  std::vector<std::string> word_texts_;
  TextIndex words_;  ///< with ignore_merges: the words that are tokens as they are
};

}  // namespace weft::tokenizer
