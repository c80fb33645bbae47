#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "serve/template/lexer.h"
#include "serve/template/syntax.h"

namespace weft::jinja {
namespace {

using EKind = Expression::Kind;
using SKind = Statement::Kind;

/// Statements inside statements, and expressions inside expressions.
constexpr int kDeepestBlock = 100;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Body parse() {
    Body body = statements({});
    return body;
  }

 private:
  // --- tokens ---

  const Token& current(size_t ahead = 0) const {
    static const Token end{Token::Kind::end_block, "", {}, 0};
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead] : end;
  }
  bool at_end() const { return at_ >= tokens_.size(); }
  bool is_operator(std::string_view text, size_t ahead = 0) const {
    return current(ahead).kind == Token::Kind::operator_ && current(ahead).text == text;
  }
  bool is_name(std::string_view text, size_t ahead = 0) const {
    return current(ahead).kind == Token::Kind::name && current(ahead).text == text;
  }
  bool skip_operator(std::string_view text) { return is_operator(text) && (++at_, true); }
  bool skip_name(std::string_view text) { return is_name(text) && (++at_, true); }

  [[noreturn]] void fail(std::string_view wanted) const {
    const Token& token = current();
    throw Failure{
        fmt::format("line {}: {} expected, not {}",
                    at_end() && !tokens_.empty() ? tokens_.back().line : token.line, wanted,
                    at_end() ? "the end of the template"
                    : token.kind == Token::Kind::end_block || token.kind == Token::Kind::end_print
                        ? "the end of the tag"
                    : token.kind == Token::Kind::number ? "a number"
                    : token.kind == Token::Kind::text   ? "text"
                                                        : "'" + token.text + "'")};
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) {
      fail(fmt::format("'{}'", text));
    }
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) {
      fail(fmt::format("'{}'", text));
    }
  }
  std::string take_name() {
    if (current().kind != Token::Kind::name) {
      fail("a name");
    }
    return tokens_[at_++].text;
  }
  void end_tag() {
    if (at_end() || current().kind != Token::Kind::end_block) {
      fail("'%}'");
    }
    ++at_;
  }

  /// Counts what is open; a template that nests deeper than anybody writes is refused before the
  /// stack is used up.
  class Nested {
   public:
    explicit Nested(Parser& parser) : depth_(parser.depth_) {
      if (++depth_ > kDeepestBlock) {
        throw Failure{fmt::format("line {}: nested more than {} levels deep", parser.current().line,
                                  kDeepestBlock)};
      }
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  // --- statements ---

  /// Up to a tag that starts with one of `ends`, whose name is current then; or to the end of the
  /// template.
  Body statements(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Body body;
    while (!at_end()) {
      const Token& token = tokens_[at_];
      auto statement = std::make_unique<Statement>();
      statement->line = token.line;
      ++at_;
      if (token.kind == Token::Kind::text) {
        statement->text = token.text;
      } else if (token.kind == Token::Kind::begin_print) {
        statement->kind = SKind::print;
        statement->expressions.push_back(tuple());
        if (current().kind != Token::Kind::end_print) {
          fail("'}}'");
        }
        ++at_;
      } else {
        if (std::any_of(ends.begin(), ends.end(),
                        [&](std::string_view end) { return is_name(end); })) {
          return body;
        }
        tag(*statement);
      }
      body.push_back(std::move(statement));
    }
    if (ends.size() > 0) {
      fail(fmt::format("'{}'", *(ends.end() - 1)));
    }
    return body;
  }

  Body block(std::string_view end) {
    end_tag();
    Body body = statements({end});
    expect_name(end);
    end_tag();
    return body;
  }

  void tag(Statement& out) {
    const std::string name = take_name();
    if (name == "if") {
      if_tag(out);
    } else if (name == "for") {
      for_tag(out);
    } else if (name == "set") {
      set_tag(out);
    } else if (name == "macro") {
      out.kind = SKind::macro;
      out.text = take_name();
      signature(out);
      out.bodies.push_back(block("endmacro"));
    } else if (name == "call") {
      out.kind = SKind::call;
      if (is_operator("(")) {
        signature(out);
      }
      out.expressions.push_back(expression());
      if (out.expressions[0]->kind != EKind::call) {
        fail("a call");
      }
      out.bodies.push_back(block("endcall"));
    } else if (name == "filter") {
      out.kind = SKind::filter;
      out.expressions.push_back(filters(nullptr, true));
      out.bodies.push_back(block("endfilter"));
    } else if (name == "with") {
      with_tag(out);
    } else if (name == "generation") {
      out.kind = SKind::scope;
      out.bodies.push_back(block("endgeneration"));
    } else if ((name == "break" || name == "continue") && loops_ > 0) {
      out.kind = name == "break" ? SKind::break_ : SKind::continue_;
      end_tag();
    } else {
      --at_;
      fail("the name of a tag");
    }
  }

  void if_tag(Statement& out) {
    out.kind = SKind::if_;
    for (bool more = true; more;) {
      out.expressions.push_back(tuple(/*conditional=*/false));
      end_tag();
      out.bodies.push_back(statements({"elif", "else", "endif"}));
      more = skip_name("elif");
    }
    if (skip_name("else")) {
      end_tag();
      out.bodies.push_back(statements({"endif"}));
    }
    expect_name("endif");
    end_tag();
  }

  void for_tag(Statement& out) {
    out.kind = SKind::for_;
    out.expressions.push_back(target(false));
    expect_name("in");
    out.expressions.push_back(tuple(/*conditional=*/false));
    out.expressions.push_back(skip_name("if") ? expression() : nullptr);
    out.recursive = skip_name("recursive");
    end_tag();
    ++loops_;
    out.bodies.push_back(statements({"else", "endfor"}));
    --loops_;
    out.bodies.emplace_back();
    if (skip_name("else")) {
      end_tag();
      out.bodies.back() = statements({"endfor"});
    }
    expect_name("endfor");
    end_tag();
  }

  void set_tag(Statement& out) {
    out.expressions.push_back(target(true));
    if (skip_operator("=")) {
      out.kind = SKind::set;
      out.expressions.push_back(tuple());
      end_tag();
      return;
    }
    out.kind = SKind::set_block;
    out.expressions.push_back(is_operator("|") ? filters(nullptr, false) : nullptr);
    out.bodies.push_back(block("endset"));
  }

  void with_tag(Statement& out) {
    out.kind = SKind::with;
    while (current().kind != Token::Kind::end_block) {
      if (!out.expressions.empty()) {
        expect_operator(",");
      }
      out.expressions.push_back(target(false));
      expect_operator("=");
      out.expressions.push_back(expression());
    }
    out.bodies.push_back(block("endwith"));
  }

  void signature(Statement& out) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!out.parameters.empty()) {
        expect_operator(",");
      }
      std::string name = take_name();
      ExpressionPointer otherwise = skip_operator("=") ? expression() : nullptr;
      if (otherwise == nullptr && !out.parameters.empty() &&
          out.parameters.back().second != nullptr) {
        fail("a default");
      }
      out.parameters.emplace_back(std::move(name), std::move(otherwise));
    }
    expect_operator(")");
  }

  /// A name, names separated by commas, or (`attributes`) an attribute of a namespace.
  ExpressionPointer target(bool attributes) {
    std::vector<ExpressionPointer> names;
    const bool brackets = skip_operator("(");
    bool many = false;
    while (current().kind == Token::Kind::name && !is_name("in")) {
      const int line = current().line;
      ExpressionPointer name = make(EKind::name, line);
      name->text = take_name();
      if (is_operator(".") && attributes) {
        ++at_;
        name->kind = EKind::namespace_attribute;
        name->value = Value::string(take_name());
      }
      names.push_back(std::move(name));
      if (!skip_operator(",")) {
        break;
      }
      many = true;
    }
    if (brackets) {
      expect_operator(")");
    }
    if (names.empty()) {
      fail("a name to assign to");
    }
    if (!many) {
      return std::move(names[0]);
    }
    ExpressionPointer out = make(EKind::tuple, names[0]->line);
    out->operands = std::move(names);
    return out;
  }

  // --- expressions ---

  static ExpressionPointer make(EKind kind, int line) {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->line = line;
    return out;
  }

  template <class... Operands>
  ExpressionPointer make(EKind kind, int line, std::string text, Operands... operands) {
    ExpressionPointer out = make(kind, line);
    out->text = std::move(text);
    (add(*out, std::move(operands)), ...);
    return out;
  }

  void add(Expression& to, ExpressionPointer operand) {
    deepen(to, operand);
    to.operands.push_back(std::move(operand));
  }

  /// A chain of operators makes a deep tree without any recursion here.
  void deepen(Expression& to, const ExpressionPointer& below) {
    if (below != nullptr) {
      to.depth = std::max(to.depth, below->depth + 1);
      if (to.depth > kDeepestBlock) {
        throw Failure{fmt::format("line {}: an expression of more than {} parts in a row", to.line,
                                  kDeepestBlock)};
      }
    }
  }

  ExpressionPointer expression(bool conditional = true) {
    const Nested nested(*this);
    if (!conditional) {
      return or_expression();
    }
    ExpressionPointer out = or_expression();
    while (is_name("if")) {
      const int line = tokens_[at_++].line;
      ExpressionPointer condition = or_expression();
      ExpressionPointer otherwise = skip_name("else") ? expression() : nullptr;
      out = make(EKind::conditional, line, "", std::move(condition), std::move(out),
                 std::move(otherwise));
    }
    return out;
  }

  ExpressionPointer or_expression() {
    ExpressionPointer out = and_expression();
    while (is_name("or")) {
      const int line = tokens_[at_++].line;
      ExpressionPointer right = and_expression();
      out = make(EKind::or_, line, "", std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPointer and_expression() {
    ExpressionPointer out = not_expression();
    while (is_name("and")) {
      const int line = tokens_[at_++].line;
      ExpressionPointer right = not_expression();
      out = make(EKind::and_, line, "", std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPointer not_expression() {
    if (is_name("not")) {
      const Nested nested(*this);
      const int line = tokens_[at_++].line;
      return make(EKind::unary, line, "not", not_expression());
    }
    return comparison();
  }

  ExpressionPointer comparison() {
    ExpressionPointer first = sum();
    ExpressionPointer out;
    for (;;) {
      std::string op;
      if (current().kind == Token::Kind::operator_ &&
          (current().text == "==" || current().text == "!=" || current().text == "<" ||
           current().text == "<=" || current().text == ">" || current().text == ">=")) {
        op = current().text;
      } else if (is_name("in")) {
        op = "in";
      } else if (is_name("not") && is_name("in", 1)) {
        op = "not in";
        ++at_;
      } else {
        return out == nullptr ? std::move(first) : std::move(out);
      }
      const int line = tokens_[at_++].line;
      if (out == nullptr) {
        out = make(EKind::compare, line, "", std::move(first));
      }
      out->operators.push_back(std::move(op));
      add(*out, sum());
    }
  }

  /// A chain of binary operators from `signs`, taken from the left.
  template <class Operand>
  ExpressionPointer chain(std::initializer_list<std::string_view> signs, const Operand& operand) {
    ExpressionPointer out = operand();
    while (std::any_of(signs.begin(), signs.end(),
                       [&](std::string_view sign) { return is_operator(sign); })) {
      const Token& sign = tokens_[at_++];
      ExpressionPointer right = operand();
      out = make(EKind::binary, sign.line, sign.text, std::move(out), std::move(right));
    }
    return out;
  }

  ExpressionPointer sum() {
    return chain({"+", "-"}, [this] { return concat(); });
  }

  ExpressionPointer concat() {
    ExpressionPointer first = product();
    if (!is_operator("~")) {
      return first;
    }
    ExpressionPointer out = make(EKind::concat, current().line, "", std::move(first));
    while (skip_operator("~")) {
      add(*out, product());
    }
    return out;
  }

  ExpressionPointer product() {
    return chain({"*", "/", "//", "%"},
                 [this] { return chain({"**"}, [this] { return unary(true); }); });
  }

  ExpressionPointer unary(bool with_filters) {
    ExpressionPointer out;
    if (is_operator("-") || is_operator("+")) {
      const Nested nested(*this);
      const Token& sign = tokens_[at_++];
      out = make(EKind::unary, sign.line, sign.text, unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
  }

  ExpressionPointer primary() {
    const Token& token = current();
    if (at_end()) {
      fail("an expression");
    }
    ExpressionPointer out = make(EKind::constant, token.line);
    if (token.kind == Token::Kind::name) {
      ++at_;
      if (token.text == "true" || token.text == "True" || token.text == "false" ||
          token.text == "False") {
        out->value = Value::boolean(token.text[0] == 't' || token.text[0] == 'T');
      } else if (token.text == "none" || token.text == "None") {
        out->value = Value::none();
      } else {
        out->kind = EKind::name;
        out->text = token.text;
      }
    } else if (token.kind == Token::Kind::string) {
      std::string text;
      while (current().kind == Token::Kind::string) {
        text += tokens_[at_++].text;
      }
      out->value = Value::string(std::move(text));
    } else if (token.kind == Token::Kind::number) {
      out->value = tokens_[at_++].value;
    } else if (skip_operator("(")) {
      out = tuple(true, true);
      expect_operator(")");
    } else if (skip_operator("[")) {
      out->kind = EKind::list;
      elements(*out, "]", false);
    } else if (skip_operator("{")) {
      out->kind = EKind::dict;
      elements(*out, "}", true);
    } else {
      fail("an expression");
    }
    return out;
  }

  void elements(Expression& out, std::string_view end, bool pairs) {
    while (!skip_operator(end)) {
      if (!out.operands.empty()) {
        expect_operator(",");
        if (skip_operator(end)) {
          return;
        }
      }
      add(out, expression());
      if (pairs) {
        expect_operator(":");
        add(out, expression());
      }
    }
  }

  /// One expression, or several with commas: a tuple. `empty` allows ().
  ExpressionPointer tuple(bool conditional = true, bool empty = false) {
    const auto ended = [this] {
      return at_end() || current().kind == Token::Kind::end_block ||
             current().kind == Token::Kind::end_print || is_operator(")") || is_name("recursive");
    };
    ExpressionPointer out = make(EKind::tuple, current().line);
    bool many = empty;
    while (!ended()) {
      add(*out, expression(conditional));
      if (!is_operator(",")) {
        many = out->operands.size() > 1;
        break;
      }
      ++at_;
      many = true;
    }
    if (!many) {
      if (out->operands.empty()) {
        fail("an expression");
      }
      return std::move(out->operands[0]);
    }
    return out;
  }

  ExpressionPointer postfix(ExpressionPointer out) {
    for (;;) {
      if (is_operator(".")) {
        out = attribute(std::move(out));
      } else if (is_operator("[")) {
        out = item(std::move(out));
      } else if (is_operator("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  ExpressionPointer attribute(ExpressionPointer of) {
    const int line = tokens_[at_++].line;
    if (current().kind == Token::Kind::number) {
      ExpressionPointer index = make(EKind::constant, line);
      index->value = tokens_[at_++].value;
      return make(EKind::item, line, "", std::move(of), std::move(index));
    }
    return make(EKind::attribute, line, take_name(), std::move(of));
  }

  ExpressionPointer item(ExpressionPointer of) {
    const int line = tokens_[at_++].line;
    ExpressionPointer index;
    const auto ends = [this] { return is_operator("]") || is_operator(":"); };
    ExpressionPointer start = is_operator(":") ? nullptr : expression();
    if (skip_operator(":")) {
      ExpressionPointer stop = ends() ? nullptr : expression();
      ExpressionPointer step = skip_operator(":") && !ends() ? expression() : nullptr;
      index = make(EKind::slice, line, "", std::move(start), std::move(stop), std::move(step));
    } else {
      index = std::move(start);
    }
    expect_operator("]");
    return make(EKind::item, line, "", std::move(of), std::move(index));
  }

  ExpressionPointer call(ExpressionPointer of) {
    ExpressionPointer out = make(EKind::call, current().line, "", std::move(of));
    arguments(*out);
    return out;
  }

  void arguments(Expression& out) {
    expect_operator("(");
    for (bool first = true; !skip_operator(")"); first = false) {
      if (!first) {
        expect_operator(",");
        if (skip_operator(")")) {
          return;
        }
      }
      if (out.spread_named != nullptr) {
        fail("')'");
      }
      if (skip_operator("*")) {
        out.spread = expression();
        deepen(out, out.spread);
      } else if (skip_operator("**")) {
        out.spread_named = expression();
        deepen(out, out.spread_named);
      } else if (current().kind == Token::Kind::name && is_operator("=", 1)) {
        std::string name = take_name();
        ++at_;
        out.named.emplace_back(std::move(name), expression());
        deepen(out, out.named.back().second);
      } else if (!out.named.empty() || out.spread != nullptr) {
        fail("a named argument");
      } else {
        add(out, expression());
      }
    }
  }

  ExpressionPointer filters_and_tests(ExpressionPointer out) {
    for (;;) {
      if (is_operator("|")) {
        out = filters(std::move(out), false);
      } else if (is_name("is")) {
        out = test(std::move(out));
      } else if (is_operator("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  /// `inline_first`: the first filter comes without its '|' (a filter block).
  ExpressionPointer filters(ExpressionPointer out, bool inline_first) {
    while (inline_first || is_operator("|")) {
      at_ += inline_first ? 0 : 1;
      inline_first = false;
      const int line = current().line;
      std::string name = take_name();
      ExpressionPointer filter = make(EKind::filter, line, std::move(name), std::move(out));
      if (is_operator("(")) {
        arguments(*filter);
      }
      out = std::move(filter);
    }
    return out;
  }

  ExpressionPointer test(ExpressionPointer of) {
    const int line = tokens_[at_++].line;
    const bool negated = skip_name("not");
    std::string name = take_name();
    ExpressionPointer out = make(EKind::test, line, std::move(name), std::move(of));
    const Token::Kind kind = current().kind;
    if (is_operator("(")) {
      arguments(*out);
    } else if (kind == Token::Kind::string || kind == Token::Kind::number || is_operator("[") ||
               is_operator("{") ||
               (kind == Token::Kind::name && !is_name("else") && !is_name("or") &&
                !is_name("and"))) {
      if (is_name("is")) {
        fail("no second test");
      }
      add(*out, postfix(primary()));
    }
    return negated ? make(EKind::unary, line, "not", std::move(out)) : std::move(out);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(source).parse(); }

}  // namespace weft::jinja
