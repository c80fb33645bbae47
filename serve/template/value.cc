#include "serve/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/tokenizer/unicode.h"

namespace weft::jinja {
namespace {

constexpr int kDeepestValue = 200;
constexpr size_t kHeaviest = 64 << 20;

/// Adds `part` to a value of `weight` and `depth`.
void hold(const Value& part, size_t& weight, int& depth) {
  weight += part.weight();
  depth = std::max(depth, part.depth() + 1);
  if (depth > kDeepestValue) {
    throw Failure{fmt::format("a value is nested more than {} levels deep", kDeepestValue)};
  }
  if (weight > kHeaviest) {
    throw Failure{fmt::format("a value of more than {} bytes", kHeaviest)};
  }
}

void append_repr(std::string& out, const Value& value, int depth);

void append_string_repr(std::string& out, std::string_view text) {
  const char quote =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"'
                                                                                            : '\'';
  out += quote;
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_sequence_repr(std::string& out, const Sequence& sequence, int depth) {
  const bool tuple = sequence.form == Sequence::Form::tuple;
  out += tuple ? '(' : '[';
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    out += i > 0 ? ", " : "";
    append_repr(out, sequence.items[i], depth + 1);
  }
  out += tuple ? (sequence.items.size() == 1 ? ",)" : ")") : "]";
}

void append_repr(std::string& out, const Value& value, int depth) {
  if (value.is_string()) {
    append_string_repr(out, value.as_string());
  } else if (value.is_sequence()) {
    append_sequence_repr(out, value.as_sequence(), depth);
  } else if (value.is_dict()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.as_dict().members()) {
      out += first ? "" : ", ";
      first = false;
      append_repr(out, key, depth + 1);
      out += ": ";
      append_repr(out, member, depth + 1);
    }
    out += '}';
  } else if (value.is_undefined()) {
    out += depth > 0 ? "Undefined" : "";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_boolean()) {
    out += value.truthy() ? "True" : "False";
  } else if (value.is_integer()) {
    out += fmt::format("{}", value.as_integer());
  } else if (value.is_real()) {
    out += float_repr(value.as_real());
  } else {
    out += value.as_object().text();
  }
}

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const tokenizer::CodePoint c = tokenizer::decode_utf8(text.data() + i);
    const std::string_view bytes = text.substr(i, c.size);
    i += c.size;
    switch (c.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c.value < 0x20 || (ascii && c.value > 0x7e && c.value < 0x10000)) {
          out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
        } else if (ascii && c.value >= 0x10000) {
          const auto rest = static_cast<uint32_t>(c.value) - 0x10000;
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
        } else {
          out += bytes;
        }
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, int depth) {
    if (value.is_string()) {
      append_json_string(out_, value.as_string(), style_.ascii);
    } else if (value.is_sequence() && !value.is_generator()) {
      const List& items = value.as_sequence().items;
      brackets('[', ']', items.size(), depth, [&](size_t i) { write(items[i], depth + 1); });
    } else if (value.is_dict()) {
      write_dict(value.as_dict(), depth);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_boolean()) {
      out_ += value.truthy() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += fmt::format("{}", value.as_integer());
    } else if (value.is_real()) {
      const double real = value.as_real();
      out_ += std::isnan(real)   ? "NaN"
              : std::isinf(real) ? (real > 0 ? "Infinity" : "-Infinity")
                                 : float_repr(real);
    } else {
      throw Failure{fmt::format("Object of type {} is not JSON serializable", value.type())};
    }
  }

 private:
  template <class Item>
  void brackets(char open, char close, size_t count, int depth, const Item& item) {
    out_ += open;
    for (size_t i = 0; i < count; ++i) {
      out_ += i > 0 ? style_.item_separator : "";
      new_line(depth + 1);
      item(i);
    }
    if (count > 0) {
      new_line(depth);
    }
    out_ += close;
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : dict.members()) {
      members.push_back(&member);
    }
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    brackets('{', '}', members.size(), depth, [&](size_t i) {
      const Value& key = members[i]->first;
      if (key.is_string()) {
        append_json_string(out_, key.as_string(), style_.ascii);
      } else {
        out_ += '"';
        write(key, depth + 1);
        out_ += '"';
      }
      out_ += style_.key_separator;
      write(members[i]->second, depth + 1);
    });
  }

  void new_line(int depth) {
    if (style_.indent >= 0) {
      out_ += '\n';
      out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(depth), ' ');
    }
  }

  std::string& out_;
  const JsonStyle& style_;
};

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_real() || b.is_real() ? a.as_real() == b.as_real()
                                      : a.as_integer() == b.as_integer();
  }
  if (a.is_string() && b.is_string()) {
    return a.as_string() == b.as_string();
  }
  if (a.is_sequence() && b.is_sequence() && !a.is_generator()) {
    const Sequence& left = a.as_sequence();
    const Sequence& right = b.as_sequence();
    return left.form == right.form && left.items.size() == right.items.size() &&
           std::equal(left.items.begin(), left.items.end(), right.items.begin(),
                      [&](const Value& x, const Value& y) { return equal(x, y); });
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict& left = a.as_dict();
    const Dict& right = b.as_dict();
    return left.size() == right.size() &&
           std::all_of(left.members().begin(), left.members().end(), [&](const auto& member) {
             const Value* other = right.find(member.first);
             return other != nullptr && equal(member.second, *other);
           });
  }
  if (a.is_undefined() || b.is_undefined()) {
    return a.is_undefined() && b.is_undefined();
  }
  return a.same(b);
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_real() || b.is_real() ? a.as_real() < b.as_real() : a.as_integer() < b.as_integer();
  }
  if (a.is_string() && b.is_string()) {
    return a.as_string() < b.as_string();  // UTF-8 sorts as its code points do
  }
  if (a.is_sequence() && b.is_sequence() && a.as_sequence().form == b.as_sequence().form) {
    const List& left = a.as_sequence().items;
    const List& right = b.as_sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) {
        return less(left[i], right[i]);
      }
    }
    return left.size() < right.size();
  }
  throw Failure{a.is_undefined() ? a.why()
                : b.is_undefined()
                    ? b.why()
                    : fmt::format("'<' not supported between instances of '{}' and '{}'", a.type(),
                                  b.type())};
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : members_) {
    if (equal(name, key)) {
      return &value;
    }
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name.is_string() && name.as_string() == key) {
      return &value;
    }
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (const Value* there = find(key)) {
    *const_cast<Value*>(there) = std::move(value);
  } else {
    members_.emplace_back(std::move(key), std::move(value));
  }
}

Value Value::undefined(std::string why) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(why))}));
}

Value Value::string(std::string value) {
  return Value(Data(std::make_shared<const std::string>(std::move(value))));
}

Value Value::list(List items, Sequence::Form form) {
  Sequence sequence{form, std::move(items)};
  for (const Value& item : sequence.items) {
    hold(item, sequence.weight, sequence.depth);
  }
  return Value(Data(std::make_shared<Sequence>(std::move(sequence))));
}

Value Value::dict(Dict members) {
  members.weight_ = 0;
  members.depth_ = 1;
  for (const auto& [key, member] : members.members_) {
    hold(key, members.weight_, members.depth_);
    hold(member, members.weight_, members.depth_);
  }
  return Value(Data(std::make_shared<const Dict>(std::move(members))));
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return integer(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return real(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return string(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      List items;
      items.reserve(json.size());
      for (const auto& item : json) {
        items.push_back(from_json(item));
      }
      return list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict members;
      for (const auto& [key, member] : json.items()) {
        members.set(string(key), from_json(member));
      }
      return dict(std::move(members));
    }
    default:
      return none();
  }
}

Integer Value::as_integer() const {
  if (const bool* flag = std::get_if<bool>(&data_)) {
    return *flag ? 1 : 0;
  }
  return std::get<Integer>(data_);
}

double Value::as_real() const {
  if (const double* real = std::get_if<double>(&data_)) {
    return *real;
  }
  return static_cast<double>(as_integer());
}

std::string Value::why() const {
  const auto& text = std::get<Undefined>(data_).why;
  return text == nullptr ? "a value is undefined" : *text;
}

size_t Value::weight() const {
  return sizeof(Value) + (is_string()     ? as_string().size()
                          : is_sequence() ? as_sequence().weight
                          : is_dict()     ? as_dict().weight_
                                          : 0);
}

int Value::depth() const {
  return is_sequence() ? as_sequence().depth : is_dict() ? as_dict().depth_ : 0;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) {
    return false;
  }
  if (is_number()) {
    return is_real() ? as_real() != 0 : as_integer() != 0;
  }
  if (is_string()) {
    return !as_string().empty();
  }
  if (is_sequence()) {
    return is_generator() || !as_sequence().items.empty();
  }
  return !is_dict() || as_dict().size() > 0;
}

std::string_view Value::type() const {
  if (is_sequence()) {
    constexpr std::string_view kForms[] = {"list", "tuple", "generator"};
    return kForms[static_cast<size_t>(as_sequence().form)];
  }
  constexpr std::string_view kTypes[] = {"Undefined", "NoneType", "bool", "int",   "float",
                                         "str",       "list",     "dict", "object"};
  return kTypes[data_.index()];
}

bool Value::same(const Value& other) const {
  if (data_.index() != other.data_.index()) {
    return false;
  }
  if (is_none()) {
    return true;
  }
  if (is_number()) {
    return is_real() ? as_real() == other.as_real() : as_integer() == other.as_integer();
  }
  if (is_string()) {
    return as_string() == other.as_string();
  }
  if (is_sequence()) {
    return &as_sequence() == &other.as_sequence();
  }
  if (is_dict()) {
    return &as_dict() == &other.as_dict();
  }
  return is_object() && &as_object() == &other.as_object();
}

std::string to_text(const Value& value) {
  return value.is_string() ? value.as_string() : to_repr(value);
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(out, value, 0);
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(out, style).write(value, 0);
  return out;
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const tokenizer::CodePoint c = tokenizer::decode_utf8(text.data() + i);
    out += c.value;
    i += c.size;
  }
  return out;
}

std::string to_utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) {
    tokenizer::append_utf8(out, c);
  }
  return out;
}

size_t code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const tokenizer::CodePoint c = tokenizer::decode_utf8(text.data());
    if (!is_space(c.value)) {
      break;
    }
    text.remove_prefix(c.size);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const char* last = tokenizer::previous_utf8(text.data(), text.data() + text.size());
    if (!is_space(tokenizer::decode_utf8(last).value)) {
      break;
    }
    text = text.substr(0, static_cast<size_t>(last - text.data()));
  }
  return text;
}

}  // namespace weft::jinja
