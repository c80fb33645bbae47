// JSON schemas (draft 2020-12): what OpenAI's strict mode takes, and some more. What is generated
// is always valid; not all that is valid is generated: keys come in the schema's order, numbers
// have up to 16 digits, white space is short, and an object that names its properties has no others
// unless additionalProperties says so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "model/tokenizer/unicode.h"
#include "serve/grammar/rules.h"

namespace weft::grammar {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

constexpr int kDeepestSchema = 64;
constexpr size_t kMostTuple = 200;
constexpr int64_t kGreatest = 9'999'999'999'999'999;

const std::set<std::string>& annotations() {
  static const std::set<std::string> names = {
      "title",      "description", "default",   "examples", "$schema",     "$id",    "$comment",
      "deprecated", "readOnly",    "writeOnly", "$defs",    "definitions", "$anchor"};
  return names;
}

/// The keywords that say something of each type.
const std::map<std::string, std::set<std::string>>& keywords() {
  static const std::map<std::string, std::set<std::string>> names = {
      {"object", {"properties", "required", "additionalProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"boolean", {}},
      {"null", {}},
  };
  return names;
}

const std::map<std::string, std::string>& formats() {
  static const std::string date =
      R"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))";
  static const std::string time =
      R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
  static const std::string name = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?";
  static const std::string byte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  static const std::map<std::string, std::string> patterns = {
      {"date", date},
      {"time", time},
      {"date-time", date + "T" + time},
      {"duration", R"(P(\d{1,4}D(T\d{1,4}H)?|T\d{1,4}(H(\d{1,4}M)?|M(\d{1,4}S)?|S)|\d{1,4}[YMW]))"},
      {"email",
       R"([a-zA-Z0-9_+-]{1,30}(\.[a-zA-Z0-9_+-]{1,30})?@)" + name + R"((\.)" + name + "){1,3}"},
      {"hostname", name + R"((\.)" + name + "){0,3}"},
      {"ipv4", byte + R"((\.)" + byte + "){3}"},
      {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
  };
  return patterns;
}

Expression digits(int least, int most) { return repeat(set({{'0', '9'}}), least, most); }
Expression maybe(Expression part) { return repeat(std::move(part), 0, 1); }

/// The numbers from `low` to `high`, which have as many digits.
Expression between(const std::string& low, const std::string& high) {
  if (low.empty()) {
    return sequence({});
  }
  const auto rest = static_cast<int>(low.size()) - 1;
  if (rest == 0) {
    return set({{low[0], high[0]}});
  }
  if (low[0] == high[0]) {
    return sequence({text(low.substr(0, 1)), between(low.substr(1), high.substr(1))});
  }
  const std::string zeros(static_cast<size_t>(rest), '0');
  const std::string nines(static_cast<size_t>(rest), '9');
  const bool from_zeros = low.substr(1) == zeros;
  const bool to_nines = high.substr(1) == nines;
  std::vector<Expression> parts;
  if (!from_zeros) {
    parts.push_back(sequence({text(low.substr(0, 1)), between(low.substr(1), nines)}));
  }
  const auto first = static_cast<char32_t>(low[0] + (from_zeros ? 0 : 1));
  const auto last = static_cast<char32_t>(high[0] - (to_nines ? 0 : 1));
  if (first <= last) {
    parts.push_back(sequence({set({{first, last}}), digits(rest, rest)}));
  }
  if (!to_nines) {
    parts.push_back(sequence({text(high.substr(0, 1)), between(zeros, high.substr(1))}));
  }
  return choice(std::move(parts));
}

/// Whole numbers from `low` to `high`, neither below 0; none when low > high.
std::vector<Expression> naturals(int64_t low, int64_t high) {
  std::vector<Expression> out;
  while (low <= high) {
    const std::string from = std::to_string(low);
    const int64_t longest = std::stoll(std::string(from.size(), '9'));
    const int64_t to = std::min(high, longest);
    out.push_back(between(from, std::to_string(to)));
    low = to + 1;
  }
  return out;
}

class Compiler {
 public:
  explicit Compiler(const Json& root) : root_(root) {
    const Expression hex = set({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    const Expression unit = choice({
        sequence(
            {set({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}), repeat(hex, 3, 3)}),
        sequence({set({{'d', 'd'}, {'D', 'D'}}), set({{'0', '7'}}), repeat(hex, 2, 2)}),
        sequence({set({{'d', 'd'}, {'D', 'D'}}), set({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}),
                  repeat(hex, 2, 2), text("\\u"), set({{'d', 'd'}, {'D', 'D'}}),
                  set({{'c', 'f'}, {'C', 'F'}}), repeat(hex, 2, 2)}),
    });
    character_ = out_.add("character",
                          choice({not_in({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}),
                                  sequence({text("\\"), choice({set({{'"', '"'},
                                                                     {'\\', '\\'},
                                                                     {'/', '/'},
                                                                     {'b', 'b'},
                                                                     {'f', 'f'},
                                                                     {'n', 'n'},
                                                                     {'r', 'r'},
                                                                     {'t', 't'}}),
                                                                sequence({text("u"), unit})})})}));
    string_ =
        out_.add("string", sequence({text("\""), repeat(out_.rules[character_], 0), text("\"")}));
    space_ = out_.add(
        "space",
        maybe(choice(
            {text(" "), sequence({text("\n"), repeat(set({{'\t', '\t'}, {' ', ' '}}), 0, 20)})})));
    number_ =
        out_.add("number",
                 sequence({maybe(text("-")),
                           choice({text("0"), sequence({set({{'1', '9'}}), digits(0, 15)})}),
                           maybe(sequence({text("."), digits(1, 16)})),
                           maybe(sequence({set({{'e', 'e'}, {'E', 'E'}}),
                                           maybe(set({{'+', '+'}, {'-', '-'}})), digits(1, 2)}))}));
    value_ = out_.add("value");
    const Expression member = sequence({rule(string_), colon(), rule(value_)});
    object_ = out_.add(
        "object",
        listed("{", maybe(sequence({member, repeat(sequence({comma(), member}), 0)})), "}"));
    array_ = out_.add(
        "array",
        listed("[", maybe(sequence({rule(value_), repeat(sequence({comma(), rule(value_)}), 0)})),
               "]"));
    out_.rules[value_] = choice({rule(object_), rule(array_), rule(string_), rule(number_),
                                 text("true"), text("false"), text("null")});
  }

  Rules object() {
    out_.root = object_;
    return std::move(out_);
  }

  Rules run() {
    out_.root = reference("#");
    return std::move(out_);
  }

 private:
  [[noreturn]] static void fail(const std::string& path, std::string_view what) {
    throw Failure{fmt::format("JSON schema, {}: {}", path, what)};
  }
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }
  static std::string dump(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // What stands between the values of a list or an object.
  Expression comma() const { return sequence({rule(space_), text(","), rule(space_)}); }
  Expression colon() const { return sequence({rule(space_), text(":"), rule(space_)}); }
  Expression listed(const char* open, Expression inside, const char* close) const {
    return sequence({text(open), rule(space_), std::move(inside), rule(space_), text(close)});
  }

  /// The rule of the schema that a $ref names.
  size_t reference(const std::string& pointer) {
    if (const auto there = references_.find(pointer); there != references_.end()) {
      return there->second;
    }
    const Json* at = nullptr;
    try {
      const Json::json_pointer path(pointer.substr(1));
      at = root_.contains(path) ? &root_.at(path) : nullptr;
    } catch (const Json::exception&) {
      at = nullptr;
    }
    if (at == nullptr) {
      fail(pointer, "$ref names what is not there");
    }
    const size_t index = out_.add(pointer);
    references_[pointer] = index;
    Expression expression = schema(*at, pointer, 0);
    out_.rules[index] = std::move(expression);
    return index;
  }

  Expression schema(const Json& schema, const std::string& path, int depth) {
    if (depth > kDeepestSchema || references_.size() > 10'000) {
      fail(path, fmt::format("schemas more than {} deep", kDeepestSchema));
    }
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) {
        fail(path, "nothing is valid by the schema false");
      }
      return rule(value_);
    }
    if (!schema.is_object()) {
      fail(path, fmt::format("{} is no schema", shown(schema)));
    }
    check_keywords(schema, path);
    if (schema.contains("$ref")) {
      alone(schema, "$ref", path);
      const std::string pointer = need_string(schema["$ref"], path + "/$ref");
      if (!pointer.starts_with("#")) {
        fail(path, fmt::format("$ref '{}' is not in this schema: only # and #/... are", pointer));
      }
      return rule(reference(pointer));
    }
    if (schema.contains("allOf")) {
      const Json& all = schema["allOf"];
      alone(schema, "allOf", path);
      if (!all.is_array() || all.size() != 1) {
        fail(path, "allOf is supported with one schema in it only");
      }
      return this->schema(all[0], path + "/allOf/0", depth + 1);
    }
    if (schema.contains("anyOf")) {
      alone(schema, "anyOf", path);
      return any_of(schema["anyOf"], path + "/anyOf", depth);
    }
    if (schema.contains("const")) {
      return text(dump(schema["const"]));
    }
    if (schema.contains("enum")) {
      return enumeration(schema, path);
    }
    return typed(schema, path, depth);
  }

  void check_keywords(const Json& schema, const std::string& path) const {
    static const std::set<std::string> structural = {"type",  "enum",  "const",
                                                     "anyOf", "allOf", "$ref"};
    for (const auto& [keyword, value] : schema.items()) {
      const bool known =
          structural.contains(keyword) || annotations().contains(keyword) ||
          std::any_of(keywords().begin(), keywords().end(),
                      [&key = keyword](const auto& type) { return type.second.contains(key); });
      if (!known) {
        fail(path, fmt::format("the keyword '{}' is not supported{}", keyword,
                               keyword == "oneOf" ? ": use anyOf" : ""));
      }
    }
  }

  void alone(const Json& schema, const std::string& keyword, const std::string& path) const {
    for (const auto& [other, value] : schema.items()) {
      if (other != keyword && !annotations().contains(other)) {
        fail(path, fmt::format("the keyword '{}' beside {} is not supported", other, keyword));
      }
    }
  }

  Expression any_of(const Json& schemas, const std::string& path, int depth) {
    if (!schemas.is_array() || schemas.empty()) {
      fail(path, "a list of schemas is needed");
    }
    std::vector<Expression> parts;
    for (size_t i = 0; i < schemas.size(); ++i) {
      parts.push_back(schema(schemas[i], fmt::format("{}/{}", path, i), depth + 1));
    }
    return choice(std::move(parts));
  }

  Names types(const Json& schema, const std::string& path) const {
    Names out;
    if (schema.contains("type")) {
      const Json& type = schema["type"];
      for (const Json& one : type.is_array() ? type : Json::array({type})) {
        if (!one.is_string() || !keywords().contains(one.get<std::string>())) {
          fail(path,
               fmt::format(
                   "the type {} is none of object, array, string, number, integer, boolean, null",
                   shown(one)));
        }
        out.push_back(one.get<std::string>());
      }
      if (out.empty()) {
        fail(path, "the type is an empty list");
      }
      return out;
    }
    for (const auto& [type, names] : keywords()) {  // what is said of a type makes it that type
      if (type != "integer" &&
          std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return schema.contains(name); })) {
        out.push_back(type);
      }
    }
    return out;
  }

  static bool is_of(const Json& value, const std::string& type) {
    const bool whole =
        value.is_number_integer() ||
        (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
    return type == "object"    ? value.is_object()
           : type == "array"   ? value.is_array()
           : type == "string"  ? value.is_string()
           : type == "number"  ? value.is_number()
           : type == "integer" ? whole
           : type == "boolean" ? value.is_boolean()
                               : value.is_null();
  }

  Expression enumeration(const Json& schema, const std::string& path) {
    const Json& values = schema["enum"];
    const Names types = schema.contains("type") ? this->types(schema, path) : Names();
    std::vector<Expression> parts;
    for (const Json& value : values.is_array() ? values : Json::array()) {
      if (types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
            return is_of(value, type);
          })) {
        parts.push_back(text(dump(value)));
      }
    }
    if (parts.empty()) {
      fail(path, "enum has no value of the type");
    }
    return choice(std::move(parts));
  }

  Expression typed(const Json& schema, const std::string& path, int depth) {
    const Names types = this->types(schema, path);
    if (types.empty()) {
      return rule(value_);
    }
    std::vector<Expression> parts;
    for (const std::string& type : types) {
      if (type == "object") {
        parts.push_back(object(schema, path, depth));
      } else if (type == "array") {
        parts.push_back(array(schema, path, depth));
      } else if (type == "string") {
        parts.push_back(string(schema, path));
      } else if (type == "number" || type == "integer") {
        parts.push_back(number(schema, path, type == "integer"));
      } else if (type == "boolean") {
        parts.push_back(choice({text("true"), text("false")}));
      } else {
        parts.push_back(text("null"));
      }
    }
    return parts.size() == 1 ? std::move(parts[0]) : choice(std::move(parts));
  }

  // --- objects ---

  Expression object(const Json& schema, const std::string& path, int depth) {
    static const Json none = Json::object();
    const Json& properties = schema.contains("properties") ? schema["properties"] : none;
    if (!properties.is_object()) {
      fail(path, "properties must be an object");
    }
    std::set<std::string> required;
    if (schema.contains("required")) {
      for (const Json& name :
           schema["required"].is_array() ? schema["required"] : Json::array({nullptr})) {
        required.insert(need_string(name, path + "/required"));
      }
    }
    const bool open = schema.contains("additionalProperties")
                          ? schema["additionalProperties"] != Json(false)
                          : !schema.contains("properties");
    struct Member {
      size_t rule;
      bool required;
    };
    std::vector<Member> members;
    Names names;
    const auto member = [&](const std::string& name, Expression value) {
      const size_t index =
          out_.add(path + "/" + name, sequence({text(dump(name)), colon(), std::move(value)}));
      members.push_back({index, required.contains(name)});
      names.push_back(name);
    };
    for (const auto& [name, value] : properties.items()) {
      member(name, this->schema(value, fmt::format("{}/properties/{}", path, name), depth + 1));
    }
    for (const std::string& name : required) {
      if (!properties.contains(name)) {
        if (!open) {
          fail(path, fmt::format("'{}' is required, but it is no property", name));
        }
        member(name, rule(value_));
      }
    }
    Expression more = sequence({});
    Expression first_more = sequence({});
    if (open) {
      const bool plain =
          !schema.contains("additionalProperties") || schema["additionalProperties"].is_boolean();
      Expression value = plain ? rule(value_)
                               : this->schema(schema["additionalProperties"],
                                              path + "/additionalProperties", depth + 1);
      const Expression key =
          names.empty() ? rule(string_) : sequence({text("\""), key_but(names, 0), text("\"")});
      const Expression other =
          rule(out_.add(path + "/*", sequence({key, colon(), std::move(value)})));
      more = repeat(sequence({comma(), other}), 0);
      first_more = maybe(sequence({other, more}));
    }
    // `head`: nothing was written so far; `tail`: something was, so that a comma comes first.
    size_t tail = out_.add(path + "/tail", std::move(more));
    size_t head = out_.add(path + "/head", std::move(first_more));
    for (size_t i = members.size(); i-- > 0;) {
      const Expression one = rule(members[i].rule);
      Expression first = sequence({one, rule(tail)});
      Expression next = sequence({comma(), one, rule(tail)});
      if (!members[i].required) {
        first = choice({std::move(first), rule(head)});
        next = choice({std::move(next), rule(tail)});
      }
      head = out_.add(path + "/head", std::move(first));
      tail = out_.add(path + "/tail", std::move(next));
    }
    return listed("{", rule(head), "}");
  }

  /// What a key may be that is none of `names`, from character `at` of them on, without escapes.
  static Expression key_but(const Names& names, size_t at) {
    constexpr size_t kLongestShared =
        64;  // a longer beginning of one of the names is not begun with
    if (at >= kLongestShared) {
      return set({});
    }
    std::map<char32_t, Names> by_first;
    bool ends = false;
    for (const std::string& name : names) {
      if (name.size() == at) {
        ends = true;
      } else {
        by_first[tokenizer::decode_utf8(name.data() + at).value].push_back(name);
      }
    }
    std::vector<std::pair<char32_t, char32_t>> not_these = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    const Expression any = not_in(not_these);
    std::vector<Expression> parts;
    for (const auto& [first, rest] : by_first) {
      not_these.emplace_back(first, first);
      std::string bytes;
      tokenizer::append_utf8(bytes, first);
      const size_t next = at + bytes.size();
      if (first >= 0x20 && first != '"' && first != '\\') {
        parts.push_back(sequence({text(std::move(bytes)), key_but(rest, next)}));
      }
    }
    parts.push_back(sequence({not_in(not_these), repeat(any, 0)}));
    if (!ends) {
      parts.push_back(sequence({}));
    }
    return choice(std::move(parts));
  }

  // --- arrays ---

  Expression array(const Json& schema, const std::string& path, int depth) {
    std::vector<Expression> first;
    if (schema.contains("prefixItems")) {
      const Json& items = schema["prefixItems"];
      if (!items.is_array() || items.size() > kMostTuple) {
        fail(path, fmt::format("prefixItems must be a list of at most {} schemas", kMostTuple));
      }
      for (size_t i = 0; i < items.size(); ++i) {
        first.push_back(rule(out_.add(
            path, this->schema(items[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1))));
      }
    }
    const bool closed = schema.contains("items") && schema["items"] == Json(false);
    Expression other = rule(value_);
    if (!closed && schema.contains("items")) {
      other = rule(out_.add(path + "/items"));
      Expression items = this->schema(schema["items"], path + "/items", depth + 1);
      out_.rules[other.rule] = std::move(items);
    }
    const int least = count(schema, "minItems", 0, path);
    int most = count(schema, "maxItems", Expression::kUnbounded, path);
    const auto fixed = static_cast<int>(first.size());
    most = closed && (most == Expression::kUnbounded || most > fixed) ? fixed : most;
    if (most != Expression::kUnbounded && most < least) {
      fail(path, fmt::format("minItems is {}, but there can be {} only", least, most));
    }
    // From the end: what comes behind element i, and whether it must.
    Expression rest = sequence({});
    const int begin = std::max(fixed, 1);
    if (most == Expression::kUnbounded || most > begin) {
      rest = repeat(sequence({comma(), other}), std::max(0, least - begin),
                    most == Expression::kUnbounded ? most : most - begin);
    }
    for (int i = begin - 1; i >= 0; --i) {
      if (most != Expression::kUnbounded && i >= most) {
        continue;
      }
      const Expression one = i < fixed ? first[static_cast<size_t>(i)] : other;
      Expression here =
          i > 0 ? sequence({comma(), one, std::move(rest)}) : sequence({one, std::move(rest)});
      rest = i < least ? std::move(here) : maybe(std::move(here));
    }
    return listed("[", std::move(rest), "]");
  }

  static int count(const Json& schema, const char* keyword, int otherwise,
                   const std::string& path) {
    if (!schema.contains(keyword)) {
      return otherwise;
    }
    const Json& value = schema[keyword];
    const double number = value.is_number() ? value.get<double>() : -1;
    if (number < 0 || number > kMostRepeats || std::floor(number) != number) {
      fail(path, fmt::format("{} is {}; a whole number up to {} is needed", keyword, shown(value),
                             kMostRepeats));
    }
    return static_cast<int>(number);
  }

  // --- strings ---

  static std::string need_string(const Json& value, const std::string& path) {
    if (!value.is_string()) {
      fail(path, fmt::format("{} is no text", shown(value)));
    }
    return value.get<std::string>();
  }

  Expression string(const Json& schema, const std::string& path) {
    const bool counted = schema.contains("minLength") || schema.contains("maxLength");
    const int given = (counted ? 1 : 0) + (schema.contains("pattern") ? 1 : 0) +
                      (schema.contains("format") ? 1 : 0);
    if (given == 0) {
      return rule(string_);
    }
    if (given > 1) {
      fail(path, "of pattern, format and a length, only one is supported at a time");
    }
    if (counted) {
      const int least = count(schema, "minLength", 0, path);
      const int most = count(schema, "maxLength", Expression::kUnbounded, path);
      if (most != Expression::kUnbounded && most < least) {
        fail(path, fmt::format("minLength {} is more than maxLength {}", least, most));
      }
      return sequence({text("\""), repeat(rule(character_), least, most), text("\"")});
    }
    std::string pattern;
    if (schema.contains("format")) {
      const std::string format = need_string(schema["format"], path + "/format");
      const auto known = formats().find(format);
      if (known == formats().end()) {
        fail(path, fmt::format("the format '{}' is not supported", format));
      }
      pattern = "^(" + known->second + ")$";
    } else {
      pattern = need_string(schema["pattern"], path + "/pattern");
    }
    auto inside = regex_expression(pattern, true);
    if (!inside.ok()) {
      fail(path + "/pattern", inside.error().message);
    }
    std::vector<Expression> parts = {text("\"")};
    if (!pattern.starts_with('^')) {  // a pattern may be found anywhere
      parts.push_back(repeat(rule(character_), 0));
    }
    parts.push_back(std::move(inside).value());
    if (!pattern.ends_with('$') || pattern.ends_with("\\$")) {
      parts.push_back(repeat(rule(character_), 0));
    }
    parts.push_back(text("\""));
    return sequence(std::move(parts));
  }

  // --- numbers ---

  /// A bound as the nearest whole number that keeps it; `up`: not below. An exclusive one is not
  /// met itself.
  static int64_t bound(const Json& schema, const char* keyword, const char* exclusive, bool up,
                       int64_t otherwise, const std::string& path) {
    int64_t out = otherwise;
    for (const char* name : {keyword, exclusive}) {
      if (!schema.contains(name)) {
        continue;
      }
      if (!schema[name].is_number()) {
        fail(path, fmt::format("{} is {}; a number is needed", name, shown(schema[name])));
      }
      const auto value = std::clamp(schema[name].get<double>(), -static_cast<double>(kGreatest),
                                    static_cast<double>(kGreatest));
      auto whole = static_cast<int64_t>(up ? std::ceil(value) : std::floor(value));
      if (name == exclusive && static_cast<double>(whole) == value) {
        whole += up ? 1 : -1;
      }
      out = up ? std::max(out, whole) : std::min(out, whole);
    }
    return out;
  }

  Expression number(const Json& schema, const std::string& path, bool whole) {
    const auto& names = keywords().at("number");
    if (!whole && std::none_of(names.begin(), names.end(),
                               [&](const std::string& name) { return schema.contains(name); })) {
      return rule(number_);
    }
    const int64_t low = bound(schema, "minimum", "exclusiveMinimum", true, -kGreatest, path);
    const int64_t high = bound(schema, "maximum", "exclusiveMaximum", false, kGreatest, path);
    std::vector<Expression> parts = naturals(std::max<int64_t>(0, low), high);
    for (Expression& negative : naturals(std::max<int64_t>(1, -high), -low)) {
      parts.push_back(sequence({text("-"), std::move(negative)}));
    }
    if (!whole) {
      // n and a fraction that is not 0 lie between n and n + 1; the bounds as they were given, not
      // met themselves.
      const Expression fraction = sequence({text("."), digits(0, 15), set({{'1', '9'}})});
      const int64_t from = floor_of(schema, "minimum", "exclusiveMinimum", true);
      const int64_t to = floor_of(schema, "maximum", "exclusiveMaximum", false);
      for (Expression& part : naturals(std::max<int64_t>(0, from), to - 1)) {
        parts.push_back(sequence({std::move(part), fraction}));
      }
      for (Expression& part : naturals(std::max<int64_t>(0, -to), -from - 1)) {
        parts.push_back(sequence({text("-"), std::move(part), fraction}));
      }
    }
    if (parts.empty()) {
      fail(path, "no number that can be written in few digits lies between the bounds");
    }
    return choice(std::move(parts));
  }

  /// The least whole number at or above the lower bound, or the greatest at or below the upper one.
  static int64_t floor_of(const Json& schema, const char* keyword, const char* exclusive, bool up) {
    double value = up ? -static_cast<double>(kGreatest) : static_cast<double>(kGreatest);
    for (const char* name : {keyword, exclusive}) {
      if (schema.contains(name)) {
        value = up ? std::max(value, schema[name].get<double>())
                   : std::min(value, schema[name].get<double>());
      }
    }
    value = std::clamp(value, -static_cast<double>(kGreatest), static_cast<double>(kGreatest));
    return static_cast<int64_t>(up ? std::ceil(value) : std::floor(value));
  }

  const Json& root_;
  Rules out_;
  std::map<std::string, size_t> references_;
  size_t character_ = 0, string_ = 0, space_ = 0, number_ = 0, value_ = 0, object_ = 0, array_ = 0;
};

}  // namespace

Result<Rules> read_schema(const nlohmann::ordered_json& schema) {
  try {
    return Compiler(schema).run();
  } catch (const Failure& failure) {
    return input_error(failure.message);
  }
}

Rules json_object() {
  static const Json none;
  return Compiler(none).object();
}

}  // namespace weft::grammar
