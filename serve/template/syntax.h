// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/template/value.h"

namespace weft::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    constant,   ///< value
    name,       ///< text
    attribute,  ///< operands[0] . text
    item,       ///< operands[0] [ operands[1] ]
    slice,      ///< operands: start, stop, step, each of which may be null; only as the index of an
                ///< item
    call,       ///< operands[0] ( operands[1..], named )
    filter,     ///< operands[0] | text ( operands[1..], named ); operands[0] is null in blocks
    test,       ///< operands[0] is text ( operands[1..] )
    list,
    tuple,
    dict,     ///< operands: key, value, key, value ...
    unary,    ///< text is '-', '+' or 'not'
    binary,   ///< text is '+', '-', '*', '/', '//', '%' or '**'
    compare,  ///< operands[0] text operands[1]; a chain has operators separated by spaces
    concat,   ///< ~
    and_,
    or_,
    conditional,          ///< condition, then, else (may be null)
    namespace_attribute,  ///< text . operands[0]'s constant: only as the target of a set
  };
  Kind kind = Kind::constant;
  int line = 0;
  int depth = 1;  ///< of the tree below, itself included
  std::string text;
  Value value;
  std::vector<std::string> operators;  ///< of a comparison
  std::vector<ExpressionPointer> operands;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer spread, spread_named;  ///< of a call: *args and **kwargs
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind : uint8_t {
    text,
    print,  ///< expressions[0]
    if_,    ///< expressions are the conditions, bodies what belongs to them, and one more for else
    for_,   ///< expressions: target, iterable, test (may be null); bodies: body, else
    set,    ///< expressions: target, value
    set_block,  ///< expressions: target, filter (may be null); bodies[0]
    macro,      ///< text, parameters, bodies[0]
    call,       ///< parameters, expressions[0] is the call, bodies[0]
    filter,     ///< expressions[0], bodies[0]
    with,       ///< expressions: target, value, target, value ...; bodies[0]
    scope,      ///< bodies[0]: what stands between tags that mean nothing here (generation)
    break_,
    continue_,
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;
  bool recursive = false;  ///< of a loop
  std::vector<ExpressionPointer> expressions;
  std::vector<Body> bodies;
  std::vector<std::pair<std::string, ExpressionPointer>>
      parameters;  ///< with their defaults, or null
};

/// Throws Failure with the line.
Body parse_template(std::string_view source);

}  // namespace weft::jinja
