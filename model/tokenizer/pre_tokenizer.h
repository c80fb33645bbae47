// Pre-tokenisers: they cut the normalised text into the words that the model encodes one by one.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/scanner.h"

namespace weft::tokenizer {

/// A list of pre-tokenisers, applied in order.
class PreTokenizer {
 public:
  /// The words of a text, and the texts that had to be rewritten to hold them.
  struct Words {
    std::vector<std::string_view> words;

   private:
    friend class PreTokenizer;
    std::vector<std::string_view> before;
    std::vector<Match> matches;
    std::deque<std::string> rewritten;
  };

  /// The field "pre_tokenizer" of a tokenizer.json; null is the empty list.
  static Result<PreTokenizer> parse(const Field& field);

  /// Whether the words are plain bytes that the model is to see in the byte alphabet (GPT-2's byte
  /// level).
  bool byte_level() const { return byte_level_; }

  /// Puts the words of `text` (valid UTF-8) into `words`, which stays valid as long as `text` does
  /// and until the next call. `at_start`: the text is the beginning of the whole input. No word is
  /// empty.
  Status split(std::string_view text, bool at_start, Words& words) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    std::variant<Pattern, Scanner> pattern;
    Behavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct Punctuation {
    Behavior behavior;
  };
  struct Metaspace {
    enum class Prepend { first, never, always } prepend;
    std::string replacement;
    bool split;
  };
  struct AddPrefixSpace {};
  struct ByteAlphabet {};  ///< writes the bytes as characters: only where more steps follow
  using Step = std::variant<Split, Digits, Punctuation, Metaspace, AddPrefixSpace, ByteAlphabet>;

  static Status parse_into(const Field& field, int depth, std::vector<Step>& steps);
  static Result<Split> parse_split(const Field& field);
  static Result<Metaspace> parse_metaspace(const Field& field);
  static Result<Behavior> parse_behavior(const Field& field);

  static Status apply(const Step& step, std::string_view text, bool at_start, Words& words);
  static Status apply_split(const Split& split, std::string_view text, Words& words);
  static void apply_metaspace(const Metaspace& step, std::string_view text, bool at_start,
                              Words& words);
  static void put(Behavior behavior, const std::vector<Match>& matches,
                  std::vector<std::string_view>& words);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace weft::tokenizer
