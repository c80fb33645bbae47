#include "model/tokenizer/scanner.h"

#include <cstdint>

#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

constexpr uint8_t kNotOther = kLetter | kNumber | kSpace;

bool is_newline(char c) { return c == '\r' || c == '\n'; }

/// The pieces that the patterns share. Every function takes a position and returns the end of its
/// match there, or nullptr when there is none; positions are starts of characters.
class Text {
 public:
  explicit Text(std::string_view text) : end_(text.data() + text.size()) {}

  struct Char {
    uint8_t classes;
    uint8_t size;
  };
  Char at(const char* p) const {
    const auto byte = static_cast<uint8_t>(*p);
    if (byte < 0x80) {
      return {classes_[byte], 1};
    }
    const CodePoint c = decode_utf8(p);
    return {classes_[c.value], static_cast<uint8_t>(c.size)};
  }
  bool ends(const char* p) const { return p == end_; }

  /// [mask]*
  const char* skip(const char* p, uint8_t mask) const {
    while (p != end_) {
      const Char c = at(p);
      if ((c.classes & mask) == 0) {
        break;
      }
      p += c.size;
    }
    return p;
  }

  /// [^mask]*
  const char* skip_not(const char* p, uint8_t mask) const {
    while (p != end_) {
      const Char c = at(p);
      if ((c.classes & mask) != 0) {
        break;
      }
      p += c.size;
    }
    return p;
  }

  /// \p{N}{1,most}
  const char* numbers(const char* p, int most) const {
    const char* start = p;
    for (; most > 0 && p != end_; --most) {
      const Char c = at(p);
      if ((c.classes & kNumber) == 0) {
        break;
      }
      p += c.size;
    }
    return p == start ? nullptr : p;
  }

  /// 's|'t|'re|'ve|'m|'ll|'d, in lower case alone or in any (where the long s is an s).
  template <bool kAnyCase>
  const char* contraction(const char* p) const {
    if (*p != '\'' || end_ - p < 2) {
      return nullptr;
    }
    const auto lower = [](char c) {
      return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = lower(p[1]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') {
      return p + 2;
    }
    if (end_ - p < 3) {
      return nullptr;
    }
    if (kAnyCase && std::string_view(p + 1, 2) == "\u017F") {
      return p + 3;
    }
    const char second = lower(p[2]);
    const bool pair =
        first == 'l' ? second == 'l' : (first == 'r' || first == 'v') && second == 'e';
    return pair ? p + 3 : nullptr;
  }

  /// ` ?[^\s\p{L}\p{N}]+` and then any of \r, \n and `also` (0: nothing at all follows)
  template <bool kLines, char kAlso>
  const char* others(const char* p) const {
    p += *p == ' ' ? 1 : 0;
    const char* q = skip_not(p, kNotOther);
    if (q == p) {
      return nullptr;
    }
    if constexpr (kLines) {
      while (q != end_ && (is_newline(*q) || (kAlso != 0 && *q == kAlso))) {
        ++q;
      }
    }
    return q;
  }

  /// With kLines `\s*[\r\n]+|\s+(?!\S)|\s+`, without `\s+(?!\S)|\s+`. There is white space at p.
  template <bool kLines>
  const char* spaces(const char* p) const {
    const char* last = p;            // the last white-space character
    const char* line_end = nullptr;  // after the last line break
    const char* q = p;
    while (q != end_) {
      const Char c = at(q);
      if ((c.classes & kSpace) == 0) {
        break;
      }
      last = q;
      q += c.size;
      if (kLines && is_newline(*last)) {
        line_end = q;
      }
    }
    if (line_end != nullptr) {
      return line_end;
    }
    return q == end_ || last == p ? q : last;
  }

  /// [U]*[W]+ with U = kUpper and W = kLower, characters of both kinds given back as the regular
  /// expression does.
  const char* upper_lower(const char* p) const {
    const char* given_back = nullptr;  // the end of the last character in U that is in W too
    while (p != end_) {
      const Char c = at(p);
      if ((c.classes & kUpper) == 0) {
        break;
      }
      p += c.size;
      if ((c.classes & kLower) != 0) {
        given_back = p;
      }
    }
    const char* q = skip(p, kLower);
    return q != p ? q : given_back;
  }

  /// [U]+[W]*
  const char* upper_maybe_lower(const char* p) const {
    const char* q = skip(p, kUpper);
    return q == p ? nullptr : skip(q, kLower);
  }

 private:
  const uint8_t* classes_ = class_table();
  const char* end_;
};

struct Gpt2 {
  static const char* match(const Text& text, const char* p) {
    if (const char* q = text.contraction<false>(p)) {
      return q;
    }
    const char* word = p + (*p == ' ' ? 1 : 0);
    if (!text.ends(word)) {
      const Text::Char c = text.at(word);
      if ((c.classes & kLetter) != 0) {
        return text.skip(word + c.size, kLetter);
      }
      if ((c.classes & kNumber) != 0) {
        return text.skip(word + c.size, kNumber);
      }
      if ((c.classes & kSpace) == 0) {
        return text.skip_not(word + c.size, kNotOther);
      }
    }
    return text.spaces<false>(p);
  }
};

template <int kMostDigits>
struct Llama3 {
  static const char* match(const Text& text, const char* p) {
    if (const char* q = text.contraction<true>(p)) {
      return q;
    }
    const Text::Char c = text.at(p);
    const char* next = p + c.size;
    if ((c.classes & kLetter) != 0) {
      return text.skip(next, kLetter);
    }
    if ((c.classes & kNumber) != 0) {
      return text.numbers(p, kMostDigits);
    }
    if (!is_newline(*p) && !text.ends(next)) {
      const Text::Char second = text.at(next);
      if ((second.classes & kLetter) != 0) {
        return text.skip(next + second.size, kLetter);
      }
    }
    if (const char* q = text.others<true, 0>(p)) {
      return q;
    }
    return text.spaces<true>(p);
  }
};

template <int kMostDigits, bool kContractions>
struct CasedWords {
  static const char* match(const Text& text, const char* p) {
    const Text::Char c = text.at(p);
    const bool prefix = (c.classes & (kLetter | kNumber)) == 0 && !is_newline(*p);
    const char* word = prefix ? text.upper_lower(p + c.size) : nullptr;
    word = word != nullptr ? word : text.upper_lower(p);
    word = word == nullptr && prefix ? text.upper_maybe_lower(p + c.size) : word;
    word = word != nullptr ? word : text.upper_maybe_lower(p);
    if (word != nullptr) {
      const char* q = kContractions && !text.ends(word) ? text.contraction<true>(word) : nullptr;
      return q != nullptr ? q : word;
    }
    if (const char* q = text.numbers(p, kMostDigits)) {
      return q;
    }
    if (const char* q = text.others<true, '/'>(p)) {
      return q;
    }
    return text.spaces<true>(p);
  }
};

template <class Pattern>
void scan(std::string_view input, std::vector<std::string_view>& pieces) {
  const Text text(input);
  const char* p = input.data();
  while (!text.ends(p)) {
    const char* q = Pattern::match(text, p);
    pieces.emplace_back(p, static_cast<size_t>(q - p));
    p = q;
  }
}

}  // namespace

std::optional<Scanner> find_scanner(std::string_view pattern) {
  struct Known {
    std::string_view pattern;
    Scanner scanner;
  };
  static constexpr Known kKnown[] = {
      {kGpt2Pattern, scan<Gpt2>},
      {kLlama3Pattern, scan<Llama3<3>>},
      {kQwen2Pattern, scan<Llama3<1>>},
      {kTekkenPattern, scan<CasedWords<1, false>>},
      {kGpt4oPattern, scan<CasedWords<3, true>>},
  };
  for (const Known& known : kKnown) {
    if (pattern == known.pattern) {
      return known.scanner;
    }
  }
  return std::nullopt;
}

}  // namespace weft::tokenizer
