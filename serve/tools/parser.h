// A model's answer as it comes, taken apart into text and calls of tools; of all formats but
// harmony (serve/tools/harmony.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/tools/delta.h"
#include "serve/tools/format.h"

namespace weft::serve {

class ToolParser {
 public:
  /// `begun`: what forced calls began with (ForcedTools). `several`: false drops all behind the
  /// first call. `make_id` makes the id of a call (new_tool_id(), but for tests).
  ToolParser(ToolFormat format, std::string_view begun, bool several,
             std::function<std::string()> make_id);
  ~ToolParser();
  ToolParser(ToolParser&&) noexcept;
  ToolParser& operator=(ToolParser&&) noexcept;

  /// Takes the next piece of the answer, special tokens not left out. What may yet turn out to be a
  /// call is held back.
  AnswerDelta push(std::string_view text);
  /// The answer has ended: what was held back. A call that was cut short before its name is text.
  AnswerDelta finish();
  /// How many calls there were.
  int calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An id as clients and the format's templates expect it: "call_..." or, for Mistral's, nine
/// letters and digits.
std::string new_tool_id(ToolFormat format);

}  // namespace weft::serve
