#include "serve/grammar/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/tokenizer/unicode.h"

namespace weft::grammar {

using Kind = Expression::Kind;

Expression text(std::string bytes) {
  Expression out;
  out.text = std::move(bytes);
  return out;
}

Expression set(std::vector<std::pair<char32_t, char32_t>> ranges) {
  Expression out;
  out.kind = Kind::set;
  out.ranges = std::move(ranges);
  return out;
}

Expression not_in(std::vector<std::pair<char32_t, char32_t>> ranges) {
  ranges.emplace_back(0xd800, 0xdfff);
  std::sort(ranges.begin(), ranges.end());
  std::vector<std::pair<char32_t, char32_t>> rest;
  char32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) {
      rest.emplace_back(next, first - 1);
    }
    next = std::max<char32_t>(next, last + 1);
  }
  if (next <= 0x10ffff) {
    rest.emplace_back(next, 0x10ffff);
  }
  return set(std::move(rest));
}

Expression sequence(std::vector<Expression> parts) {
  Expression out;
  out.kind = Kind::sequence;
  out.parts = std::move(parts);
  return out;
}

Expression choice(std::vector<Expression> parts) {
  Expression out;
  out.kind = Kind::choice;
  out.parts = std::move(parts);
  return out;
}

Expression repeat(Expression part, int least, int most) {
  Expression out;
  out.kind = Kind::repeat;
  out.parts.push_back(std::move(part));
  out.least = least;
  out.most = most;
  return out;
}

Expression rule(size_t index) {
  Expression out;
  out.kind = Kind::rule;
  out.rule = index;
  return out;
}

size_t Rules::add(std::string name, Expression expression) {
  names.push_back(std::move(name));
  rules.push_back(std::move(expression));
  return rules.size() - 1;
}

size_t append(Rules& to, Rules from) {
  const size_t offset = to.rules.size();
  std::vector<Expression*> todo;
  for (size_t i = 0; i < from.rules.size(); ++i) {
    to.add(std::move(from.names[i]), std::move(from.rules[i]));
  }
  for (size_t i = offset; i < to.rules.size(); ++i) {
    todo.push_back(&to.rules[i]);
  }
  while (!todo.empty()) {
    Expression& at = *todo.back();
    todo.pop_back();
    at.rule += at.kind == Kind::rule ? offset : 0;
    for (Expression& part : at.parts) {
      todo.push_back(&part);
    }
  }
  return offset + from.root;
}

Result<Rules> read_choice(const nlohmann::ordered_json& choices) {
  if (!choices.is_array() || choices.empty()) {
    return input_error("choice: a list of at least one text is needed");
  }
  std::vector<Expression> parts;
  for (const auto& one : choices) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      return input_error(
          fmt::format("choice: {} is no text to choose",
                      one.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
    }
    parts.push_back(text(one.get<std::string>()));
  }
  Rules out;
  out.add("choice", choice(std::move(parts)));
  return out;
}

}  // namespace weft::grammar
