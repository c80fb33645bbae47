// Methods of texts, dicts and lists.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "serve/template/evaluator.h"
#include "serve/template/text.h"

namespace weft::jinja {
namespace {

using Method = Value (*)(Evaluator&, const Value&, Arguments&);

std::string need_text(const Arguments& given, size_t i, std::string_view method) {
  if (i >= given.positional.size() || !given.positional[i].is_string()) {
    throw Failure{fmt::format("{}() needs a text as argument {}", method, i + 1)};
  }
  return given.positional[i].as_string();
}

Value list_of(Evaluator& evaluator, const std::vector<std::string_view>& parts,
              bool tuple = false) {
  List out;
  evaluator.charge(parts.size() * sizeof(Value));
  for (const std::string_view part : parts) {
    out.push_back(evaluator.text(std::string(part)));
  }
  return tuple ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

/// strip(), lstrip(), rstrip(): white space, or the characters of the argument.
template <bool left, bool right>
Value strip_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  std::string_view text = of.as_string();
  if (given.positional.empty() || given.positional[0].is_none()) {
    text = left ? strip_left(text) : text;
    text = right ? strip_right(text) : text;
    return evaluator.text(std::string(text));
  }
  const std::u32string set = to_code_points(need_text(given, 0, "strip"));
  const std::u32string all = to_code_points(text);
  size_t begin = 0;
  size_t end = all.size();
  while (left && begin < end && set.find(all[begin]) != std::u32string::npos) {
    ++begin;
  }
  while (right && end > begin && set.find(all[end - 1]) != std::u32string::npos) {
    --end;
  }
  return evaluator.text(to_utf8(std::u32string_view(all).substr(begin, end - begin)));
}

template <bool from_right>
Value split_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const Bound bound("split()", given, {"sep", "maxsplit"});
  const int64_t most = bound.number(1, -1);
  if (bound[0] == nullptr || bound[0]->is_none()) {
    return list_of(evaluator, split_words(of.as_string(), most, from_right));
  }
  const std::string separator = bound.text(0, "");
  if (separator.empty()) {
    throw Failure{"empty separator"};
  }
  return list_of(evaluator, split(of.as_string(), separator, most, from_right));
}

template <bool from_right>
Value partition_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const std::string separator = need_text(given, 0, "partition");
  const std::string& text = of.as_string();
  const size_t at = from_right ? find_last(text, separator) : find(text, separator);
  const std::string_view all = text;
  if (at == std::string::npos) {
    return from_right ? list_of(evaluator, {"", "", all}, true)
                      : list_of(evaluator, {all, "", ""}, true);
  }
  return list_of(evaluator, {all.substr(0, at), separator, all.substr(at + separator.size())},
                 true);
}

template <bool at_end>
Value affix_method(Evaluator&, const Value& of, Arguments& given) {
  const std::string& text = of.as_string();
  if (given.positional.empty()) {
    throw Failure{"startswith() and endswith() need a text"};
  }
  const Value& wanted = given.positional[0];
  const List any = wanted.is_tuple() ? wanted.as_sequence().items : List{wanted};
  return Value::boolean(std::any_of(any.begin(), any.end(), [&](const Value& affix) {
    if (!affix.is_string()) {
      throw Failure{fmt::format("startswith() and endswith() need a text, not '{}'", affix.type())};
    }
    return at_end ? text.ends_with(affix.as_string()) : text.starts_with(affix.as_string());
  }));
}

template <bool at_end>
Value remove_affix_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  std::string_view text = of.as_string();
  const std::string affix = need_text(given, 0, at_end ? "removesuffix" : "removeprefix");
  if (at_end ? text.ends_with(affix) : text.starts_with(affix)) {
    text = text.substr(at_end ? 0 : affix.size(), text.size() - affix.size());
  }
  return evaluator.text(std::string(text));
}

/// find(), rfind(), index(), rindex(): in characters.
template <bool from_right, bool must>
Value find_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const std::string& text = of.as_string();
  const std::string wanted = need_text(given, 0, "find");
  evaluator.charge(text.size() / 8);
  const size_t at = from_right ? find_last(text, wanted) : find(text, wanted);
  if (at == std::string::npos) {
    if (must) {
      throw Failure{"substring not found"};
    }
    return Value::integer(-1);
  }
  return Value::integer(static_cast<Integer>(code_points(std::string_view(text).substr(0, at))));
}

template <std::string (*function)(std::string_view)>
Value recase_method(Evaluator& evaluator, const Value& of, Arguments&) {
  evaluator.charge(4 * of.as_string().size());
  return evaluator.text(function(of.as_string()));
}

template <bool (*function)(char32_t)>
Value all_method(Evaluator& evaluator, const Value& of, Arguments&) {
  evaluator.charge(4 * of.as_string().size());
  const std::u32string all = to_code_points(of.as_string());
  return Value::boolean(!all.empty() && std::all_of(all.begin(), all.end(), function));
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alpha(char32_t c) {
  return c >= 0x80 ? !is_space(c) : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_alnum(char32_t c) { return is_digit(c) || is_alpha(c); }

Value count_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const std::string wanted = need_text(given, 0, "count");
  if (wanted.empty()) {
    return Value::integer(static_cast<Integer>(code_points(of.as_string())) + 1);
  }
  evaluator.charge(of.as_string().size());
  Integer count = 0;
  for (size_t at = jinja::find(of.as_string(), wanted); at != std::string::npos;
       at = jinja::find(of.as_string(), wanted, at + wanted.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value replace_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const Bound bound("replace()", given, {"old", "new", "count"});
  const std::string old = bound.text(0, "");
  const std::string with = bound.text(1, "");
  evaluator.charge((of.as_string().size() / std::max<size_t>(1, old.size()) + 1) *
                   (with.size() + 1));
  return evaluator.text(replace(of.as_string(), old, with, bound.number(2, -1)));
}

Value join_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  if (given.positional.size() != 1) {
    throw Failure{"join() takes one list"};
  }
  std::string out;
  bool first = true;
  for (const Value& part : evaluator.elements(given.positional[0])) {
    if (!part.is_string()) {
      throw Failure{fmt::format("join() expects texts, not '{}'", part.type())};
    }
    evaluator.charge(of.as_string().size() + part.as_string().size());
    out.append(of.as_string(), 0, first ? 0 : of.as_string().size());
    first = false;
    out += part.as_string();
  }
  return Value::string(std::move(out));
}

Value splitlines_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const Bound bound("splitlines()", given, {"keepends"});
  return list_of(evaluator, split_lines(of.as_string(), bound.flag(0, false)));
}

/// ljust(), rjust(), center()
template <int side>
Value pad_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const Bound bound("ljust(), rjust() and center()", given, {"width", "fillchar"});
  const auto width = static_cast<size_t>(std::max<int64_t>(0, bound.number(0, 0)));
  const size_t size = code_points(of.as_string());
  const size_t pad = width > size ? width - size : 0;
  const size_t left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
  const std::string fill = bound.text(1, " ");
  evaluator.charge(pad * fill.size());
  std::string out;
  for (size_t i = 0; i < pad; ++i) {
    if (i == left) {
      out += of.as_string();
    }
    out += fill;
  }
  return evaluator.text(pad == left ? out + of.as_string() : out);
}

/// str.format() with {}, {0} and {name}, without format specifications.
Value format_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const std::string& format = of.as_string();
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = format.find('}', i);
      const std::string field = end == std::string::npos ? ":" : format.substr(i + 1, end - i - 1);
      const bool number = !field.empty() && field.size() < 6 &&
                          std::all_of(field.begin(), field.end(),
                                      [](char d) { return is_digit(static_cast<char32_t>(d)); });
      const Value* value = nullptr;
      const size_t index = number          ? std::stoul(field)
                           : field.empty() ? next++
                                           : given.positional.size();
      if (index < given.positional.size()) {
        value = &given.positional[index];
      }
      for (const auto& [name, named] : given.named) {
        value = name == field ? &named : value;
      }
      if (value == nullptr) {
        throw Failure{fmt::format("format() has no argument for '{{{}}}'", field)};
      }
      const std::string text = to_text(*value);
      evaluator.charge(text.size());
      out += text;
      i = end;
    } else {
      out += c;
    }
  }
  return evaluator.text(std::move(out));
}

Value get_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  const Bound bound("get()", given, {"key", "default"});
  if (bound[0] == nullptr) {
    throw Failure{"get() needs a key"};
  }
  evaluator.charge(of.as_dict().size());
  const Value* there = of.as_dict().find(*bound[0]);
  return there != nullptr ? *there : bound[1] != nullptr ? *bound[1] : Value::none();
}

Value keys_method(Evaluator& evaluator, const Value& of, Arguments&) {
  return Value::list(evaluator.elements(of));
}

Value values_method(Evaluator& evaluator, const Value& of, Arguments&) {
  List out;
  evaluator.charge(of.as_dict().size() * sizeof(Value));
  for (const auto& member : of.as_dict().members()) {
    out.push_back(member.second);
  }
  return Value::list(std::move(out));
}

Value items_method(Evaluator& evaluator, const Value& of, Arguments&) {
  List out;
  evaluator.charge(of.as_dict().size() * 4 * sizeof(Value));
  for (const auto& [key, value] : of.as_dict().members()) {
    out.push_back(Value::tuple({key, value}));
  }
  return Value::list(std::move(out));
}

Value copy_method(Evaluator& evaluator, const Value& of, Arguments&) {
  return of.is_dict() ? of : Value::list(evaluator.elements(of));
}

template <bool count>
Value list_find_method(Evaluator& evaluator, const Value& of, Arguments& given) {
  if (given.positional.empty()) {
    throw Failure{"index() and count() need a value"};
  }
  const List items = evaluator.elements(of);
  evaluator.charge(items.size() * (given.positional[0].weight() / 64));
  Integer found = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], given.positional[0])) {
      if (!count) {
        return Value::integer(static_cast<Integer>(i));
      }
      ++found;
    }
  }
  if (!count) {
    throw Failure{fmt::format("{} is not in list", to_repr(given.positional[0]))};
  }
  return Value::integer(found);
}

Value unsafe_method(Evaluator&, const Value& of, Arguments&) {
  throw Failure{fmt::format("a template may not change a {}", of.type())};
}

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> methods = {
      {"strip", strip_method<true, true>},
      {"lstrip", strip_method<true, false>},
      {"rstrip", strip_method<false, true>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"partition", partition_method<false>},
      {"rpartition", partition_method<true>},
      {"startswith", affix_method<false>},
      {"endswith", affix_method<true>},
      {"removeprefix", remove_affix_method<false>},
      {"removesuffix", remove_affix_method<true>},
      {"find", find_method<false, false>},
      {"rfind", find_method<true, false>},
      {"index", find_method<false, true>},
      {"rindex", find_method<true, true>},
      {"count", count_method},
      {"replace", replace_method},
      {"join", join_method},
      {"splitlines", splitlines_method},
      {"upper", recase_method<to_upper>},
      {"lower", recase_method<to_lower>},
      {"title", recase_method<title>},
      {"capitalize", recase_method<capitalize>},
      {"isdigit", all_method<is_digit>},
      {"isnumeric", all_method<is_digit>},
      {"isdecimal", all_method<is_digit>},
      {"isalpha", all_method<is_alpha>},
      {"isalnum", all_method<is_alnum>},
      {"isspace", all_method<is_space>},
      {"isupper", [](Evaluator&, const Value& of,
                     Arguments&) { return Value::boolean(is_upper(of.as_string())); }},
      {"islower", [](Evaluator&, const Value& of,
                     Arguments&) { return Value::boolean(is_lower(of.as_string())); }},
      {"ljust", pad_method<-1>},
      {"rjust", pad_method<1>},
      {"center", pad_method<0>},
      {"format", format_method},
  };
  return methods;
}

const std::map<std::string_view, Method>& dict_methods() {
  static const std::map<std::string_view, Method> methods = {
      {"get", get_method},       {"keys", keys_method},    {"values", values_method},
      {"items", items_method},   {"copy", copy_method},    {"pop", unsafe_method},
      {"update", unsafe_method}, {"clear", unsafe_method}, {"setdefault", unsafe_method},
      {"popitem", unsafe_method}};
  return methods;
}

const std::map<std::string_view, Method>& list_methods() {
  static const std::map<std::string_view, Method> methods = {{"index", list_find_method<false>},
                                                             {"count", list_find_method<true>},
                                                             {"copy", copy_method},
                                                             {"append", unsafe_method},
                                                             {"extend", unsafe_method},
                                                             {"insert", unsafe_method},
                                                             {"pop", unsafe_method},
                                                             {"remove", unsafe_method},
                                                             {"reverse", unsafe_method},
                                                             {"sort", unsafe_method},
                                                             {"clear", unsafe_method}};
  return methods;
}

/// Width and precision of a directive; more than 100 characters is nobody's table.
std::string directive(std::string_view flags, char kind, const Value& value) {
  int width = 0;
  int precision = -1;
  bool left = false;
  bool zeros = false;
  size_t i = 0;
  for (; i < flags.size() &&
         (flags[i] == '-' || flags[i] == '0' || flags[i] == '+' || flags[i] == ' ');
       ++i) {
    left |= flags[i] == '-';
    zeros |= flags[i] == '0';
  }
  for (; i < flags.size() && flags[i] != '.'; ++i) {
    width = std::min(100, width * 10 + (flags[i] - '0'));
  }
  if (i < flags.size()) {
    precision = 0;
    for (++i; i < flags.size(); ++i) {
      precision = std::min(100, precision * 10 + (flags[i] - '0'));
    }
  }
  std::string text;
  if (kind == 's' || kind == 'r') {
    text = kind == 's' ? to_text(value) : to_repr(value);
    if (precision >= 0) {
      text = to_utf8(to_code_points(text).substr(0, static_cast<size_t>(precision)));
    }
  } else if (!value.is_number()) {
    throw Failure{fmt::format("%{} format: a number is required, not {}", kind, value.type())};
  } else if (kind == 'f') {
    text = fmt::format("{:.{}f}", value.as_real(), precision < 0 ? 6 : precision);
  } else {
    const Integer whole = value.is_real()
                              ? static_cast<Integer>(std::clamp(value.as_real(), -1e30, 1e30))
                              : value.as_integer();
    text = kind == 'x' ? fmt::format("{:x}", whole) : fmt::format("{}", whole);
  }
  const size_t size = code_points(text);
  const size_t pad = static_cast<size_t>(width) > size ? static_cast<size_t>(width) - size : 0;
  if (left) {
    return text + std::string(pad, ' ');
  }
  const bool minus = zeros && kind != 's' && kind != 'r' && text.starts_with('-');
  std::string out(minus ? 1 : 0, '-');
  out.append(pad, zeros && kind != 's' && kind != 'r' ? '0' : ' ');
  return out.append(text, minus ? 1 : 0);
}

}  // namespace

std::string percent_format(Evaluator& evaluator, const std::string& format, const List& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const size_t kind = format.find_first_not_of("-+ 0123456789.", i + 1);
    if (kind == std::string::npos ||
        std::string_view("srdifx%").find(format[kind]) == std::string_view::npos) {
      throw Failure{"a format has a directive other than %s, %r, %d, %i, %f, %x and %%"};
    }
    if (format[kind] == '%') {
      out += '%';
    } else if (next >= arguments.size()) {
      throw Failure{"not enough arguments for format string"};
    } else {
      std::string text = directive(std::string_view(format).substr(i + 1, kind - i - 1),
                                   format[kind], arguments[next++]);
      evaluator.charge(text.size());
      out += text;
    }
    i = kind;
  }
  if (next < arguments.size() && !(arguments.size() == 1 && arguments[0].is_dict())) {
    throw Failure{"not all arguments converted during string formatting"};
  }
  return out;
}

std::optional<Value> method(Evaluator& evaluator, const Value& of, std::string_view name) {
  if (!of.is_string() && !of.is_dict() && !of.is_sequence()) {
    return std::nullopt;
  }
  const auto& methods = of.is_string() ? text_methods()
                        : of.is_dict() ? dict_methods()
                                       : list_methods();
  const auto found = methods.find(name);
  if (found == methods.end()) {
    return std::nullopt;
  }
  return Value::object(evaluator.keep(
      std::make_shared<Function>([&evaluator, of, body = found->second](Arguments& given) {
        return body(evaluator, of, given);
      })));
}

}  // namespace weft::jinja
