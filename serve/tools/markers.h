// What markers in answers have in common.
#pragma once

#include <algorithm>
#include <string_view>

namespace weft::serve {

inline constexpr std::string_view kBlank = " \t\r\n";

/// How much of the end of `text` could be the beginning of `word`.
inline size_t begun_of(std::string_view text, std::string_view word) {
  for (size_t size = std::min(text.size(), word.size() - 1); size > 0; --size) {
    if (text.ends_with(word.substr(0, size))) {
      return size;
    }
  }
  return 0;
}

}  // namespace weft::serve
