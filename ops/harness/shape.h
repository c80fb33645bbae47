// The shape of a case as text: "m=64,n=128,k=256,out=bf16,accumulate". It is the case's name, and
// what --shape reads. Each operation's Case lists its fields once,
//
//   template <class Visitor> void fields(Visitor& v) { v.size("m", m); v.flag("accumulate", ...); }
//
// and ShapeWriter and ShapeReader follow that list in either direction.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/activation.h"
#include "base/number.h"
#include "base/result.h"
#include "ops/scales.h"

namespace weft::trial {

/// What a whole number may be: at least `least`, a multiple of `unit`, and at most `most`, so that
/// products of three are no overflow. One that may be left out is 0 then.
struct SizeBounds {
  int64_t least = 1;
  int64_t unit = 1;
  int64_t most = int64_t{1} << 20;
  bool required = true;
};

/// What a fraction may be. One that may be left out is `otherwise` then.
struct RealBounds {
  float least = 0;
  float most = 1;
  bool required = true;
  float otherwise = 1;
};

/// A value by its name in a shape, which is read whatever its case is.
template <class T>
struct Word {
  std::string_view text;
  T value;
};
inline constexpr Word<DType> kFloats[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};
inline constexpr Word<DType> kHalves[] = {{"bf16", DType::bf16}, {"f16", DType::f16}};
/// As checkpoints call them.
inline constexpr Word<DType> kFileFloats[] = {{"F32", DType::f32}, {"BF16", DType::bf16}};
inline constexpr Word<DType> kFileFormats[] = {
    {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16}};

/// Of results that are f32 otherwise.
inline constexpr Word<DType> kHalfOut[] = {{"BF16", DType::bf16}};

/// What checkpoints have of products' weights.
inline constexpr Word<DType> kWeightFormats[] = {
    {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16}, {"F8_E4M3", DType::e4m3fn}};
inline constexpr Word<DType> kFp8Formats[] = {{"e4m3fn", DType::e4m3fn},
                                              {"e4m3fnuz", DType::e4m3fnuz}};
/// Where an operation has one of its own, that has no word.
inline constexpr Word<Activation> kActivations[] = {
    {name_of(Activation::gelu_tanh), Activation::gelu_tanh}};
/// Scaling::none has no word.
inline constexpr Word<Scaling> kScalings[] = {
    {"tensor", Scaling::tensor}, {"row", Scaling::row}, {"block", Scaling::block}};

/// Writes a case's fields; those that are as they are when left out are left out.
class ShapeWriter {
 public:
  template <std::integral Int>
  void size(std::string_view key, const Int& value, SizeBounds bounds = {}) {
    if (bounds.required || value != 0) {
      add(key, std::to_string(value));
    }
  }
  /// Two sizes: "heads=8/2".
  void pair(std::string_view key, const int64_t& first, const int64_t& second) {
    add(key, std::to_string(first) + "/" + std::to_string(second));
  }
  void real(std::string_view key, const float& value, RealBounds bounds);
  /// One of several words, "out=bf16"; with an empty key, the word alone.
  template <class T, size_t kCount>
  void word(std::string_view key, const T& value, const Word<T> (&words)[kCount]) {
    for (const Word<T>& each : words) {
      if (each.value == value) {
        add(key, each.text);
      }
    }
  }
  /// The same, but nothing at all for a value that no word names.
  template <class T, size_t kCount>
  void optional_word(std::string_view key, const T& value, const Word<T> (&words)[kCount]) {
    word(key, value, words);
  }
  void flag(std::string_view name, const bool& value) {
    if (value) {
      add({}, name);
    }
  }
  const std::string& text() const { return text_; }

 private:
  void add(std::string_view key, std::string_view value) {
    text_ += text_.empty() ? "" : ",";
    text_ += key;
    text_ += key.empty() ? "" : "=";
    text_ += value;
  }

  std::string text_;
};

/// Reads a shape into a case's fields, which hold their defaults before.
class ShapeReader {
 public:
  ShapeReader(std::string_view operation, std::string_view text);

  template <std::integral Int>
  void size(std::string_view key, Int& value, SizeBounds bounds = {}) {
    describe(key, "N", bounds.required);
    if (const Part* part = bounds.required ? required(key) : find(key)) {
      value = static_cast<Int>(whole(key, part->value, bounds));
    }
  }
  void pair(std::string_view key, int64_t& first, int64_t& second);
  void real(std::string_view key, float& value, RealBounds bounds);
  template <class T, size_t kCount>
  void word(std::string_view key, T& value, const Word<T> (&words)[kCount]) {
    const std::string choice = choices<T>(words);
    describe(key, choice);
    if (!choose<T>(key, value, words)) {
      problem("lacks " + (key.empty() ? choice : std::string(key)));
    }
  }
  template <class T, size_t kCount>
  void optional_word(std::string_view key, T& value, const Word<T> (&words)[kCount]) {
    const std::string choice = choices<T>(words);
    describe(key, choice, /*required=*/false);
    choose<T>(key, value, words);
  }
  void flag(std::string_view name, bool& value);

  /// After all fields. Error (usage): what is wrong, and what the keys are.
  Status finish();
  /// Error (usage) unless `why` the fields do not go together is empty.
  Status refuse(std::string_view why) const;

 private:
  struct Part {
    std::string_view key;  ///< empty: a word alone
    std::string_view value;
    bool used = false;
  };

  static bool same_word(std::string_view a, std::string_view b);
  /// The first part with this key, used now; null: none.
  Part* find(std::string_view key);
  Part* required(std::string_view key);
  int64_t whole(std::string_view key, std::string_view text, SizeBounds bounds);
  /// Adds a key, and what its value is, to what is told of the keys.
  void describe(std::string_view key, std::string_view value, bool required = true);
  void problem(std::string what) {
    if (problem_.empty()) {
      problem_ = std::move(what);
    }
  }

  template <class T>
  static std::string choices(std::span<const Word<T>> words) {
    std::string text;
    for (const Word<T>& each : words) {
      text += text.empty() ? "" : "|";
      text += each.text;
    }
    return text;
  }
  /// Whether one of the words is there, or something else in its place, which is a problem.
  template <class T>
  bool choose(std::string_view key, T& value, std::span<const Word<T>> words) {
    for (Part& part : parts_) {
      if (part.key != key || part.used) {
        continue;
      }
      for (const Word<T>& each : words) {
        if (same_word(part.value, each.text)) {
          value = each.value;
          part.used = true;
          return true;
        }
      }
      if (!key.empty()) {
        part.used = true;
        problem("has " + std::string(key) + "=" + std::string(part.value));
        return true;
      }
    }
    return false;
  }

  std::string operation_;
  std::vector<Part> parts_;
  std::string keys_;
  std::string problem_;
};

/// A case's shape as text.
template <class Case>
std::string shape_of(Case c) {
  ShapeWriter writer;
  c.fields(writer);
  return writer.text();
}

}  // namespace weft::trial
