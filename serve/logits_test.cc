#include "serve/logits.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft::serve {
namespace {

constexpr int32_t kOpen = 256, kClose = 257, kEnd = 258, kVocabulary = 259;

/// The tokens that may be drawn behind `generated`, of all.
std::vector<int32_t> allowed(const Adjust& adjust, std::vector<int32_t> generated) {
  std::vector<float> logits(kVocabulary, 1);
  adjust(generated, logits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < kVocabulary; ++id) {
    if (!std::isinf(logits[static_cast<size_t>(id)])) {
      ids.push_back(id);
    }
  }
  return ids;
}

/// An answer "ab", by a vocabulary of bytes and three special tokens.
Adjust ab(std::optional<Opening> opening) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.resize(kVocabulary);
  const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>{kEnd});
  const auto rules = grammar::read_regex("ab");
  return adjust_of({}, {kEnd}, {}, grammar::Grammar::make(rules.value(), vocabulary).value(),
                   std::move(opening));
}

using Ids = std::vector<int32_t>;

TEST(Adjust, AGrammarHoldsFromTheBeginning) {
  const Adjust adjust = ab({});
  EXPECT_EQ(allowed(adjust, {}), Ids{'a'});
  EXPECT_EQ(allowed(adjust, {'a'}), Ids{'b'});
  EXPECT_EQ(allowed(adjust, {'a', 'b'}), Ids{kEnd});
}

TEST(Adjust, AGrammarWaitsForAThoughtsEnd) {
  const Adjust adjust = ab(Opening{{}, {kClose, 'x'}});
  EXPECT_EQ(allowed(adjust, {}).size(), kVocabulary - 1u) << "all but the end";
  EXPECT_EQ(allowed(adjust, {'q', kClose}).size(), kVocabulary - 1u);
  EXPECT_EQ(allowed(adjust, {'q', kClose, 'x'}), Ids{'a'});
  EXPECT_EQ(allowed(adjust, {'q', kClose, 'x', 'a'}), Ids{'b'});
}

TEST(Adjust, AThoughtMayComeFirst) {
  const Adjust thinks = ab(Opening{kOpen, {kClose}});
  EXPECT_EQ(allowed(thinks, {}), (Ids{'a', kOpen}));
  EXPECT_EQ(allowed(thinks, {kOpen}).size(), kVocabulary - 1u);
  EXPECT_EQ(allowed(thinks, {kOpen, kClose}), Ids{'a'});
  const Adjust answers = ab(Opening{kOpen, {kClose}});
  EXPECT_EQ(allowed(answers, {}), (Ids{'a', kOpen}));
  EXPECT_EQ(allowed(answers, {'a'}), Ids{'b'});
  EXPECT_EQ(allowed(answers, {'a', 'b'}), Ids{kEnd});
}

}  // namespace
}  // namespace weft::serve
