// Reading tokenizer.json: fields that know where they stand, so that every complaint names its
// place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::tokenizer {

/// How deep a Sequence may stand inside another, and how many steps a part of the tokenizer may
/// have.
constexpr int kMostNesting = 16;
constexpr size_t kMostSteps = 64;

/// A value in a JSON document, or its absence, with the path that leads to it.
class Field {
 public:
  Field(const nlohmann::json* value, std::string path) : value_(value), path_(std::move(path)) {}

  /// The member `name`; absent when this is absent, no object, or has no such member.
  Field operator[](std::string_view name) const;
  /// Absent or null.
  bool missing() const { return value_ == nullptr || value_->is_null(); }
  const std::string& path() const { return path_; }

  Result<std::string> text() const;
  Result<bool> flag() const;
  Result<bool> flag_or(bool otherwise) const;
  /// A whole number from 0 to `most`.
  Result<int64_t> number(int64_t most) const;
  /// The number 0, whole or not.
  bool is_zero() const {
    return value_ != nullptr && value_->is_number() && value_->get<double>() == 0;
  }
  Result<std::vector<Field>> elements() const;
  /// The members of an object.
  Result<std::vector<std::pair<std::string, Field>>> members() const;
  /// The string member "type".
  Result<std::string> type() const;

  /// "path: what (value is ...)", an input error.
  Error error(std::string_view what) const;

 private:
  Error wrong(std::string_view wanted) const;
  const nlohmann::json* value_;
  std::string path_;
};

/// The parts of a tokenizer.json. The vocabulary and the merges, which are nearly all of the file,
/// are lists in the order of the file; the rest is a document in which those two are empty.
struct Document {
  std::vector<std::pair<std::string, int64_t>> vocabulary;  ///< token and id; -1: no whole number
  std::vector<std::pair<std::string, std::string>> merges;  ///< left, right
  nlohmann::json rest;
  std::string
      problem;  ///< what is wrong with the first entry of the two that could not be read, if any
};

/// Reads the text of a tokenizer.json. `name` stands at the front of messages.
Result<Document> read_document(std::string_view json, std::string_view name);

}  // namespace weft::tokenizer
