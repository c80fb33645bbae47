#include "serve/template/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/template/text.h"

namespace weft::jinja {

using EKind = Expression::Kind;
using SKind = Statement::Kind;

namespace {

/// Python's indices: from the end when negative.
bool in_range(int64_t& index, size_t size) {
  index += index < 0 ? static_cast<int64_t>(size) : 0;
  return index >= 0 && index < static_cast<int64_t>(size);
}

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  throw Failure{a.is_undefined() ? a.why()
                : b.is_undefined()
                    ? b.why()
                    : fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type(),
                                  b.type())};
}

Value integer_operation(std::string_view op, Integer a, Integer b) {
  Integer out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (b == 0 || b == -1) {  // -1: the least number has no opposite
    if (b == 0) {
      throw Failure{"integer division or modulo by zero"};
    }
    overflow = op == "//" && __builtin_sub_overflow(static_cast<Integer>(0), a, &out);
  } else {
    const Integer rest = a % b;
    const bool floor = rest != 0 && (rest < 0) != (b < 0);
    out = op == "%" ? rest + (floor ? b : 0) : a / b - (floor ? 1 : 0);
  }
  if (overflow) {
    throw Failure{"a whole number of more than 127 bits"};
  }
  return Value::integer(out);
}

Value power(const Value& a, const Value& b) {
  if (!a.is_real() && !b.is_real() && b.as_integer() >= 0) {
    Value out = Value::integer(1);
    if (b.as_integer() > 127 && a.as_integer() != 0 && a.as_integer() != 1) {
      throw Failure{"a whole number of more than 127 bits"};
    }
    for (Integer i = 0; i < std::min<Integer>(b.as_integer(), 128); ++i) {
      out = integer_operation("*", out.as_integer(), a.as_integer());
    }
    return out;
  }
  return Value::real(std::pow(a.as_real(), b.as_real()));
}

Value number_operation(std::string_view op, const Value& a, const Value& b) {
  if (op == "**") {
    return power(a, b);
  }
  if (!a.is_real() && !b.is_real() && op != "/") {
    return integer_operation(op, a.as_integer(), b.as_integer());
  }
  const double x = a.as_real();
  const double y = b.as_real();
  if (op == "+" || op == "-") {
    return Value::real(op == "+" ? x + y : x - y);
  }
  if (op == "*") {
    return Value::real(x * y);
  }
  if (y == 0) {
    throw Failure{"division by zero"};
  }
  if (op == "/") {
    return Value::real(x / y);
  }
  const double quotient = std::floor(x / y);
  return Value::real(op == "//" ? quotient : x - quotient * y);
}

std::string_view type_of(const Value& value) {
  return value.is_none() ? std::string_view("None") : value.type();
}

}  // namespace

/// A name space that a template makes to set variables from inside a loop.
class Namespace : public Object {
 public:
  std::optional<Value> attribute(std::string_view name) override {
    const Value* there = members_.find(name);
    return there == nullptr ? std::nullopt : std::optional<Value>(*there);
  }
  void set(std::string_view name, Value value) {
    members_.set(Value::string(std::string(name)), std::move(value));
  }
  std::string text() const override {
    return "<Namespace>";  // it may hold itself
  }
  void release() override { members_ = Dict(); }

 private:
  Dict members_;
};

class Macro : public Object {
 public:
  Macro(Evaluator& evaluator, const Statement& statement, std::shared_ptr<Scope> scope)
      : evaluator_(evaluator), statement_(statement), scope_(std::move(scope)) {}
  bool callable() const override { return true; }
  Value call(Arguments& arguments) override { return evaluator_.call_macro(*this, arguments); }
  std::optional<Value> attribute(std::string_view name) override {
    return name == "name" ? std::optional<Value>(Value::string(statement_.text)) : std::nullopt;
  }
  void release() override { scope_.reset(); }

 private:
  friend class Evaluator;
  Evaluator& evaluator_;
  const Statement& statement_;
  std::shared_ptr<Scope> scope_;
};

/// `loop` inside of a loop.
class Loop : public Object {
 public:
  Loop(Evaluator& evaluator, const Statement& statement, const List& items, int depth)
      : evaluator_(evaluator), statement_(statement), items_(items), depth_(depth) {}

  std::optional<Value> attribute(std::string_view name) override {
    const auto number = [](size_t value) { return Value::integer(static_cast<Integer>(value)); };
    if (name == "index" || name == "index0") {
      return number(index_ + (name == "index" ? 1 : 0));
    }
    if (name == "first" || name == "last") {
      return Value::boolean(name == "first" ? index_ == 0 : index_ + 1 == items_.size());
    }
    if (name == "length") {
      return number(items_.size());
    }
    if (name == "revindex" || name == "revindex0") {
      return number(items_.size() - index_ - (name == "revindex" ? 0 : 1));
    }
    if (name == "previtem") {
      return index_ > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
    }
    if (name == "nextitem") {
      return index_ + 1 < items_.size() ? items_[index_ + 1]
                                        : Value::undefined("there is no next item");
    }
    if (name == "depth" || name == "depth0") {
      return number(static_cast<size_t>(depth_) + (name == "depth" ? 1 : 0));
    }
    if (name == "cycle") {
      return Value::object(std::make_shared<Function>([index = index_](Arguments& arguments) {
        if (arguments.positional.empty()) {
          throw Failure{"no items for cycling given"};
        }
        return arguments.positional[index % arguments.positional.size()];
      }));
    }
    if (name == "changed") {
      return Value::object(std::make_shared<Function>([this](Arguments& arguments) {
        const Value now = Value::tuple(arguments.positional);
        const bool changed = !equal(now, last_);
        last_ = now;
        return Value::boolean(changed);
      }));
    }
    return std::nullopt;
  }
  bool callable() const override { return statement_.recursive; }
  Value call(Arguments& arguments) override {
    if (arguments.positional.size() != 1 || !callable()) {
      throw Failure{"loop() takes what to go through, in a loop that is recursive"};
    }
    std::string text;
    std::string* out = std::exchange(evaluator_.out_, &text);
    evaluator_.loop(statement_, arguments.positional[0], depth_ + 1);
    evaluator_.out_ = out;
    return evaluator_.text(std::move(text));
  }
  void next() { ++index_; }
  void release() override {
    items_.clear();
    last_ = Value();
  }

 private:
  Evaluator& evaluator_;
  const Statement& statement_;
  List items_;
  int depth_;
  size_t index_ = 0;
  Value last_;
};

class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator.charge(1);
    if (++evaluator_.depth_ > evaluator_.limits_.depth) {
      --evaluator_.depth_;
      throw Failure{"the template calls itself too deep"};
    }
  }
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

void Scope::set(std::string_view name, Value value) {
  for (auto& [there, old] : variables) {
    if (there == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::Evaluator(const Limits& limits, std::time_t now)
    : limits_(limits), now_(now), scope_(std::make_shared<Scope>()) {
  add_globals();
}

Evaluator::~Evaluator() {
  std::for_each(objects_.rbegin(), objects_.rend(), [](const auto& object) { object->release(); });
}

std::string Evaluator::render(const Body& body,
                              std::vector<std::pair<std::string_view, Value>> variables) {
  for (auto& [name, value] : variables) {
    scope_->set(name, std::move(value));
  }
  const std::shared_ptr<Scope> root = std::make_shared<Scope>();
  root->parent = scope_;
  scope_ = root;
  std::string out;
  out_ = &out;
  try {
    execute(body);
  } catch (Failure& failure) {
    failure.message = fmt::format("line {}: {}", line_, failure.message);
    throw;
  }
  return out;
}

void Evaluator::charge(size_t bytes) {
  if (--limits_.steps < 0) {
    throw Failure{"the template takes too many steps"};
  }
  limits_.bytes -= static_cast<int64_t>(std::min<size_t>(bytes, 1ull << 62));
  if (limits_.bytes < 0) {
    throw Failure{"the template makes too much text"};
  }
}

void Evaluator::charge(const Arguments& given) {
  for (const Value& value : given.positional) {
    charge(value.weight() / 8);
  }
  for (const auto& [name, value] : given.named) {
    charge(value.weight() / 8);
  }
}

Value Evaluator::text(std::string value) {
  charge(value.size());
  return Value::string(std::move(value));
}

// --- statements ---

Evaluator::Flow Evaluator::execute(const Body& body) {
  for (const auto& statement : body) {
    if (const Flow flow = execute(*statement); flow != Flow::next) {
      return flow;
    }
  }
  return Flow::next;
}

Evaluator::Flow Evaluator::execute(const Statement& statement) {
  const Deeper deeper(*this);
  const auto& expressions = statement.expressions;
  switch (statement.kind) {
    case SKind::text:
      print(statement.text);
      break;
    case SKind::print:
      print(to_text(evaluate(*expressions[0])));
      break;
    case SKind::if_:
      for (size_t i = 0; i < statement.bodies.size(); ++i) {
        if (i >= expressions.size() || evaluate(*expressions[i]).truthy()) {
          return execute(statement.bodies[i]);
        }
      }
      break;
    case SKind::for_:
      return loop(statement, evaluate(*expressions[1]), 0);
    case SKind::set:
      assign(*expressions[0], evaluate(*expressions[1]));
      break;
    case SKind::set_block:
      assign(*expressions[0], captured_and_filtered(expressions[1].get(), statement.bodies[0]));
      break;
    case SKind::macro: {
      scope_->set(statement.text,
                  Value::object(keep(std::make_shared<Macro>(*this, statement, scope_))));
      break;
    }
    case SKind::call:
      call_block(statement);
      break;
    case SKind::filter:
      print(to_text(captured_and_filtered(expressions[0].get(), statement.bodies[0])));
      break;
    case SKind::with: {
      const auto inner = std::make_shared<Scope>();
      List values;
      for (size_t i = 1; i < expressions.size(); i += 2) {
        values.push_back(evaluate(*expressions[i]));
      }
      inner->parent = scope_;
      scope_ = inner;
      for (size_t i = 0; i < values.size(); ++i) {
        assign(*expressions[2 * i], values[i]);
      }
      const Flow flow = execute(statement.bodies[0]);
      scope_ = inner->parent;
      return flow;
    }
    case SKind::scope:
      return execute(statement.bodies[0]);
    case SKind::break_:
      return Flow::break_;
    case SKind::continue_:
      return Flow::continue_;
  }
  return Flow::next;
}

Evaluator::Flow Evaluator::loop(const Statement& statement, const Value& over, int depth) {
  const std::shared_ptr<Scope> outer = scope_;
  const auto fresh = [&] {  // what one round sets, the next does not see
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
  };
  List items = elements(over);
  const Expression& target = *statement.expressions[0];
  if (const Expression* test = statement.expressions[2].get()) {
    List kept;
    for (Value& item : items) {
      fresh();
      assign(target, item);
      if (evaluate(*test).truthy()) {
        kept.push_back(std::move(item));
      }
    }
    items = std::move(kept);
  }
  const auto state = keep(std::make_shared<Loop>(*this, statement, items, depth));
  bool any = false;
  for (const Value& item : items) {
    any = true;
    fresh();
    assign(target, item);
    scope_->set("loop", Value::object(state));
    const Flow flow = execute(statement.bodies[0]);
    state->next();
    if (flow == Flow::break_) {
      break;
    }
  }
  scope_ = outer;
  return any ? Flow::next : execute(statement.bodies[1]);
}

void Evaluator::print(std::string_view text) {
  charge(text.size());
  out_->append(text);
  if (out_->size() > static_cast<size_t>(limits_.output)) {
    throw Failure{"the template makes too much text"};
  }
}

void Evaluator::assign(const Expression& target, const Value& value) {
  if (target.kind == EKind::name) {
    scope_->set(target.text, value);
  } else if (target.kind == EKind::namespace_attribute) {
    const Value of = lookup(target.text);
    auto* space = of.is_object() ? dynamic_cast<Namespace*>(&of.as_object()) : nullptr;
    if (space == nullptr) {
      throw Failure{
          fmt::format("cannot assign attribute on non-namespace object '{}'", target.text)};
    }
    space->set(target.value.as_string(), value);
  } else {
    const List parts = elements(value);
    if (parts.size() != target.operands.size()) {
      throw Failure{fmt::format("{} values cannot be assigned to {} names", parts.size(),
                                target.operands.size())};
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      assign(*target.operands[i], parts[i]);
    }
  }
}

std::string Evaluator::captured(const Body& body) {
  std::string text;
  std::string* out = std::exchange(out_, &text);
  const auto outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
  execute(body);
  scope_ = outer;
  out_ = out;
  return text;
}

Value Evaluator::captured_and_filtered(const Expression* filters, const Body& body) {
  Value value = text(captured(body));
  std::vector<const Expression*> chain;
  for (; filters != nullptr; filters = filters->operands[0].get()) {
    chain.push_back(filters);
  }
  for (auto filter = chain.rbegin(); filter != chain.rend(); ++filter) {
    Arguments given = arguments(**filter);
    value = this->filter((*filter)->text, value, given);
  }
  return value;
}

void Evaluator::call_block(const Statement& statement) {
  const Expression& expression = *statement.expressions[0];
  Arguments given = arguments(expression);
  const auto caller = keep(std::make_shared<Macro>(*this, statement, scope_));
  given.named.emplace_back("caller", Value::object(caller));
  const Value function = evaluate(*expression.operands[0]);
  print(to_text(call(function, given)));
}

Value Evaluator::call_macro(Macro& macro, Arguments& given) {
  const Deeper deeper(*this);
  const Statement& statement = macro.statement_;
  const auto inner = std::make_shared<Scope>();
  inner->parent = macro.scope_;
  const std::shared_ptr<Scope> outer = std::exchange(scope_, inner);
  const auto& parameters = statement.parameters;
  List rest;
  for (size_t i = 0; i < given.positional.size(); ++i) {
    if (i < parameters.size()) {
      inner->set(parameters[i].first, given.positional[i]);
    } else {
      rest.push_back(given.positional[i]);
    }
  }
  Dict others;
  for (auto& [name, value] : given.named) {
    const auto parameter = std::find_if(parameters.begin(), parameters.end(),
                                        [&name = name](const auto& p) { return p.first == name; });
    if (parameter != parameters.end()) {
      inner->set(parameter->first, value);
    } else if (name == "caller") {
      inner->set("caller", value);
    } else {
      others.set(Value::string(name), value);
    }
  }
  for (const auto& [name, otherwise] : parameters) {
    const bool set =
        std::any_of(inner->variables.begin(), inner->variables.end(),
                    [&name = name](const auto& variable) { return variable.first == name; });
    if (!set) {
      inner->set(name, otherwise != nullptr ? evaluate(*otherwise)
                                            : Value::undefined(fmt::format(
                                                  "parameter '{}' was not provided", name)));
    }
  }
  inner->set("varargs", Value::tuple(std::move(rest)));
  inner->set("kwargs", Value::dict(std::move(others)));
  std::string text = captured(statement.bodies[0]);
  scope_ = outer;
  return this->text(std::move(text));
}

// --- expressions ---

Value Evaluator::lookup(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    charge(scope->variables.size());
    for (const auto& [there, value] : scope->variables) {
      if (there == name) {
        return value;
      }
    }
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Value Evaluator::evaluate(const Expression& expression) {
  const Deeper deeper(*this);
  line_ = expression.line;
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case EKind::constant:
      return expression.value;
    case EKind::name:
      return lookup(expression.text);
    case EKind::attribute:
      return attribute(operand(0), expression.text);
    case EKind::item: {
      const Expression& index = *expression.operands[1];
      if (index.kind != EKind::slice) {
        return item(operand(0), operand(1));
      }
      const auto part = [&](size_t i) {
        return index.operands[i] == nullptr ? Value::none() : evaluate(*index.operands[i]);
      };
      return slice(operand(0), part(0), part(1), part(2));
    }
    case EKind::call:
    case EKind::filter:
    case EKind::test:
      return evaluate_call(expression);
    case EKind::list:
    case EKind::tuple: {
      List items;
      for (const auto& element : expression.operands) {
        items.push_back(evaluate(*element));
      }
      return expression.kind == EKind::list ? Value::list(std::move(items))
                                            : Value::tuple(std::move(items));
    }
    case EKind::dict: {
      Dict members;
      for (size_t i = 0; i < expression.operands.size(); i += 2) {
        Value key = operand(i);
        members.set(std::move(key), operand(i + 1));
      }
      return Value::dict(std::move(members));
    }
    case EKind::conditional:
      if (operand(0).truthy()) {
        return operand(1);
      }
      return expression.operands[2] != nullptr ? operand(2)
                                               : Value::undefined(
                                                     "the inline if-expression evaluated to false "
                                                     "and no else section was defined");
    default:
      return evaluate_operator(expression);
  }
}

Value Evaluator::evaluate_operator(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  switch (expression.kind) {
    case EKind::and_:
      return left.truthy() ? evaluate(*expression.operands[1]) : left;
    case EKind::or_:
      return left.truthy() ? left : evaluate(*expression.operands[1]);
    case EKind::compare:
      for (size_t i = 0; i < expression.operators.size(); ++i) {
        Value right = evaluate(*expression.operands[i + 1]);
        if (!compare(expression.operators[i], left, right)) {
          return Value::boolean(false);
        }
        left = std::move(right);
      }
      return Value::boolean(true);
    case EKind::concat: {
      std::string out = to_text(left);
      for (size_t i = 1; i < expression.operands.size(); ++i) {
        out += to_text(evaluate(*expression.operands[i]));
      }
      return text(std::move(out));
    }
    case EKind::unary:
      if (expression.text == "not") {
        return Value::boolean(!left.truthy());
      }
      if (!left.is_number()) {
        throw Failure{left.is_undefined() ? left.why()
                                          : fmt::format("bad operand type for unary {}: '{}'",
                                                        expression.text, left.type())};
      }
      return number_operation(expression.text, Value::integer(0), left);
    default:
      return binary(expression.text, left, evaluate(*expression.operands[1]));
  }
}

Arguments Evaluator::arguments(const Expression& expression) {
  Arguments out;
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    out.positional.push_back(evaluate(*expression.operands[i]));
  }
  for (const auto& [name, value] : expression.named) {
    out.named.emplace_back(name, evaluate(*value));
  }
  if (expression.spread != nullptr) {
    for (Value& value : elements(evaluate(*expression.spread))) {
      out.positional.push_back(std::move(value));
    }
  }
  if (expression.spread_named != nullptr) {
    const Value more = evaluate(*expression.spread_named);
    if (!more.is_dict()) {
      throw Failure{"what follows ** in a call must be a dict"};
    }
    for (const auto& [name, value] : more.as_dict().members()) {
      out.named.emplace_back(to_text(name), value);
    }
  }
  return out;
}

Value Evaluator::evaluate_call(const Expression& expression) {
  const Value subject = evaluate(*expression.operands[0]);
  Arguments given = arguments(expression);
  if (expression.kind == EKind::filter) {
    return filter(expression.text, subject, given);
  }
  if (expression.kind == EKind::test) {
    return Value::boolean(test(expression.text, subject, given));
  }
  return call(subject, given);
}

Value Evaluator::call(const Value& function, Arguments& given) {
  if (function.is_undefined()) {
    throw Failure{function.why()};
  }
  if (!function.is_object() || !function.as_object().callable()) {
    throw Failure{fmt::format("'{}' object is not callable", function.type())};
  }
  charge(given);
  return function.as_object().call(given);
}

Value Evaluator::filter(std::string_view name, const Value& value, Arguments& given) {
  const FilterFunction function = find_filter(name);
  if (function == nullptr) {
    throw Failure{fmt::format("no filter named '{}'", name)};
  }
  charge(given);
  return function(*this, value, given);
}

bool Evaluator::test(std::string_view name, const Value& value, Arguments& given) {
  const TestFunction function = find_test(name);
  if (function == nullptr) {
    throw Failure{fmt::format("no test named '{}'", name)};
  }
  charge(given);
  return function(*this, value, given);
}

Value Evaluator::binary(std::string_view op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return number_operation(op, a, b);
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    return text(a.as_string() + b.as_string());
  }
  if (op == "+" && a.is_sequence() && b.is_sequence() && a.type() == b.type() &&
      !a.is_generator()) {
    List items = a.as_sequence().items;
    const List& more = b.as_sequence().items;
    charge((items.size() + more.size()) * sizeof(Value));
    items.insert(items.end(), more.begin(), more.end());
    return Value::list(std::move(items), a.as_sequence().form);
  }
  if (op == "%" && a.is_string()) {
    return text(
        percent_format(*this, a.as_string(), b.is_tuple() ? b.as_sequence().items : List{b}));
  }
  if (op == "*" && (a.is_integer() || b.is_integer())) {
    const Value& whole = a.is_integer() ? b : a;
    const int64_t times = std::max<int64_t>(0, small_number(a.is_integer() ? a : b, "a count"));
    if (whole.is_string()) {
      const size_t size = whole.as_string().size() * static_cast<size_t>(times);
      charge(size);
      std::string out;
      out.reserve(size);
      out.append(whole.as_string(), 0, size);
      while (out.size() < size) {  // what is there once more, at most
        out.append(out.data(), std::min(out.size(), size - out.size()));
      }
      return Value::string(std::move(out));
    }
    if (whole.is_sequence() && !whole.is_generator()) {
      const Sequence& sequence = whole.as_sequence();
      charge(sequence.items.size() * static_cast<size_t>(times) * sizeof(Value));
      List items;
      for (int64_t i = 0; i < times && !sequence.items.empty(); ++i) {
        items.insert(items.end(), sequence.items.begin(), sequence.items.end());
      }
      return Value::list(std::move(items), sequence.form);
    }
  }
  unsupported(op, a, b);
}

bool Evaluator::compare(std::string_view op, const Value& a, const Value& b) {
  charge(std::min(a.weight(), b.weight()) / 16);
  if (op == "==") {
    return equal(a, b);
  }
  if (op == "!=") {
    return !equal(a, b);
  }
  if (op == "in") {
    return contains(b, a);
  }
  if (op == "not in") {
    return !contains(b, a);
  }
  const bool swapped = op == ">" || op == "<=";
  const bool before = swapped ? less(b, a) : less(a, b);
  return op == "<" || op == ">" ? before : !before;
}

bool Evaluator::contains(const Value& container, const Value& element) {
  if (container.is_string()) {
    if (!element.is_string()) {
      throw Failure{element.is_undefined()
                        ? element.why()
                        : fmt::format("'in <string>' requires string as left operand, not {}",
                                      element.type())};
    }
    charge(container.as_string().size() / 8);
    return find(container.as_string(), element.as_string()) != std::string::npos;
  }
  if (container.is_dict()) {
    charge(container.as_dict().size());
    return container.as_dict().find(element) != nullptr;
  }
  const List items = elements(container);
  charge(items.size() * (element.weight() / 64));
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, element); });
}

List Evaluator::elements(const Value& of) {
  List out;
  if (of.is_sequence()) {
    Sequence& sequence = of.as_sequence();
    if (of.is_generator() && std::exchange(sequence.consumed, true)) {
      return out;
    }
    out = sequence.items;
  } else if (of.is_dict()) {
    for (const auto& member : of.as_dict().members()) {
      out.push_back(member.first);
    }
  } else if (of.is_string()) {
    charge(of.as_string().size() * sizeof(Value));
    for (const char32_t c : to_code_points(of.as_string())) {
      out.push_back(Value::string(to_utf8({&c, 1})));
    }
  } else if (!of.is_undefined()) {
    throw Failure{fmt::format("'{}' object is not iterable", of.type())};
  }
  charge(out.size() * sizeof(Value));
  return out;
}

size_t Evaluator::length(const Value& of) {
  if (of.is_string()) {
    charge(of.as_string().size() / 16);
    return code_points(of.as_string());
  }
  if (of.is_dict()) {
    return of.as_dict().size();
  }
  if (of.is_sequence() && !of.is_generator()) {
    return of.as_sequence().items.size();
  }
  if (of.is_undefined()) {
    return 0;
  }
  throw Failure{fmt::format("object of type '{}' has no len()", of.type())};
}

Value Evaluator::attribute(const Value& of, std::string_view name) {
  if (of.is_undefined()) {
    throw Failure{of.why()};
  }
  if (std::optional<Value> found =
          of.is_object() ? of.as_object().attribute(name) : method(*this, of, name)) {
    return *std::move(found);
  }
  if (of.is_dict()) {
    charge(of.as_dict().size());
    if (const Value* member = of.as_dict().find(name)) {
      return *member;
    }
  }
  return Value::undefined(of.is_none()
                              ? fmt::format("'None' has no attribute '{}'", name)
                              : fmt::format("'{} object' has no attribute '{}'", of.type(), name));
}

Value Evaluator::item(const Value& of, const Value& index) {
  if (of.is_undefined()) {
    throw Failure{of.why()};
  }
  if (of.is_dict() && !index.is_sequence() && !index.is_dict()) {
    charge(of.as_dict().size() * (1 + index.weight() / 64));
    if (const Value* member = of.as_dict().find(index)) {
      return *member;
    }
  } else if ((of.is_sequence() || of.is_string()) && index.is_number() && !index.is_real()) {
    int64_t i = small_number(index, "an index");
    if (of.is_sequence() && !of.is_generator() && in_range(i, of.as_sequence().items.size())) {
      return of.as_sequence().items[static_cast<size_t>(i)];
    }
    if (of.is_string()) {
      charge(of.as_string().size());
      const std::u32string characters = to_code_points(of.as_string());
      if (in_range(i, characters.size())) {
        return text(to_utf8({&characters[static_cast<size_t>(i)], 1}));
      }
    }
  }
  if (index.is_string()) {
    return attribute(of, index.as_string());
  }
  return Value::undefined(fmt::format("{}{} has no element {}", type_of(of),
                                      of.is_none() ? "" : " object",
                                      index.weight() < 200 ? to_repr(index) : "of that name"));
}

Value Evaluator::slice(const Value& of, const Value& start, const Value& stop, const Value& step) {
  if (of.is_undefined()) {
    throw Failure{of.why()};
  }
  if (!of.is_string() && (!of.is_sequence() || of.is_generator())) {
    return Value::undefined(fmt::format("'{} object' cannot be sliced", of.type()));
  }
  charge(of.is_string() ? of.as_string().size() : of.as_sequence().items.size());
  const std::u32string characters =
      of.is_string() ? to_code_points(of.as_string()) : std::u32string();
  const auto size =
      static_cast<int64_t>(of.is_string() ? characters.size() : of.as_sequence().items.size());
  const int64_t by = step.is_none() ? 1 : small_number(step, "a slice");
  if (by == 0) {
    throw Failure{"slice step cannot be zero"};
  }
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) {
      return otherwise;
    }
    int64_t i = small_number(value, "a slice");
    i += i < 0 ? size : 0;
    return by > 0 ? std::clamp<int64_t>(i, 0, size) : std::clamp<int64_t>(i, -1, size - 1);
  };
  const int64_t first = bound(start, by > 0 ? 0 : size - 1);
  const int64_t last = bound(stop, by > 0 ? size : -1);
  std::u32string letters;
  List items;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
    if (of.is_string()) {
      letters += characters[static_cast<size_t>(i)];
    } else {
      items.push_back(of.as_sequence().items[static_cast<size_t>(i)]);
    }
  }
  charge(items.size() * sizeof(Value));
  return of.is_string() ? text(to_utf8(letters))
                        : Value::list(std::move(items), of.as_sequence().form);
}

// --- what every template finds ---

void Evaluator::add_globals() {
  const auto add = [this](std::string_view name, std::function<Value(Arguments&)> body) {
    scope_->set(name, Value::object(std::make_shared<Function>(std::move(body))));
  };
  add("raise_exception", [](Arguments& given) -> Value {
    throw Failure{given.positional.empty() ? "the template refuses this request"
                                           : to_text(given.positional[0])};
  });
  add("namespace", [this](Arguments& given) {
    const auto space = keep(std::make_shared<Namespace>());
    for (const Value& from : given.positional) {
      if (!from.is_dict()) {
        throw Failure{"namespace() takes dicts and named values"};
      }
      for (const auto& [name, value] : from.as_dict().members()) {
        charge(1);
        space->set(to_text(name), value);
      }
    }
    for (const auto& [name, value] : given.named) {
      space->set(name, value);
    }
    return Value::object(space);
  });
  add("dict", [](Arguments& given) {
    Dict members = given.positional.empty() || !given.positional[0].is_dict()
                       ? Dict()
                       : given.positional[0].as_dict();
    for (const auto& [name, value] : given.named) {
      members.set(Value::string(name), value);
    }
    return Value::dict(std::move(members));
  });
  add("range", [this](Arguments& given) {
    const List& bounds = given.positional;
    if (bounds.empty() || bounds.size() > 3) {
      throw Failure{"range() takes one to three numbers"};
    }
    const int64_t start = bounds.size() > 1 ? small_number(bounds[0], "range()") : 0;
    const int64_t stop = small_number(bounds[bounds.size() > 1 ? 1 : 0], "range()");
    const int64_t step = bounds.size() > 2 ? small_number(bounds[2], "range()") : 1;
    if (step == 0) {
      throw Failure{"range() arg 3 must not be zero"};
    }
    constexpr size_t kLongest = 100'000;  // as Jinja's sandbox
    List items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
      if (items.size() >= kLongest) {
        throw Failure{fmt::format("range too big: more than {} elements", kLongest)};
      }
      items.push_back(Value::integer(i));
    }
    charge(items.size() * sizeof(Value));
    return Value::list(std::move(items));
  });
  add("strftime_now", [this](Arguments& given) {
    const Bound bound("strftime_now", given, {"format"});
    std::tm local{};
    localtime_r(&now_, &local);
    char buffer[256];
    const std::string format = bound.text(0, "%Y-%m-%d");
    return text(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local)));
  });
  add("joiner", [](Arguments& given) {
    const Bound bound("joiner", given, {"sep"});
    const auto used = std::make_shared<bool>(false);
    return Value::object(
        std::make_shared<Function>([used, separator = bound.text(0, ", ")](Arguments&) {
          return Value::string(std::exchange(*used, true) ? separator : "");
        }));
  });
}

// --- arguments ---

Bound::Bound(std::string_view what, const Arguments& arguments,
             std::initializer_list<std::string_view> names)
    : what_(what), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    throw Failure{fmt::format("{} takes at most {} arguments", what, names.size())};
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto* const there = std::find(names.begin(), names.end(), name);
    if (there == names.end()) {
      throw Failure{fmt::format("{} takes no argument '{}'", what, name)};
    }
    values_[static_cast<size_t>(there - names.begin())] = &value;
  }
}

bool Bound::flag(size_t parameter, bool otherwise) const {
  return values_[parameter] == nullptr ? otherwise : values_[parameter]->truthy();
}

int64_t Bound::number(size_t parameter, int64_t otherwise) const {
  return values_[parameter] == nullptr ? otherwise : small_number(*values_[parameter], what_);
}

std::string Bound::text(size_t parameter, std::string_view otherwise) const {
  return values_[parameter] == nullptr ? std::string(otherwise) : to_text(*values_[parameter]);
}

int64_t small_number(const Value& value, std::string_view what) {
  constexpr Integer kMost = 1ll << 40;
  if (!value.is_number() || value.is_real()) {
    throw Failure{value.is_undefined()
                      ? value.why()
                      : fmt::format("{} must be a whole number, not '{}'", what, value.type())};
  }
  return static_cast<int64_t>(std::clamp<Integer>(value.as_integer(), -kMost, kMost));
}

}  // namespace weft::jinja
