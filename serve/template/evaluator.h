// Carries out a template's statements. One evaluator renders once.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/template/syntax.h"
#include "serve/template/value.h"

namespace weft::jinja {

/// What one rendering may take. A template is a stranger's program.
struct Limits {
  int64_t steps = 5'000'000;    ///< expressions, statements and elements gone through
  int64_t bytes = 128ll << 20;  ///< of all texts and lists made on the way
  int64_t output = 64ll << 20;  ///< bytes
  int depth = 600;              ///< of evaluation: macros that call themselves, too
};

/// The variables of a block. Those of blocks around it are seen through `parent`.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;  ///< names are the template's

  void set(std::string_view name, Value value);
};

class Evaluator {
 public:
  Evaluator(const Limits& limits, std::time_t now);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// `variables` are what the template sees. Throws Failure, with the line.
  std::string render(const Body& body, std::vector<std::pair<std::string_view, Value>> variables);

  // What filters, tests and methods are made of:

  /// Counts work on `bytes` bytes or elements against the limits.
  void charge(size_t bytes);
  /// Whoever is called looks through its arguments, at least.
  void charge(const Arguments& given);
  /// A text that was made here.
  Value text(std::string value);
  /// An object that holds values. It lives as long as this does, and is released then, youngest
  /// first: objects that hold one another in a ring go, and a long chain of them does not go by
  /// recursion.
  template <class T>
  std::shared_ptr<T> keep(std::shared_ptr<T> object) {
    charge(sizeof(T));
    objects_.push_back(object);
    return object;
  }
  /// The elements of a value, as a loop goes through them: a copy of the pointers. Fails for what
  /// has none.
  List elements(const Value& of);
  size_t length(const Value& of);
  bool contains(const Value& container, const Value& element);
  Value attribute(const Value& of, std::string_view name);
  Value item(const Value& of, const Value& index);
  Value slice(const Value& of, const Value& start, const Value& stop, const Value& step);
  Value filter(std::string_view name, const Value& value, Arguments& arguments);
  bool test(std::string_view name, const Value& value, Arguments& arguments);
  Value call(const Value& function, Arguments& arguments);
  Value binary(std::string_view op, const Value& a, const Value& b);
  bool compare(std::string_view op, const Value& a, const Value& b);

 private:
  friend class Macro;
  friend class Loop;
  enum class Flow { next, break_, continue_ };
  class Deeper;

  Value evaluate(const Expression& expression);
  Value evaluate_operator(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value lookup(std::string_view name);
  Arguments arguments(const Expression& expression);

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow loop(const Statement& statement, const Value& over, int depth);
  void print(std::string_view text);
  void assign(const Expression& target, const Value& value);
  void call_block(const Statement& statement);
  std::string captured(const Body& body);
  Value captured_and_filtered(const Expression* filter, const Body& body);
  Value call_macro(class Macro& macro, Arguments& arguments);
  void add_globals();

  Limits limits_;
  std::time_t now_;
  int depth_ = 0;
  int line_ = 0;  ///< of the template, where it is at
  std::string* out_ = nullptr;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Object>> objects_;
};

/// Arguments by the names of their parameters, as Python binds them.
class Bound {
 public:
  /// Fails for an argument that no parameter takes, naming `what`.
  Bound(std::string_view what, const Arguments& arguments,
        std::initializer_list<std::string_view> names);
  /// Null for one that was not given.
  const Value* operator[](size_t parameter) const { return values_[parameter]; }
  bool flag(size_t parameter, bool otherwise) const;
  int64_t number(size_t parameter, int64_t otherwise) const;
  std::string text(size_t parameter, std::string_view otherwise) const;

 private:
  std::string_view what_;
  std::vector<const Value*> values_;
};

/// A whole number in the range of what indexes and widths can be; fails for anything else.
int64_t small_number(const Value& value, std::string_view what);

/// A method of a text, a dict or a list; nothing where there is none of this name.
std::optional<Value> method(Evaluator& evaluator, const Value& of, std::string_view name);

using FilterFunction = Value (*)(Evaluator&, const Value&, Arguments&);
using TestFunction = bool (*)(Evaluator&, const Value&, Arguments&);
/// Null when there is none of this name: an error where it is come to, since templates ask `if`
/// before they use what not everybody has.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

/// Python's `format % arguments` with %s, %r, %d, %i, %x, %f and their widths.
std::string percent_format(Evaluator& evaluator, const std::string& format, const List& arguments);

}  // namespace weft::jinja
