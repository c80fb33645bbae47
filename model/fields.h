// Reading a JSON object of a config field by field.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/json.h"

namespace weft {

/// Reads the fields of a JSON object. The first thing that is wrong is kept as the error and every
/// later read returns its fallback, so that a list of reads needs one check at its end.
/// `Json`: nlohmann::json or nlohmann::ordered_json.
template <class Json>
class BasicFields {
 public:
  BasicFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// The value of a key; null when it is absent or null.
  const Json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has_null(std::string_view key) const {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_null();
  }

  /// Without a fallback the key is required.
  int64_t integer(std::string_view key, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = {}) {
    const Json* value = find_or_fail(key, fallback.has_value());
    if (value == nullptr) {
      return fallback.value_or(low);
    }
    const bool fits = value->is_number_unsigned()
                          ? value->template get<uint64_t>() <= static_cast<uint64_t>(high) &&
                                value->template get<int64_t>() >= low
                          : value->is_number_integer() && value->template get<int64_t>() >= low &&
                                value->template get<int64_t>() <= high;
    if (!fits) {
      fail(key, *value, fmt::format("an integer from {} to {}", low, high));
      return fallback.value_or(low);
    }
    return value->template get<int64_t>();
  }

  double number(std::string_view key, double low, double high,
                std::optional<double> fallback = {}) {
    const Json* value = find_or_fail(key, fallback.has_value());
    if (value == nullptr) {
      return fallback.value_or(low);
    }
    const double x = value->is_number() ? value->template get<double>() : NAN;
    if (!(x >= low && x <= high)) {
      fail(key, *value, fmt::format("a number from {} to {}", low, high));
      return fallback.value_or(low);
    }
    return x;
  }

  bool boolean(std::string_view key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    if (!value->is_boolean()) {
      fail(key, *value, "true or false");
      return fallback;
    }
    return value->template get<bool>();
  }

  std::string text(std::string_view key, std::string fallback) {
    const Json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    if (!value->is_string()) {
      fail(key, *value, "a string");
      return fallback;
    }
    return value->template get<std::string>();
  }

  /// A list of `count` numbers; required.
  std::vector<double> numbers(std::string_view key, int64_t count, double low, double high) {
    const Json* value = find_or_fail(key, false);
    std::vector<double> result;
    if (value != nullptr && value->is_array() && std::ssize(*value) == count) {
      for (const Json& x : *value) {
        const double number = x.is_number() ? x.template get<double>() : NAN;
        if (number >= low && number <= high) {
          result.push_back(number);
        }
      }
    }
    if (value != nullptr && std::ssize(result) != count) {
      fail(key, *value, fmt::format("a list of {} numbers from {} to {}", count, low, high));
    }
    return result;
  }

  /// An integer or a list of them; empty when absent. Ids beyond the vocabulary are left out: no
  /// token can match them, and configs cut down from larger ones keep them.
  std::vector<int32_t> tokens(std::string_view key, int64_t vocabulary) {
    const Json* value = find(key);
    if (value == nullptr) {
      return {};
    }
    const Json list = value->is_array() ? *value : Json::array({*value});
    std::vector<int32_t> ids;
    for (const Json& id : list) {
      if (!id.is_number_unsigned()) {
        fail(key, *value, "a token id or a list of token ids");
        return {};
      }
      if (id.template get<uint64_t>() < static_cast<uint64_t>(vocabulary)) {
        ids.push_back(id.template get<int32_t>());
      }
    }
    return ids;
  }

  /// "FILE: KEY is VALUE; it must be MUST."
  void fail(std::string_view key, const Json& value, std::string_view must) {
    fail_at(key, fmt::format("{} is {}; it must be {}", key, show(value), must));
  }
  void fail_at(std::string_view key, const std::string& sentence) {
    if (!error_) {
      wrong_key_ = key;
      fail(sentence);
    }
  }
  void fail(const std::string& sentence) {
    if (!error_) {
      error_ = input_error(where_.empty() ? sentence : where_ + ": " + sentence);
    }
  }

  const std::optional<Error>& error() const { return error_; }
  /// The key that the error is about; empty when it is about several.
  const std::string& wrong_key() const { return wrong_key_; }

 private:
  const Json* find_or_fail(std::string_view key, bool optional) {
    const Json* value = find(key);
    if (value == nullptr && !optional) {
      fail_at(key, fmt::format("{} is {}", key, has_null(key) ? "null" : "missing"));
    }
    return value;
  }

  const Json& object_;
  std::string where_;  // "config.json" or "config.json: rope_scaling"; may be empty
  std::string wrong_key_;
  std::optional<Error> error_;
};

using Fields = BasicFields<nlohmann::json>;

#define WEFT_TRY_FIELDS(fields) \
  do {                          \
    if ((fields).error()) {     \
      return *(fields).error(); \
    }                           \
  } while (false)

}  // namespace weft
