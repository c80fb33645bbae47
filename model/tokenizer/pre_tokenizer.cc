#include "model/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

bool is_punctuation(char32_t c) {
  if (c < 128) {
    return c > 0x20 && c < 0x7f && (class_table()[c] & (kLetter | kNumber)) == 0;
  }
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_numeric(char32_t c) { return (class_table()[c] & kNumeric) != 0; }

/// The text as single characters that match and stretches of those that do not.
template <class Predicate>
void find_characters(std::string_view text, Predicate matches, std::vector<Match>& out) {
  const char* from = text.data();
  const char* const end = from + text.size();
  for (const char* p = from; p != end;) {
    const CodePoint c = decode_utf8(p);
    if (matches(c.value)) {
      if (from != p) {
        out.push_back({{from, p}, false});
      }
      from = p + c.size;
      out.push_back({{p, from}, true});
    }
    p += c.size;
  }
  if (from != end) {
    out.push_back({{from, end}, false});
  }
}

std::string_view joined(std::string_view first, std::string_view last) {
  return {first.data(), last.data() + last.size()};
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Field& field) {
  PreTokenizer pre_tokenizer;
  if (!field.missing()) {
    std::vector<Step>& steps = pre_tokenizer.steps_;
    WEFT_TRY(parse_into(field, 0, steps));
    if (!steps.empty() && std::holds_alternative<ByteAlphabet>(steps.back())) {
      steps.pop_back();
      pre_tokenizer.byte_level_ = true;
    }
  }
  return pre_tokenizer;
}

Status PreTokenizer::parse_into(const Field& field, int depth, std::vector<Step>& steps) {
  WEFT_ASSIGN(const std::string type, field.type());
  if (steps.size() >= kMostSteps || depth > kMostNesting) {
    return field.error(fmt::format("more than {} pre-tokenisers, or {} inside each other",
                                   kMostSteps, kMostNesting));
  }
  if (type == "Sequence") {
    WEFT_ASSIGN(const std::vector<Field> fields, field["pretokenizers"].elements());
    for (const Field& element : fields) {
      WEFT_TRY(parse_into(element, depth + 1, steps));
    }
  } else if (type == "Split") {
    WEFT_ASSIGN(Split split, parse_split(field));
    steps.emplace_back(std::move(split));
  } else if (type == "Digits") {
    WEFT_ASSIGN(const bool individual, field["individual_digits"].flag());
    steps.emplace_back(Digits{individual});
  } else if (type == "Punctuation") {
    const Field behavior_field = field["behavior"];
    Behavior behavior = Behavior::isolated;
    if (!behavior_field.missing()) {
      WEFT_ASSIGN(behavior, parse_behavior(behavior_field));
    }
    steps.emplace_back(Punctuation{behavior});
  } else if (type == "Metaspace") {
    WEFT_ASSIGN(Metaspace metaspace, parse_metaspace(field));
    steps.emplace_back(std::move(metaspace));
  } else if (type == "ByteLevel") {
    const auto is_alphabet = [](const Step& step) {
      return std::holds_alternative<ByteAlphabet>(step);
    };
    if (std::any_of(steps.begin(), steps.end(), is_alphabet)) {
      return field.error("a second ByteLevel: its words are written in the byte alphabet already");
    }
    WEFT_ASSIGN(const bool prefix, field["add_prefix_space"].flag());
    WEFT_ASSIGN(const bool use_regex, field["use_regex"].flag_or(true));
    if (prefix) {
      steps.emplace_back(AddPrefixSpace{});
    }
    if (use_regex) {
      steps.emplace_back(Split{*find_scanner(kGpt2Pattern), Behavior::isolated, false});
    }
    steps.emplace_back(ByteAlphabet{});
  } else {
    return field["type"].error(
        "an unknown pre-tokeniser; those known are Sequence, Split, ByteLevel, Metaspace, Digits "
        "and Punctuation");
  }
  return {};
}

Result<PreTokenizer::Split> PreTokenizer::parse_split(const Field& field) {
  WEFT_ASSIGN(const Behavior behavior, parse_behavior(field["behavior"]));
  WEFT_ASSIGN(const bool invert, field["invert"].flag());
  const Field pattern_field = field["pattern"];
  if (const Field expression = pattern_field["Regex"]; !expression.missing()) {
    WEFT_ASSIGN(const std::string text, expression.text());
    if (const std::optional<Scanner> scanner = find_scanner(text)) {
      return Split{*scanner, behavior, invert};
    }
  }
  WEFT_ASSIGN(Pattern pattern, Pattern::parse(pattern_field));
  return Split{std::move(pattern), behavior, invert};
}

Result<PreTokenizer::Metaspace> PreTokenizer::parse_metaspace(const Field& field) {
  Metaspace metaspace;
  const Field replacement = field["replacement"];
  WEFT_ASSIGN(metaspace.replacement, replacement.text());
  if (!is_one_character(metaspace.replacement)) {
    return replacement.error("must be one character");
  }
  WEFT_ASSIGN(metaspace.split, field["split"].flag_or(true));
  metaspace.prepend = Metaspace::Prepend::always;
  const Field scheme = field["prepend_scheme"];
  if (!scheme.missing()) {
    WEFT_ASSIGN(const std::string name, scheme.text());
    if (name == "first") {
      metaspace.prepend = Metaspace::Prepend::first;
    } else if (name == "never") {
      metaspace.prepend = Metaspace::Prepend::never;
    } else if (name != "always") {
      return scheme.error("must be \"first\", \"never\" or \"always\"");
    }
  }
  WEFT_ASSIGN(const bool prefix,
              field["add_prefix_space"].flag_or(true));  // the older way to say it
  if (!prefix) {
    if (!scheme.missing() && metaspace.prepend != Metaspace::Prepend::never) {
      return scheme.error("contradicts add_prefix_space, which is false");
    }
    metaspace.prepend = Metaspace::Prepend::never;
  }
  return metaspace;
}

Result<PreTokenizer::Behavior> PreTokenizer::parse_behavior(const Field& field) {
  WEFT_ASSIGN(const std::string name, field.text());
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous},
  };
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) {
      return behavior;
    }
  }
  return field.error("must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

Status PreTokenizer::split(std::string_view text, bool at_start, Words& words) const {
  words.words.clear();
  words.rewritten.clear();
  if (text.empty()) {
    return {};
  }
  words.words.push_back(text);
  for (const Step& step : steps_) {
    words.before.swap(words.words);
    words.words.clear();
    for (const std::string_view word : words.before) {
      WEFT_TRY(apply(step, word, at_start && word.data() == words.before.front().data(), words));
    }
    if (std::holds_alternative<Split>(step) || std::holds_alternative<Punctuation>(step)) {
      // These may have removed the beginning of the input.
      at_start = at_start && !words.words.empty() &&
                 words.words.front().data() == words.before.front().data();
    }
  }
  return {};
}

Status PreTokenizer::apply(const Step& step, std::string_view text, bool at_start, Words& words) {
  words.matches.clear();
  if (const auto* split = std::get_if<Split>(&step)) {
    return apply_split(*split, text, words);
  }
  if (const auto* digits = std::get_if<Digits>(&step)) {
    find_characters(text, is_numeric, words.matches);
    put(digits->individual ? Behavior::isolated : Behavior::contiguous, words.matches, words.words);
  } else if (const auto* punctuation = std::get_if<Punctuation>(&step)) {
    find_characters(text, is_punctuation, words.matches);
    put(punctuation->behavior, words.matches, words.words);
  } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    apply_metaspace(*metaspace, text, at_start, words);
  } else if (std::holds_alternative<AddPrefixSpace>(step)) {
    words.words.push_back(text.starts_with(' ') ? text
                                                : words.rewritten.emplace_back(" ").append(text));
  } else {
    std::string& characters = words.rewritten.emplace_back();
    append_byte_characters(text, characters);
    words.words.push_back(characters);
  }
  return {};
}

Status PreTokenizer::apply_split(const Split& split, std::string_view text, Words& words) {
  if (const auto* scanner = std::get_if<Scanner>(&split.pattern)) {
    // Its matches leave nothing between them, so most behaviours come to the same.
    if (split.behavior == Behavior::contiguous) {
      words.words.push_back(text);
    } else if (split.behavior != Behavior::removed || split.invert) {
      (*scanner)(text, words.words);
    }
    return {};
  }
  WEFT_TRY(std::get<Pattern>(split.pattern).find_all(text, words.matches));
  if (split.invert) {
    for (Match& match : words.matches) {
      match.matched = !match.matched;
    }
  }
  put(split.behavior, words.matches, words.words);
  return {};
}

/// The reference's SplitDelimiterBehavior, quirks included: of several matches in a row only the
/// one that touches the neighbour merges with it.
void PreTokenizer::put(Behavior behavior, const std::vector<Match>& matches,
                       std::vector<std::string_view>& words) {
  const size_t first = words.size();
  bool previous = false;  // whether the last piece matched
  for (size_t i = 0; i < matches.size(); ++i) {
    const auto& [piece, matched] = matches[i];
    bool merge = false;
    switch (behavior) {
      case Behavior::removed:
        if (matched) {
          continue;
        }
        break;
      case Behavior::isolated:
        break;
      case Behavior::contiguous:
        merge = matched == previous;
        break;
      case Behavior::merged_with_previous:
        merge = matched && !previous;
        break;
      case Behavior::merged_with_next:  // the last of a row of matches takes what follows
        merge = i > 0 && matches[i - 1].matched && !matched;
        break;
    }
    if (merge && words.size() > first) {
      words.back() = joined(words.back(), piece);
    } else {
      words.push_back(piece);
    }
    previous = matched;
  }
  // Patterns can match nothing at all.
  words.erase(std::remove_if(words.begin() + static_cast<ptrdiff_t>(first), words.end(),
                             [](std::string_view word) { return word.empty(); }),
              words.end());
}

void PreTokenizer::apply_metaspace(const Metaspace& step, std::string_view text, bool at_start,
                                   Words& words) {
  const bool prepend = step.prepend == Metaspace::Prepend::always ||
                       (step.prepend == Metaspace::Prepend::first && at_start);
  std::string& out = words.rewritten.emplace_back();
  out.reserve(text.size() + text.size() / 2 + step.replacement.size());
  if (prepend && !text.starts_with(' ') && !text.starts_with(step.replacement)) {
    out.append(step.replacement);
  }
  for (const char c : text) {
    if (c == ' ') {
      out.append(step.replacement);
    } else {
      out.push_back(c);
    }
  }
  if (!step.split) {
    words.words.push_back(out);
    return;
  }
  const std::string_view all = out;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find(step.replacement, begin + 1), all.size());
    words.words.push_back(all.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace weft::tokenizer
