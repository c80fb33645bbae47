// Post-processors: the special tokens that go around an encoded text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/vocabulary.h"

namespace weft::tokenizer {

struct PostProcessor {
  /// The field "post_processor" of a tokenizer.json; null adds nothing. Ids must be tokens of
  /// `vocabulary`.
  static Result<PostProcessor> parse(const Field& field, const Vocabulary& vocabulary);

  std::vector<int32_t> before, after;  ///< ids put in front of the text's and behind them
};

}  // namespace weft::tokenizer
