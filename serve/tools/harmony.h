// The messages that gpt-oss answers in ("harmony response format",
// https://cookbook.openai.com/articles/openai-harmony). The prompt ends with `<|start|>assistant`;
// then
//
//     <|channel|>analysis<|message|>what it thinks<|end|>
//     <|start|>assistant<|channel|>final<|message|>what it answers<|return|>
//
// without the line breaks. The channel `commentary` has what is said before a call of a tool, and
// calls: `to=functions.NAME` in a message's header, before the channel or behind it, the arguments
// as its text, `<|call|>` at its end.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "serve/tools/delta.h"

namespace weft::serve::harmony {

inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kMessage = "<|message|>";
/// What the header of an answer's last message ends with.
inline constexpr std::string_view kFinal = "<|channel|>final<|message|>";
/// What a call is written as: the tool's name stands between these.
inline constexpr std::string_view kCallBegins = "<|channel|>commentary to=functions.";
inline constexpr std::string_view kCallGoesOn = " <|constrain|>json<|message|>";
std::string call_header(std::string_view name);

/// Takes an answer apart as it comes.
class Reader {
 public:
  /// As AnswerParser's. `several`: false drops all behind the first call.
  Reader(bool several, std::function<std::string()> make_id);

  /// Adds what is new to `out`; what may yet turn out to be a marker is held back.
  void push(std::string_view text, AnswerDelta& out);
  /// The answer has ended.
  void finish(AnswerDelta& out);
  int calls() const { return calls_; }
  /// Whether what comes next is of a thought, as far as that is known.
  bool reasons() const { return at_ == At::body && part_ == Part::reasoning; }

 private:
  enum class At { header, body, dropped };
  enum class Part { content, reasoning, call };

  void take(char c, AnswerDelta& out);
  void take_header(AnswerDelta& out);
  void begin_body(AnswerDelta& out);
  void end_body(AnswerDelta& out);
  void put(std::string_view text, AnswerDelta& out);

  bool several_;
  std::function<std::string()> make_id_;
  At at_ = At::header;
  Part part_ = Part::content;
  bool role_ = false;     ///< the header begins with a role; the prompt has had the first one's
  std::string pending_;   ///< the header so far; of a body, what may be a marker
  bool fresh_ = true;     ///< nothing of this message came yet
  bool said_ = false;     ///< there was content,
  bool thought_ = false;  ///< or a thought
  bool argued_ = false;   ///< some of a call's arguments came
  int calls_ = 0;
};

}  // namespace weft::serve::harmony
