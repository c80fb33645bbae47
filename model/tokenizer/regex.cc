#include "model/tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>

#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

constexpr uint32_t kBacktrackLimit =
    1'000'000;  // steps for one match; a sane split pattern takes a handful
constexpr size_t kMostPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 1024 * 1024;

// Oniguruma's \s is White_Space; PCRE2's has U+180E too. Its \w is L, N and _; Oniguruma's is this.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWords = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return std::string(reinterpret_cast<const char*>(buffer.data()));
}

/// Whether a group starts with options such as (?im:
bool sets_multiline(std::string_view group) {
  constexpr std::string_view kOptions = "(?";
  if (!group.starts_with(kOptions)) {
    return false;
  }
  const std::string_view options = group.substr(kOptions.size());
  const size_t size = options.find_first_not_of("imxsn-");
  return options.substr(0, size).find('m') != std::string_view::npos;
}

/// Oniguruma's expression as PCRE2's.
Result<std::string> translate(std::string_view in) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const char c = in[i];
    const char next = i + 1 < in.size() ? in[i + 1] : '\0';
    if (c == '\\') {
      const char kind = static_cast<char>(next | 0x20);  // the letter in lower case
      const bool negated = next >= 'A' && next <= 'Z';
      const std::string_view members = kind == 's'   ? kSpaces
                                       : kind == 'w' ? kWords
                                       : kind == 'h' ? kHex
                                                     : "";
      if (!members.empty() && (next == 's' || next == 'w' || next == 'h' || negated)) {
        if (in_class && !negated) {
          out.append(members);
        } else if (!in_class) {
          out.append(negated ? "[^" : "[").append(members).append("]");
        } else if (next == 'S') {
          out.append(
              R"(\S)");  // a class has no complement inside it; U+180E alone is read differently
        } else {
          return input_error(fmt::format("\\{} inside a class is not supported", next));
        }
      } else if ((kind == 'p' || kind == 'x') && in.substr(i + 2, 1) == "{") {
        const size_t close = std::min(in.find('}', i), in.size() - 1);
        out.append(in.substr(i, close + 1 - i));
        i = close - 1;
      } else if (next == 'b' && !in_class) {
        return input_error("\\b is not supported");
      } else {
        out.push_back(c);
        if (next != '\0') {
          out.push_back(next);
        }
      }
      ++i;
    } else if (in_class) {
      if (c == '[') {
        if (next != ':') {
          return input_error("a class inside a class is not supported");
        }
        const size_t close = in.find(":]", i);
        if (close == std::string_view::npos) {
          return input_error("a class name is not closed");
        }
        out.append(in.substr(i, close + 2 - i));
        i = close + 1;
        continue;
      }
      if (c == '&' && next == '&') {
        return input_error("an intersection of classes is not supported");
      }
      in_class = c != ']';
      out.push_back(c);
    } else if (c == '[') {
      in_class = true;
      out.push_back(c);
      if (next == '^') {
        out.push_back(next);
        ++i;
      }
      if (i + 1 < in.size() && in[i + 1] == ']') {  // a bracket that comes first is itself
        out.append("\\]");
        ++i;
      }
    } else if (c == '}' && next == '+') {
      return input_error(
          "'}+' is not supported");  // possessive to PCRE2, a repetition to Oniguruma
    } else if (c == '(' && sets_multiline(in.substr(i))) {
      return input_error("(?m) is not supported");  // to Ruby: the dot matches line breaks
    } else {
      out.push_back(c);
    }
  }
  return out;
}

struct MatchData {
  explicit MatchData(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    pcre2_set_match_limit(context, kBacktrackLimit);
    pcre2_set_depth_limit(context, kBacktrackLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchData() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.empty()) {
    return input_error("an empty expression matches everywhere");
  }
  if (pattern.size() > kMostPatternBytes) {
    return input_error(fmt::format("the expression has {} bytes, more than {}", pattern.size(),
                                   kMostPatternBytes));
  }
  WEFT_ASSIGN(const std::string translated, translate(pattern));
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, context.get());
  if (code == nullptr) {
    return input_error(fmt::format("{} (at byte {})", message_of(error), offset));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it the same matches come slower
  return Regex(code);
}

Status Regex::find_all(std::string_view text, std::vector<Match>& out) const {
  const MatchData match(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t from = 0;   // where the next search starts
  size_t given = 0;  // the end of what has been appended
  std::optional<size_t> last_end;
  while (from <= text.size()) {
    const int count = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  match.data, match.context);
    if (count == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (count < 0) {
      return input_error(fmt::format("a regular expression failed at byte {} of a text: {}", from,
                                     message_of(count)));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.data);
    const size_t begin = range[0];
    const size_t end = range[1];
    if (end < begin || begin < given) {  // \K in a lookaround can do that
      return input_error("a regular expression matched outside the text it was given");
    }
    if (begin == end && last_end == end) {  // an empty match directly after a match does not count
      from += from < text.size() ? decode_utf8(text.data() + from).size : 1;
      continue;
    }
    if (given != begin) {
      out.push_back({text.substr(given, begin - given), false});
    }
    out.push_back({text.substr(begin, end - begin), true});
    given = end;
    from = end;
    last_end = end;
  }
  if (given != text.size()) {
    out.push_back({text.substr(given), false});
  }
  return {};
}

}  // namespace weft::tokenizer
