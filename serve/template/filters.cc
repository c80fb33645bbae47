// Jinja's filters and tests, and transformers' tojson.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "serve/template/evaluator.h"
#include "serve/template/text.h"

namespace weft::jinja {
namespace {

const std::string& need_text(const Value& value, std::string_view filter) {
  if (value.is_undefined()) {
    static const std::string empty;
    return empty;
  }
  if (!value.is_string()) {
    throw Failure{fmt::format("{} needs a text, not '{}'", filter, value.type())};
  }
  return value.as_string();
}

// --- attributes by name, as map, sort and the like take them ---

/// "a.b.0": items of items. What is missing is `otherwise`, if there is one.
Value attribute_path(Evaluator& evaluator, const Value& of, const Value& path,
                     const Value* otherwise = nullptr) {
  Value at = of;
  if (!path.is_string()) {
    at = evaluator.item(at, path);
  } else {
    for (const std::string_view part : split(path.as_string(), ".", -1, false)) {
      const bool number = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string_view::npos;
      at = evaluator.item(at, number ? Value::integer(std::atoi(std::string(part).c_str()))
                                     : Value::string(std::string(part)));
      if (at.is_undefined() && otherwise != nullptr) {
        at = *otherwise;
      }
    }
  }
  return at;
}

/// What a value is sorted or told apart by.
Value sort_key(Evaluator& evaluator, const Value& of, const Value* path, bool case_sensitive) {
  Value key = path == nullptr || path->is_none() ? of : attribute_path(evaluator, of, *path);
  if (!case_sensitive && key.is_string()) {
    key = evaluator.text(to_lower(key.as_string()));
  }
  return key;
}

using Keyed = std::vector<std::pair<Value, Value>>;  ///< key, value

Keyed keyed(Evaluator& evaluator, const Value& of, const Value* path, bool case_sensitive) {
  Keyed out;
  for (const Value& value : evaluator.elements(of)) {
    out.emplace_back(sort_key(evaluator, value, path, case_sensitive), value);
  }
  return out;
}

void sort_keyed(Evaluator& evaluator, Keyed& values, bool reverse) {
  std::stable_sort(values.begin(), values.end(), [&](const auto& a, const auto& b) {
    evaluator.charge(std::min(a.first.weight(), b.first.weight()) / 16);
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
}

List without_keys(const Keyed& values) {
  List out;
  for (const auto& [key, value] : values) {
    out.push_back(value);
  }
  return out;
}

// --- filters ---

Value abs_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  if (!value.is_number()) {
    throw Failure{fmt::format("bad operand type for abs(): '{}'", value.type())};
  }
  return value.as_real() < 0 ? evaluator.binary("-", Value::integer(0), value) : value;
}

Value attr_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("attr", given, {"name"});
  return evaluator.attribute(value, bound.text(0, ""));
}

Value batch_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("batch", given, {"linecount", "fill_with"});
  const int64_t count = std::max<int64_t>(1, bound.number(0, 1));
  List out;
  List row;
  for (Value& item : evaluator.elements(value)) {
    if (static_cast<int64_t>(row.size()) == count) {
      out.push_back(Value::list(std::exchange(row, {})));
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    while (bound[1] != nullptr && !bound[1]->is_none() &&
           static_cast<int64_t>(row.size()) < count) {
      evaluator.charge(sizeof(Value));
      row.push_back(*bound[1]);
    }
    out.push_back(Value::list(std::move(row)));
  }
  return Value::generator(std::move(out));
}

Value length_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  return Value::integer(static_cast<Integer>(evaluator.length(value)));
}

Value default_filter(Evaluator&, const Value& value, Arguments& given) {
  const Bound bound("default", given, {"default_value", "boolean"});
  const bool replaced = value.is_undefined() || (bound.flag(1, false) && !value.truthy());
  return !replaced ? value : bound[0] != nullptr ? *bound[0] : Value::string("");
}

Value dictsort_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("dictsort", given, {"case_sensitive", "by", "reverse"});
  if (!value.is_dict()) {
    throw Failure{fmt::format("dictsort needs a dict, not '{}'", value.type())};
  }
  const bool by_value = bound.text(1, "key") == "value";
  Keyed members;
  for (const auto& [key, member] : value.as_dict().members()) {
    members.emplace_back(
        sort_key(evaluator, by_value ? member : key, nullptr, bound.flag(0, false)),
        Value::tuple({key, member}));
  }
  sort_keyed(evaluator, members, bound.flag(2, false));
  return Value::list(without_keys(members));
}

Value escape_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  std::string out;
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kEscaped[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  for (const char c : to_text(value)) {
    if (const size_t special = kSpecial.find(c); special != std::string_view::npos) {
      out += kEscaped[special];
    } else {
      out += c;
    }
  }
  return evaluator.text(std::move(out));
}

Value first_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  List items = evaluator.elements(value);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  List items = evaluator.elements(value);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

/// The number that a text says; nothing when it says none.
std::optional<double> parse_real(std::string_view text) {
  const std::string stripped(strip(text));
  char* end = nullptr;
  const double value = std::strtod(stripped.c_str(), &end);
  const bool hexadecimal = stripped.find_first_of("xX") != std::string::npos;
  return stripped.empty() || *end != '\0' || hexadecimal ? std::nullopt : std::optional(value);
}

Value float_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  evaluator.charge(value.weight() / 8);
  const Bound bound("float", given, {"default"});
  if (value.is_number()) {
    return Value::real(value.as_real());
  }
  const auto parsed = value.is_string() ? parse_real(value.as_string()) : std::nullopt;
  return parsed ? Value::real(*parsed) : bound[0] != nullptr ? *bound[0] : Value::real(0);
}

Value int_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  evaluator.charge(value.weight() / 8);
  const Bound bound("int", given, {"default", "base"});
  const int64_t base = bound.number(1, 10);
  if (value.is_number() && !value.is_real()) {
    return Value::integer(value.as_integer());
  }
  if (value.is_string() && base >= 2 && base <= 36) {
    const std::string text(strip(value.as_string()));
    char* end = nullptr;
    errno = 0;
    const long long whole = std::strtoll(text.c_str(), &end, static_cast<int>(base));
    if (!text.empty() && *end == '\0' && errno == 0) {
      return Value::integer(whole);
    }
  }
  const auto parsed = value.is_real()     ? std::optional(value.as_real())
                      : value.is_string() ? parse_real(value.as_string())
                                          : std::nullopt;
  if (parsed && std::abs(*parsed) < 1e36) {
    return Value::integer(static_cast<Integer>(*parsed));
  }
  return bound[0] != nullptr ? *bound[0] : Value::integer(0);
}

Value format_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  return evaluator.text(percent_format(evaluator, to_text(value), given.positional));
}

Value groupby_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("groupby", given, {"attribute", "default", "case_sensitive"});
  Keyed values = keyed(evaluator, value, bound[0], bound.flag(2, false));
  sort_keyed(evaluator, values, false);
  List out;
  for (size_t i = 0; i < values.size();) {
    List group;
    const size_t first = i;
    for (; i < values.size() && equal(values[i].first, values[first].first); ++i) {
      group.push_back(values[i].second);
    }
    out.push_back(
        Value::tuple({attribute_path(evaluator, group[0], *bound[0]), Value::list(group)}));
  }
  return Value::list(std::move(out));
}

Value indent_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("indent", given, {"width", "first", "blank"});
  const std::string indent =
      bound[0] != nullptr && bound[0]->is_string()
          ? bound[0]->as_string()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(bound.number(0, 4), 0, 1000)), ' ');
  std::string text = need_text(value, "indent");
  text += '\n';
  std::string out;
  if (bound.flag(1, false)) {
    out = indent;
  }
  bool first = true;
  for (const std::string_view line : split_lines(text)) {
    evaluator.charge(indent.size() + line.size() + 1);
    if (!first) {
      out += '\n';
      out.append(indent, 0, line.empty() && !bound.flag(2, false) ? 0 : indent.size());
    }
    first = false;
    out += line;
  }
  return Value::string(std::move(out));
}

Value items_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  if (!value.is_dict() && !value.is_undefined()) {
    throw Failure{"Can only get item pairs from a mapping."};
  }
  List out;
  if (value.is_dict()) {
    for (const auto& [key, member] : value.as_dict().members()) {
      evaluator.charge(4 * sizeof(Value));
      out.push_back(Value::tuple({key, member}));
    }
  }
  return Value::generator(std::move(out));
}

Value join_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("join", given, {"d", "attribute"});
  const std::string separator = bound.text(0, "");
  std::string out;
  bool first = true;
  for (const Value& item : evaluator.elements(value)) {
    const std::string part =
        to_text(bound[1] == nullptr ? item : attribute_path(evaluator, item, *bound[1]));
    evaluator.charge(separator.size() + part.size());
    out.append(separator, 0, first ? 0 : separator.size());
    out += part;
    first = false;
  }
  return Value::string(std::move(out));
}

Value list_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  return Value::list(evaluator.elements(value));
}

/// map and select take what is false for empty, whatever it is.
List elements_if_any(Evaluator& evaluator, const Value& value) {
  return value.truthy() ? evaluator.elements(value) : List();
}

Value map_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  List out;
  if (given.positional.empty()) {
    const Bound bound("map", given, {"attribute", "default"});
    if (bound[0] == nullptr) {
      throw Failure{"map requires a filter argument"};
    }
    for (const Value& item : elements_if_any(evaluator, value)) {
      out.push_back(attribute_path(evaluator, item, *bound[0], bound[1]));
    }
    return Value::generator(std::move(out));
  }
  const std::string name = to_text(given.positional[0]);
  Arguments rest = given;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : elements_if_any(evaluator, value)) {
    out.push_back(evaluator.filter(name, item, rest));
  }
  return Value::generator(std::move(out));
}

/// select, reject, selectattr and rejectattr
template <bool by_attribute, bool wanted>
Value select_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  if (by_attribute && given.positional.empty()) {
    throw Failure{"selectattr and rejectattr need the name of an attribute"};
  }
  const size_t skip = by_attribute ? 1 : 0;
  const bool has_test = given.positional.size() > skip;
  Arguments rest;
  rest.named = given.named;
  for (size_t i = skip + 1; i < given.positional.size(); ++i) {
    rest.positional.push_back(given.positional[i]);
  }
  const std::string test = has_test ? to_text(given.positional[skip]) : "";
  List out;
  for (Value& item : elements_if_any(evaluator, value)) {
    const Value subject =
        by_attribute ? attribute_path(evaluator, item, given.positional[0]) : item;
    if ((has_test ? evaluator.test(test, subject, rest) : subject.truthy()) == wanted) {
      out.push_back(std::move(item));
    }
  }
  return Value::generator(std::move(out));
}

template <bool greatest>
Value extreme_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("min and max", given, {"case_sensitive", "attribute"});
  const Keyed values = keyed(evaluator, value, bound[1], bound.flag(0, false));
  if (values.empty()) {
    return Value::undefined("No aggregated item, sequence was empty.");
  }
  const auto before = [](const auto& a, const auto& b) {
    return greatest ? less(b.first, a.first) : less(a.first, b.first);
  };
  return std::min_element(values.begin(), values.end(), before)->second;
}

Value replace_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("replace", given, {"old", "new", "count"});
  const std::string text = to_text(value);
  const std::string old = bound.text(0, "");
  const std::string with = bound.text(1, "");
  const bool all = bound[2] == nullptr || bound[2]->is_none();
  evaluator.charge((text.size() / std::max<size_t>(1, old.size()) + 1) * (with.size() + 1));
  return evaluator.text(replace(text, old, with, all ? -1 : bound.number(2, -1)));
}

Value reverse_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  List items = evaluator.elements(value);
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) {
    return Value::generator(std::move(items));
  }
  std::string out;
  for (const Value& item : items) {
    out += item.as_string();
  }
  return evaluator.text(std::move(out));
}

Value round_filter(Evaluator&, const Value& value, Arguments& given) {
  const Bound bound("round", given, {"precision", "method"});
  if (!value.is_number()) {
    throw Failure{fmt::format("round needs a number, not '{}'", value.type())};
  }
  const auto precision = static_cast<int>(std::clamp<int64_t>(bound.number(0, 0), 0, 30));
  const std::string method = bound.text(1, "common");
  if (method == "common") {
    return value.is_real()
               ? Value::real(std::strtod(fmt::format("{:.{}f}", value.as_real(), precision).c_str(),
                                         nullptr))
               : value;
  }
  const double scale = std::pow(10.0, precision);
  return Value::real((method == "ceil" ? std::ceil(value.as_real() * scale)
                                       : std::floor(value.as_real() * scale)) /
                     scale);
}

Value same_filter(Evaluator&, const Value& value, Arguments&) {
  return value.is_string() ? value : Value::string(to_text(value));
}

Value slice_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("slice", given, {"slices", "fill_with"});
  const List items = evaluator.elements(value);
  const auto slices = static_cast<size_t>(std::clamp<int64_t>(bound.number(0, 1), 1, 100'000));
  List out;
  for (size_t i = 0, at = 0; i < slices; ++i) {
    evaluator.charge(sizeof(Value));
    const size_t count = items.size() / slices + (i < items.size() % slices ? 1 : 0);
    List part(items.begin() + static_cast<ptrdiff_t>(at),
              items.begin() + static_cast<ptrdiff_t>(at + count));
    at += count;
    if (bound[1] != nullptr && i >= items.size() % slices) {
      part.push_back(*bound[1]);
    }
    out.push_back(Value::list(std::move(part)));
  }
  return Value::generator(std::move(out));
}

Value sort_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("sort", given, {"reverse", "case_sensitive", "attribute"});
  Keyed values = keyed(evaluator, value, bound[2], bound.flag(1, false));
  sort_keyed(evaluator, values, bound.flag(0, false));
  return Value::list(without_keys(values));
}

Value sum_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("sum", given, {"attribute", "start"});
  Value sum = bound[1] != nullptr ? *bound[1] : Value::integer(0);
  for (const Value& item : evaluator.elements(value)) {
    const bool whole = bound[0] == nullptr || bound[0]->is_none();
    sum = evaluator.binary("+", sum, whole ? item : attribute_path(evaluator, item, *bound[0]));
  }
  return sum;
}

Value tojson_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    style.indent = static_cast<int>(std::clamp<int64_t>(bound.number(1, 0), 0, 100));
    style.item_separator = std::string(1, ',');
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const List parts = evaluator.elements(*bound[2]);
    if (parts.size() != 2) {
      throw Failure{"tojson's separators are two texts"};
    }
    style.item_separator = to_text(parts[0]);
    style.key_separator = to_text(parts[1]);
  }
  return evaluator.text(to_json(value, style));
}

Value trim_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("trim", given, {"chars"});
  const Value text = Value::string(to_text(value));
  Arguments arguments;
  if (bound[0] != nullptr) {
    arguments.positional.push_back(*bound[0]);
  }
  return evaluator.call(*method(evaluator, text, "strip"), arguments);
}

Value truncate_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("truncate", given, {"length", "killwords", "end", "leeway"});
  const std::u32string text = to_code_points(to_text(value));
  const std::u32string end = to_code_points(bound.text(2, "..."));
  const int64_t length = bound.number(0, 255);
  const auto size = static_cast<int64_t>(text.size());
  if (size <= length + bound.number(3, 5)) {
    return evaluator.text(to_utf8(text));
  }
  if (length < static_cast<int64_t>(end.size())) {
    throw Failure{"truncate: the length is shorter than what marks the end"};
  }
  std::u32string kept = text.substr(0, static_cast<size_t>(length) - end.size());
  if (!bound.flag(1, false)) {
    kept = kept.substr(0, kept.rfind(U' '));
  }
  return evaluator.text(to_utf8(kept + end));
}

Value unique_filter(Evaluator& evaluator, const Value& value, Arguments& given) {
  const Bound bound("unique", given, {"case_sensitive", "attribute"});
  List seen;
  List out;
  for (auto& [key, item] : keyed(evaluator, value, bound[1], bound.flag(0, false))) {
    evaluator.charge(seen.size() * (1 + key.weight() / 64));
    if (std::none_of(seen.begin(), seen.end(),
                     [&key = key](const Value& old) { return equal(old, key); })) {
      seen.push_back(key);
      out.push_back(item);
    }
  }
  return Value::generator(std::move(out));
}

Value wordcount_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  evaluator.charge(value.weight());
  return Value::integer(static_cast<Integer>(split_words(to_text(value), -1, false).size()));
}

template <std::string (*function)(std::string_view)>
Value recase_filter(Evaluator& evaluator, const Value& value, Arguments&) {
  const std::string text = to_text(value);
  evaluator.charge(4 * text.size());
  return evaluator.text(function(text));
}

// --- tests ---

const Value& other(const Arguments& given) {
  if (given.positional.empty()) {
    throw Failure{"this test compares with a value: one argument is missing"};
  }
  return given.positional[0];
}

template <int remainder>
bool divides(Evaluator& evaluator, const Value& value, Arguments&) {
  return equal(evaluator.binary("%", value, Value::integer(2)), Value::integer(remainder));
}

template <bool (Value::*is)() const>
bool kind_test(Evaluator&, const Value& value, Arguments&) {
  return (value.*is)();
}

const char* const kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
template <int op>
bool compare_test(Evaluator& evaluator, const Value& value, Arguments& given) {
  return evaluator.compare(kOperators[op], value, other(given));
}

template <bool truth>
bool is_boolean_test(Evaluator&, const Value& value, Arguments&) {
  return value.is_boolean() && value.truthy() == truth;
}

bool is_defined_test(Evaluator&, const Value& value, Arguments&) { return !value.is_undefined(); }
bool is_iterable_test(Evaluator&, const Value& value, Arguments&) {
  return value.is_sequence() || value.is_dict() || value.is_string() || value.is_undefined();
}
bool is_sequence_test(Evaluator&, const Value& value, Arguments&) {
  return (value.is_sequence() && !value.is_generator()) || value.is_dict() || value.is_string() ||
         value.is_undefined();
}
bool is_callable_test(Evaluator&, const Value& value, Arguments&) {
  return value.is_object() && value.as_object().callable();
}
bool same_test(Evaluator&, const Value& value, Arguments& given) {
  return value.same(other(given));
}
bool in_test(Evaluator& evaluator, const Value& value, Arguments& given) {
  return evaluator.contains(other(given), value);
}
bool divisible_test(Evaluator& evaluator, const Value& value, Arguments& given) {
  return !evaluator.binary("%", value, other(given)).truthy();
}
bool upper_test(Evaluator& evaluator, const Value& value, Arguments&) {
  evaluator.charge(value.weight());
  return is_upper(to_text(value));
}
bool lower_test(Evaluator& evaluator, const Value& value, Arguments&) {
  evaluator.charge(value.weight());
  return is_lower(to_text(value));
}
bool filter_test(Evaluator&, const Value& value, Arguments&) {
  return value.is_string() && find_filter(value.as_string()) != nullptr;
}
bool test_test(Evaluator&, const Value& value, Arguments&) {
  return value.is_string() && find_test(value.as_string()) != nullptr;
}
bool never_test(Evaluator&, const Value&, Arguments&) { return false; }

const std::map<std::string_view, FilterFunction>& filters() {
  static const std::map<std::string_view, FilterFunction> table = {
      {"abs", abs_filter},
      {"attr", attr_filter},
      {"batch", batch_filter},
      {"capitalize", recase_filter<capitalize>},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"first", first_filter},
      {"float", float_filter},
      {"forceescape", escape_filter},
      {"format", format_filter},
      {"groupby", groupby_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length_filter},
      {"list", list_filter},
      {"lower", recase_filter<to_lower>},
      {"map", map_filter},
      {"max", extreme_filter<true>},
      {"min", extreme_filter<false>},
      {"reject", select_filter<false, false>},
      {"rejectattr", select_filter<true, false>},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"safe", same_filter},
      {"select", select_filter<false, true>},
      {"selectattr", select_filter<true, true>},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"string", same_filter},
      {"sum", sum_filter},
      {"title", recase_filter<begin_words>},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"truncate", truncate_filter},
      {"unique", unique_filter},
      {"upper", recase_filter<to_upper>},
      {"wordcount", wordcount_filter},
  };
  return table;
}

const std::map<std::string_view, TestFunction>& tests() {
  static const std::map<std::string_view, TestFunction> table = {
      {"boolean", kind_test<&Value::is_boolean>},
      {"callable", is_callable_test},
      {"defined", is_defined_test},
      {"divisibleby", divisible_test},
      {"==", compare_test<0>},
      {"eq", compare_test<0>},
      {"equalto", compare_test<0>},
      {"!=", compare_test<1>},
      {"ne", compare_test<1>},
      {"<", compare_test<2>},
      {"lt", compare_test<2>},
      {"lessthan", compare_test<2>},
      {"<=", compare_test<3>},
      {"le", compare_test<3>},
      {">", compare_test<4>},
      {"gt", compare_test<4>},
      {"greaterthan", compare_test<4>},
      {">=", compare_test<5>},
      {"ge", compare_test<5>},
      {"escaped", never_test},
      {"even", divides<0>},
      {"false", is_boolean_test<false>},
      {"filter", filter_test},
      {"float", kind_test<&Value::is_real>},
      {"in", in_test},
      {"integer", kind_test<&Value::is_integer>},
      {"iterable", is_iterable_test},
      {"lower", lower_test},
      {"mapping", kind_test<&Value::is_dict>},
      {"none", kind_test<&Value::is_none>},
      {"number", kind_test<&Value::is_number>},
      {"odd", divides<1>},
      {"sameas", same_test},
      {"sequence", is_sequence_test},
      {"string", kind_test<&Value::is_string>},
      {"test", test_test},
      {"true", is_boolean_test<true>},
      {"undefined", kind_test<&Value::is_undefined>},
      {"upper", upper_test},
  };
  return table;
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  const auto found = filters().find(name);
  return found == filters().end() ? nullptr : found->second;
}

TestFunction find_test(std::string_view name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : found->second;
}

}  // namespace weft::jinja
