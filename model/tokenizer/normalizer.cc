#include "model/tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

/// Appends utf8proc's form of `text`; what it cannot map (only memory can be the reason) stays as
/// it is.
void append_mapped(std::string_view text, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) {
    out.append(text);
  } else {
    out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  }
}

/// append_mapped, but the characters that the reference does not know stand still between what
/// surrounds them.
void append_mapped_around_new(std::string_view text, utf8proc_option_t options, std::string& out) {
  const char* from = text.data();
  const char* const end = text.data() + text.size();
  for (const char* p = from; p != end;) {
    const CodePoint c = decode_utf8(p);
    if (c.value >= 0x300 && too_new_to_normalize(c.value)) {
      append_mapped({from, p}, options, out);
      out.append(p, c.size);
      from = p + c.size;
    }
    p += c.size;
  }
  append_mapped({from, end}, options, out);
}

/// NFC. Text is nearly always composed already, so only the stretches that are not sure to be are
/// mapped: those from a character that combines with nothing before it up to the next such
/// character.
void compose(std::string_view text, std::string& out) {
  const uint8_t* classes = class_table();
  const auto joins = [classes](const char* p, CodePoint& c) {
    if (static_cast<uint8_t>(*p) < 0xcc) {  // below U+0300 nothing joins
      c.size = static_cast<uint8_t>(*p) < 0x80 ? 1 : 2;
      return false;
    }
    c = decode_utf8(p);
    return (classes[c.value] & kJoins) != 0;
  };
  const char* const end = text.data() + text.size();
  const char* copied = text.data();
  const char* previous = text.data();  // the last character that joins nothing
  CodePoint c;
  for (const char* p = text.data(); p != end;) {
    if (!joins(p, c)) {
      previous = p;
      p += c.size;
      continue;
    }
    out.append(copied, previous);
    do {
      p += c.size;
    } while (p != end && joins(p, c));
    append_mapped_around_new(
        {previous, p}, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE), out);
    copied = p;
    previous = p;
  }
  out.append(copied, end);
}

bool is_mark(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

/// Calls `put(code point)` for each character of `text`.
template <class Put>
void for_each_character(std::string_view text, Put put) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const CodePoint c = decode_utf8(p);
    put(c.value);
    p += c.size;
  }
}

std::string_view strip(std::string_view text, bool left, bool right) {
  const uint8_t* classes = class_table();
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (left && begin != end) {
    const CodePoint c = decode_utf8(begin);
    if ((classes[c.value] & kSpace) == 0) {
      break;
    }
    begin += c.size;
  }
  while (right && begin != end) {
    const char* last = previous_utf8(begin, end);
    if ((classes[decode_utf8(last).value] & kSpace) == 0) {
      break;
    }
    end = last;
  }
  return {begin, end};
}

/// Stops early when `out` gets longer than `most`.
void replace_all(std::string_view text, std::string_view pattern, std::string_view content,
                 size_t most, std::string& out) {
  size_t from = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos && out.size() <= most;
       at = text.find(pattern, from)) {
    out.append(text, from, at - from).append(content);
    from = at + pattern.size();
  }
  out.append(text, from);
}

}  // namespace

Result<Pattern> Pattern::parse(const Field& field) {
  const Field literal = field["String"];
  if (!literal.missing()) {
    WEFT_ASSIGN(std::string text, literal.text());
    if (text.empty()) {
      return literal.error("an empty pattern matches everywhere");
    }
    return Pattern(std::move(text));
  }
  const Field expression = field["Regex"];
  if (expression.missing()) {
    return field.error("must hold a \"String\" or a \"Regex\"");
  }
  WEFT_ASSIGN(const std::string text, expression.text());
  Result<Regex> regex = Regex::compile(text);
  if (!regex.ok()) {
    return expression.error(regex.error().message);
  }
  return Pattern(std::move(regex).value());
}

Status Pattern::find_all(std::string_view text, std::vector<Match>& out) const {
  if (const auto* regex = std::get_if<Regex>(&value_)) {
    return regex->find_all(text, out);
  }
  const std::string_view pattern = *literal();
  size_t from = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, from)) {
    if (at != from) {
      out.push_back({text.substr(from, at - from), false});
    }
    out.push_back({text.substr(at, pattern.size()), true});
    from = at + pattern.size();
  }
  if (from != text.size()) {
    out.push_back({text.substr(from), false});
  }
  return {};
}

Result<Normalizer> Normalizer::parse(const Field& field) {
  Normalizer normalizer;
  if (!field.missing()) {
    WEFT_TRY(parse_into(field, 0, normalizer.steps_));
  }
  return normalizer;
}

Status Normalizer::parse_into(const Field& field, int depth, std::vector<Step>& steps) {
  WEFT_ASSIGN(const std::string type, field.type());
  if (steps.size() >= kMostSteps || depth > kMostNesting) {
    return field.error(
        fmt::format("more than {} normalisers, or {} inside each other", kMostSteps, kMostNesting));
  }
  if (type == "Sequence") {
    WEFT_ASSIGN(const std::vector<Field> fields, field["normalizers"].elements());
    for (const Field& element : fields) {
      WEFT_TRY(parse_into(element, depth + 1, steps));
    }
  } else if (type == "NFC") {
    steps.emplace_back(Form::nfc);
  } else if (type == "NFD") {
    steps.emplace_back(Form::nfd);
  } else if (type == "NFKC") {
    steps.emplace_back(Form::nfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(Form::nfkd);
  } else if (type == "Lowercase") {
    steps.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps.emplace_back(StripAccents{});
  } else if (type == "ByteLevel") {
    steps.emplace_back(ByteLevel{});
  } else if (type == "Prepend") {
    WEFT_ASSIGN(std::string text, field["prepend"].text());
    steps.emplace_back(Prepend{std::move(text)});
  } else if (type == "Replace") {
    WEFT_ASSIGN(Pattern pattern, Pattern::parse(field["pattern"]));
    WEFT_ASSIGN(std::string content, field["content"].text());
    steps.emplace_back(Replace{std::move(pattern), std::move(content)});
  } else if (type == "Strip") {
    WEFT_ASSIGN(const bool left, field["strip_left"].flag());
    WEFT_ASSIGN(const bool right, field["strip_right"].flag());
    steps.emplace_back(Strip{left, right});
  } else {
    return field["type"].error(
        "an unknown normaliser; those known are Sequence, NFC, NFD, NFKC, NFKD, Lowercase, "
        "StripAccents, Strip, "
        "Prepend, Replace and ByteLevel");
  }
  return {};
}

Status Normalizer::apply(std::string& text) const {
  // Published normalisers at most triple a text; a hostile list of them could double it 64 times.
  constexpr size_t kMostGrowth = 64;
  constexpr size_t kMostBytes = (size_t{1} << 31) - 1;
  const size_t most = std::min(kMostGrowth * (text.size() + 1024), kMostBytes);
  for (const Step& step : steps_) {
    WEFT_TRY(apply_step(step, most, text));
    if (text.size() > most) {
      return input_error(
          fmt::format("the tokenizer's normaliser makes a text longer than {} bytes", most));
    }
  }
  return {};
}

Status Normalizer::apply_step(const Step& step, size_t most, std::string& text) {
  if (const auto* form = std::get_if<Form>(&step)) {
    normalize(*form, text);
    return {};
  }
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (!text.empty()) {
      text.insert(0, prepend->text);
    }
    return {};
  }
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (const auto* replace = std::get_if<Replace>(&step)) {
    if (const std::string* pattern = replace->pattern.literal()) {
      replace_all(text, *pattern, replace->content, most, out);
    } else {
      std::vector<Match> matches;
      WEFT_TRY(replace->pattern.find_all(text, matches));
      for (size_t i = 0; i < matches.size() && out.size() <= most; ++i) {
        out.append(matches[i].matched ? std::string_view(replace->content) : matches[i].text);
      }
    }
  } else if (const auto* sides = std::get_if<Strip>(&step)) {
    out = strip(text, sides->left, sides->right);
  } else if (std::holds_alternative<Lowercase>(step)) {
    for_each_character(text, [&out](char32_t c) {
      if (c == 0x130) {  // I with a dot above: the only letter whose lower case is two characters
        out.append("i\u0307");
      } else {
        append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
      }
    });
  } else if (std::holds_alternative<StripAccents>(step)) {
    for_each_character(text, [&out](char32_t c) {
      if (!is_mark(c)) {
        append_utf8(out, c);
      }
    });
  } else {
    append_byte_characters(text, out);
  }
  text = std::move(out);
  return {};
}

void Normalizer::normalize(Form form, std::string& text) {
  const auto with = [](auto... options) {
    return static_cast<utf8proc_option_t>((UTF8PROC_STABLE | ... | options));
  };
  std::string out;
  out.reserve(text.size() + 16);
  switch (form) {
    case Form::nfc:
      compose(text, out);
      break;
    case Form::nfd:
      append_mapped_around_new(text, with(UTF8PROC_DECOMPOSE), out);
      break;
    case Form::nfkc:
      append_mapped_around_new(text, with(UTF8PROC_COMPOSE, UTF8PROC_COMPAT), out);
      break;
    case Form::nfkd:
      append_mapped_around_new(text, with(UTF8PROC_DECOMPOSE, UTF8PROC_COMPAT), out);
      break;
  }
  text = std::move(out);
}

}  // namespace weft::tokenizer
