// Errors as values: a function that can fail for reasons outside the program (a bad file, a missing
// driver, a wrong argument) returns Result<T>; misuse by the programmer is an assertion.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace weft {

/// What went wrong, in the terms of the command's exit codes (see exit_code()).
enum class ErrorKind {
  usage,   ///< the caller's arguments are wrong: exit code 2
  input,   ///< a file or text cannot be used: exit code 3; the message names file, field and value
  device,  ///< the device, its driver or its memory failed: exit code 4
};

struct Error {
  ErrorKind kind = ErrorKind::input;
  std::string message;  ///< one sentence: the thing, the value, what to do. No trailing newline.
};

/// The process exit code that stands for an error of this kind.
constexpr int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::input:
      return 3;
    case ErrorKind::device:
      return 4;
  }
  return 4;
}

inline Error usage_error(std::string message) { return {ErrorKind::usage, std::move(message)}; }
inline Error input_error(std::string message) { return {ErrorKind::input, std::move(message)}; }
inline Error device_error(std::string message) { return {ErrorKind::device, std::move(message)}; }

/// A value or an Error. Reading the one that is not there is misuse and aborts with file and line.
template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit on purpose: a function returns either.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    WEFT_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    WEFT_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    WEFT_CHECK(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  const Error& error() const {
    WEFT_CHECK(!ok());
    return *std::get_if<1>(&state_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::variant<T, Error> state_;
};

/// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    WEFT_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace weft

#define WEFT_CONCAT_INNER(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_INNER(a, b)

/// Returns the error of a Status (or Result) from the enclosing function.
#define WEFT_TRY(expr) WEFT_TRY_IMPL(WEFT_CONCAT(weft_status_, __LINE__), expr)
#define WEFT_TRY_IMPL(tmp, expr) \
  do {                           \
    auto tmp = (expr);           \
    if (!tmp.ok()) {             \
      return tmp.error();        \
    }                            \
  } while (false)

/// `WEFT_ASSIGN(auto x, f());` binds the value of a Result, or returns its error.
#define WEFT_ASSIGN(lhs, expr) WEFT_ASSIGN_IMPL(WEFT_CONCAT(weft_result_, __LINE__), lhs, expr)
#define WEFT_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                     \
  if (!tmp.ok()) {                       \
    return tmp.error();                  \
  }                                      \
  lhs = std::move(tmp).value()
