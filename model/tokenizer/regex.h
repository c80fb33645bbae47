// Regular expressions of tokenizer.json. They are written for Oniguruma's Ruby syntax; PCRE2 runs
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct pcre2_real_code_8;

namespace weft::tokenizer {

/// A stretch of a text that a pattern matched, or the stretch between two matches.
struct Match {
  std::string_view text;
  bool matched = false;
};

class Regex {
 public:
  /// What the two syntaxes read differently is translated, or refused where that is not possible.
  /// The message of an error says what is wrong with the expression, without naming where it
  /// stands.
  static Result<Regex> compile(std::string_view pattern);

  /// Appends what the expression matches and leaves between, in order: together, the whole text
  /// (valid UTF-8). Fails when a pattern backtracks beyond the limit. Safe to call from several
  /// threads.
  Status find_all(std::string_view text, std::vector<Match>& out) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace weft::tokenizer
