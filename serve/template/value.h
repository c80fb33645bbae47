// The values of a chat template: Python's, as far as templates use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace weft::jinja {

/// What stops a parse or a rendering. Evaluation recurses through filters, macros and comparisons,
/// so inside this folder a failure is thrown; parse() and render() (template.h) catch it.
struct Failure {
  std::string message;
};

/// Wide enough for every number of JSON that is whole (nlohmann's are of 64 bits, signed or not).
__extension__ using Integer = __int128;

class Value;
class Object;
class Dict;
using List = std::vector<Value>;

/// A list, a tuple, or what `map`, `select` and the like give: a sequence that can be gone through
/// once and is true even when it is empty.
struct Sequence {
  enum class Form : uint8_t { list, tuple, generator };
  Form form = Form::list;
  List items;
  size_t weight = 0;
  int depth = 1;
  bool consumed = false;  ///< of a generator
};

class Value {
 public:
  struct Undefined {
    std::shared_ptr<const std::string> why;  ///< "'x' is undefined"
  };
  struct None {};

  Value() = default;
  static Value none() { return Value(Data(None{})); }
  static Value undefined(std::string why);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(Integer value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value string(std::string value);
  static Value list(List items, Sequence::Form form = Sequence::Form::list);
  static Value tuple(List items) { return list(std::move(items), Sequence::Form::tuple); }
  static Value generator(List items) { return list(std::move(items), Sequence::Form::generator); }
  static Value dict(Dict members);
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  static Value from_json(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_boolean() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<Integer>(data_); }  ///< not a boolean
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_boolean() || is_integer() || is_real(); }
  bool is_string() const { return std::holds_alternative<String>(data_); }
  bool is_sequence() const { return std::holds_alternative<SequencePointer>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPointer>(data_); }
  bool is_object() const { return std::holds_alternative<ObjectPointer>(data_); }

  // Each asks for what is_...() says; as_integer() and as_real() also take booleans, as Python
  // does.
  Integer as_integer() const;
  double as_real() const;
  const std::string& as_string() const { return *std::get<String>(data_); }
  Sequence& as_sequence() const { return *std::get<SequencePointer>(data_); }
  const Dict& as_dict() const { return *std::get<DictPointer>(data_); }
  Object& as_object() const { return *std::get<ObjectPointer>(data_); }
  /// Why this is undefined.
  std::string why() const;
  bool is_generator() const {
    return is_sequence() && as_sequence().form == Sequence::Form::generator;
  }
  bool is_tuple() const { return is_sequence() && as_sequence().form == Sequence::Form::tuple; }

  bool truthy() const;
  /// About what it takes to go through all of it, in bytes. A value can hold another many times,
  /// and that one another: what would be longer than any text, or nested deeper than the stack is
  /// for, fails where it is made.
  size_t weight() const;
  int depth() const;  ///< of lists and dicts in one another
  /// Python's name of the type, for messages.
  std::string_view type() const;
  /// Whether both are one and the same (Python's `is`).
  bool same(const Value& other) const;

 private:
  using String = std::shared_ptr<const std::string>;
  using SequencePointer = std::shared_ptr<Sequence>;
  using DictPointer = std::shared_ptr<const Dict>;
  using ObjectPointer = std::shared_ptr<Object>;
  using Data = std::variant<Undefined, None, bool, Integer, double, String, SequencePointer,
                            DictPointer, ObjectPointer>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

/// Members in the order in which they came.
class Dict {
 public:
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Keeps the place of a key that is there.
  void set(Value key, Value value);
  const std::vector<std::pair<Value, Value>>& members() const { return members_; }
  size_t size() const { return members_.size(); }

 private:
  friend class Value;
  std::vector<std::pair<Value, Value>> members_;
  size_t weight_ = 0;
  int depth_ = 1;
};

/// The arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// What has attributes of its own or can be called: namespaces, loops, macros, methods, functions.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::optional<Value> attribute(std::string_view) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value call(Arguments&) { throw Failure{"this object cannot be called"}; }
  virtual std::string text() const { return "<object>"; }
  /// Lets go of all values it holds, of which one may hold it. Nothing else is asked of it then.
  virtual void release() {}
};

/// A function of the host.
class Function : public Object {
 public:
  explicit Function(std::function<Value(Arguments&)> body) : body_(std::move(body)) {}
  bool callable() const override { return true; }
  Value call(Arguments& arguments) override { return body_(arguments); }
  void release() override { body_ = nullptr; }

 private:
  std::function<Value(Arguments&)> body_;
};

/// Python's str() and repr().
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
std::string float_repr(double value);

/// Python's json.dumps(value, ensure_ascii=..., indent=..., separators=..., sort_keys=...).
struct JsonStyle {
  bool ascii = false;
  int indent = -1;  ///< below 0: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

bool equal(const Value& a, const Value& b);
/// a < b; fails for what Python does not order.
bool less(const Value& a, const Value& b);

/// Strings are Python's: sequences of code points. All texts here are valid UTF-8.
std::u32string to_code_points(std::string_view text);
std::string to_utf8(std::u32string_view text);
size_t code_points(std::string_view text);
/// str.isspace() of one character.
bool is_space(char32_t c);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
inline std::string_view strip(std::string_view text) { return strip_left(strip_right(text)); }

}  // namespace weft::jinja
