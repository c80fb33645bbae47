#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace weft::tokenizer {
namespace {

struct ClassRange {
  uint32_t first, last;
  uint8_t classes;
};
struct CodePointRange {
  uint32_t first, last;
};
#include "model/tokenizer/unicode_classes.inc"

/// What stands at the front of some bytes: a whole character, the beginning of one, or neither.
struct Sequence {
  enum { kWhole, kCutShort, kInvalid } kind;
  size_t size;  ///< bytes of the character, or of the maximal piece that could have begun one (at
                ///< least 1)
};

// The well-formed byte sequences of the Unicode Standard, table 3-7.
Sequence front_sequence(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) {
    return {Sequence::kWhole, 1};
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return {Sequence::kInvalid, 1};
  }
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) {
      return {Sequence::kCutShort, i};
    }
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    if (i == 1) {
      low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    }
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte < low || byte > high) {
      return {Sequence::kInvalid, i};
    }
  }
  return {Sequence::kWhole, length};
}

/// The number of ASCII bytes at the front, rounded down to 8.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) {
      break;
    }
  }
  return i;
}

}  // namespace

const uint8_t* class_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> classes(0x110000);
    for (const ClassRange& range : kClassRanges) {
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.classes);
    }
    return classes;
  }();
  return table.data();
}

bool too_new_to_normalize(char32_t c) {
  const auto* range =
      std::upper_bound(std::begin(kTooNewToNormalize), std::end(kTooNewToNormalize), c,
                       [](char32_t x, const CodePointRange& r) { return x < r.first; });
  return range != std::begin(kTooNewToNormalize) && c <= range[-1].last;
}

bool is_one_character(std::string_view text) {
  return !text.empty() && decode_utf8(text.data()).size == text.size();
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      at += std::max<size_t>(ascii_prefix(text.substr(at)), 1);
      continue;
    }
    const Sequence sequence = front_sequence(text.substr(at));
    if (sequence.kind != Sequence::kWhole) {
      return at;
    }
    at += sequence.size;
  }
  return std::string_view::npos;
}

void take_utf8(std::string& bytes, std::string& out, bool all) {
  size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(at);
    const Sequence sequence = front_sequence(rest);
    if (sequence.kind == Sequence::kWhole) {
      out.append(rest.substr(0, sequence.size));
    } else if (sequence.kind == Sequence::kCutShort && !all) {
      break;
    } else {
      out.append("\uFFFD");
    }
    at += sequence.size;
  }
  bytes.erase(0, at);
}

}  // namespace weft::tokenizer
