#include "serve/template/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "model/tokenizer/unicode.h"
#include "serve/template/value.h"

namespace weft::jinja {
namespace {

constexpr char32_t kSharpS = 0xdf;

void append_upper(std::u32string& out, char32_t c) {
  if (c == kSharpS) {
    out += U"SS";
  } else {
    out += static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
  }
}

char32_t lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

bool is_cased(char32_t c) {
  return c == kSharpS || lower(c) != c ||
         utf8proc_toupper(static_cast<utf8proc_int32_t>(c)) != static_cast<utf8proc_int32_t>(c);
}

/// Each character in upper case where `begins` says so of what stands before it, others in lower
/// case.
template <class Begins>
std::string recase(std::string_view text, const Begins& begins) {
  std::u32string out;
  bool begin = true;
  for (const char32_t c : to_code_points(text)) {
    if (begin) {
      append_upper(out, c);
    } else {
      out += lower(c);
    }
    begin = begins(c);
  }
  return to_utf8(out);
}

bool ends_line(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

std::string to_upper(std::string_view text) {
  return recase(text, [](char32_t) { return true; });
}

std::string to_lower(std::string_view text) {
  std::u32string out = to_code_points(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return to_utf8(out);
}

std::string capitalize(std::string_view text) {
  return recase(text, [](char32_t) { return false; });
}

std::string title(std::string_view text) {
  return recase(text, [](char32_t c) { return !is_cased(c); });
}

std::string begin_words(std::string_view text) {
  return recase(text, [](char32_t c) {
    return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  });
}

bool is_upper(std::string_view text) {
  const std::u32string characters = to_code_points(text);
  return text == to_upper(text) && std::any_of(characters.begin(), characters.end(), is_cased);
}

bool is_lower(std::string_view text) {
  const std::u32string characters = to_code_points(text);
  return text == to_lower(text) && std::any_of(characters.begin(), characters.end(), is_cased);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    size_t next = i + 1;
    while (next < text.size() && (static_cast<uint8_t>(text[next]) & 0xc0) == 0x80) {
      ++next;
    }
    if (ends_line(to_code_points(text.substr(i, next - i))[0])) {
      next += text[i] == '\r' && next < text.size() && text[next] == '\n' ? 1 : 0;
      lines.push_back(text.substr(start, (keep_ends ? next : i) - start));
      start = next;
    }
    i = next;
  }
  if (start < text.size()) {
    lines.push_back(text.substr(start));
  }
  return lines;
}

std::vector<std::string_view> split_words(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string_view> words;
  for (std::string_view rest = strip_left(text); !rest.empty(); rest = strip_left(rest)) {
    size_t end = 0;
    while (end < rest.size()) {
      const tokenizer::CodePoint c = tokenizer::decode_utf8(rest.data() + end);
      if (is_space(c.value)) {
        break;
      }
      end += c.size;
    }
    words.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  const auto limit = static_cast<size_t>(most);
  if (most < 0 || words.size() <= limit) {
    return words;
  }
  if (from_right) {
    const std::string_view& last = words[words.size() - limit - 1];
    words.erase(words.begin(), words.end() - static_cast<ptrdiff_t>(limit));
    words.insert(words.begin(),
                 text.substr(0, static_cast<size_t>(last.data() + last.size() - text.data())));
  } else {
    const auto start = static_cast<size_t>(words[limit].data() - text.data());
    words.resize(limit);
    words.push_back(text.substr(start));
  }
  return words;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most,
                                    bool from_right) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? find_last(text, separator) : find(text, separator);
    if (at == std::string_view::npos) {
      break;
    }
    if (from_right) {
      parts.push_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    } else {
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator.size());
    }
  }
  parts.push_back(text);
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return parts;
}

size_t find(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) {
    return std::string_view::npos;
  }
  const void* at = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

size_t find_last(std::string_view text, std::string_view wanted) {
  if (wanted.size() < 64) {
    return text.rfind(wanted);
  }
  const std::string text_back(text.rbegin(), text.rend());
  const std::string wanted_back(wanted.rbegin(), wanted.rend());
  const size_t at = find(text_back, wanted_back);
  return at == std::string_view::npos ? at : text.size() - at - wanted.size();
}

std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t most) {
  std::string out;
  int64_t done = 0;
  size_t at = 0;
  while (most < 0 || done < most) {
    const size_t found = old.empty() ? at : find(text, old, at);
    if (found == std::string_view::npos) {
      break;
    }
    out += text.substr(at, found - at);
    out += with;
    ++done;
    at = found + old.size();
    if (old.empty()) {
      if (at >= text.size()) {
        return out;
      }
      const size_t size = tokenizer::decode_utf8(text.data() + at).size;
      out += text.substr(at, size);
      at += size;
    }
  }
  out += text.substr(at);
  return out;
}

}  // namespace weft::jinja
