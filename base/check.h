// WEFT_CHECK: an assertion that stays on in release builds, for misuse that no input can cause.
#pragma once

namespace weft {

/// Prints "file:line: check failed: text" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* text);

}  // namespace weft

#define WEFT_CHECK(condition)                               \
  do {                                                      \
    if (!(condition)) {                                     \
      ::weft::check_failed(__FILE__, __LINE__, #condition); \
    }                                                       \
  } while (false)
