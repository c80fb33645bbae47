#include "ops/harness/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace weft::trial {
namespace {

/// All of a text as a number.
template <class Number>
bool parse(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

}  // namespace

void ShapeWriter::real(std::string_view key, const float& value, RealBounds bounds) {
  if (bounds.required || value != bounds.otherwise) {
    add(key, fmt::format("{}", value));
  }
}

ShapeReader::ShapeReader(std::string_view operation, std::string_view text)
    : operation_(operation) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      parts_.push_back({{}, part});
    } else {
      parts_.push_back({part.substr(0, equals), part.substr(equals + 1)});
    }
  }
}

ShapeReader::Part* ShapeReader::find(std::string_view key) {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const Part& part) { return part.key == key && !part.used; });
  if (found == parts_.end()) {
    return nullptr;
  }
  found->used = true;
  return &*found;
}

ShapeReader::Part* ShapeReader::required(std::string_view key) {
  Part* part = find(key);
  if (part == nullptr) {
    problem(fmt::format("lacks {}", key));
  }
  return part;
}

bool ShapeReader::same_word(std::string_view a, std::string_view b) {
  const auto same = [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

int64_t ShapeReader::whole(std::string_view key, std::string_view text, SizeBounds bounds) {
  int64_t value = 0;
  if (!parse(text, value) || value < bounds.least || value > bounds.most ||
      value % bounds.unit != 0) {
    problem(
        fmt::format("has {}={}, which is no {} from {} to {}", key, text,
                    bounds.unit == 1 ? "whole number" : fmt::format("multiple of {}", bounds.unit),
                    bounds.least, bounds.most));
    return std::max(bounds.least, bounds.unit);
  }
  return value;
}

void ShapeReader::pair(std::string_view key, int64_t& first, int64_t& second) {
  describe(key, "N/N");
  if (const Part* part = required(key)) {
    const size_t slash = std::min(part->value.find('/'), part->value.size());
    first = whole(key, part->value.substr(0, slash), {});
    second = whole(key, part->value.substr(std::min(slash + 1, part->value.size())), {});
  }
}

void ShapeReader::real(std::string_view key, float& value, RealBounds bounds) {
  describe(key, "X", bounds.required);
  value = bounds.otherwise;
  const Part* part = bounds.required ? required(key) : find(key);
  if (part != nullptr &&
      (!parse(part->value, value) || !(value >= bounds.least) || !(value <= bounds.most))) {
    problem(fmt::format("has {}={}, which is no number from {} to {}", key, part->value,
                        bounds.least, bounds.most));
  }
}

void ShapeReader::flag(std::string_view name, bool& value) {
  describe({}, name, /*required=*/false);
  for (Part& part : parts_) {
    if (!part.used && part.key.empty() && part.value == name) {
      part.used = true;
      value = true;
      return;
    }
  }
}

void ShapeReader::describe(std::string_view key, std::string_view value, bool required) {
  keys_ += fmt::format("{}{}{}{}{}{}", keys_.empty() ? "" : ",", required ? "" : "[", key,
                       key.empty() ? "" : "=", value, required ? "" : "]");
}

Status ShapeReader::finish() {
  for (const Part& part : parts_) {
    if (!part.used) {
      // Said first: a key that is misspelt is also one that is missing.
      problem_ = part.key.empty() ? fmt::format("has no place for '{}'", part.value)
                                  : fmt::format("has no key '{}', or has it twice", part.key);
      break;
    }
  }
  if (problem_.empty()) {
    return {};
  }
  return usage_error(fmt::format("the shape of {} {}: it is {}", operation_, problem_, keys_));
}

Status ShapeReader::refuse(std::string_view why) const {
  if (why.empty()) {
    return {};
  }
  return usage_error(fmt::format("the shape of {}: {}", operation_, why));
}

}  // namespace weft::trial
