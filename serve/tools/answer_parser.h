// A model's answer as it comes, taken apart into what is said, what is thought and calls of tools.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "serve/tools/delta.h"
#include "serve/tools/format.h"
#include "serve/tools/harmony.h"
#include "serve/tools/parser.h"
#include "serve/tools/thinking.h"

namespace weft::serve {

/// What an answer is taken apart by. Where one is `harmony`, both are.
struct AnswerFormat {
  ToolFormat tools = ToolFormat::none;
  ReasoningFormat reasoning = ReasoningFormat::none;
  bool in_thought = false;  ///< the prompt ends with <think>

  bool is_harmony() const {
    return tools == ToolFormat::harmony || reasoning == ReasoningFormat::harmony;
  }
};

class AnswerParser {
 public:
  /// `begun`: what of the answer stands at the prompt's end (ForcedTools). `several`: false drops
  /// all behind the first call. `make_id` makes the id of a call (new_tool_id(), but for tests).
  AnswerParser(const AnswerFormat& format, std::string_view begun, bool several,
               std::function<std::string()> make_id);

  /// Takes the next piece of the answer, special tokens not left out.
  AnswerDelta push(std::string_view text);
  /// The answer has ended: what was held back.
  AnswerDelta finish();
  /// How many calls there were.
  int calls() const;
  /// Whether what comes next is thought.
  bool reasons() const;

 private:
  AnswerDelta begun_ = {};  // what the prompt's end said already
  std::optional<harmony::Reader> messages_;
  std::optional<Thinking> thinking_;
  std::optional<ToolParser> tools_;
};

}  // namespace weft::serve
