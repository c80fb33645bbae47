// A thought at the beginning of an answer: <think>...</think>.
#pragma once

#include <string>
#include <string_view>

namespace weft::serve {

/// Takes an answer apart into what is thought and what is said, as it comes. White space around
/// both is neither's.
class Thinking {
 public:
  /// `begun`: the prompt ends with <think>, so the answer begins in a thought.
  explicit Thinking(bool begun) : at_(begun ? At::thought : At::start) {}

  /// Adds what is new to `reasoning` and `content`; what may be a marker, or the white space before
  /// one, is held back.
  void push(std::string_view text, std::string& reasoning, std::string& content);
  /// The answer has ended.
  void finish(std::string& reasoning, std::string& content);
  bool reasons() const { return at_ == At::thought; }

 private:
  enum class At { start, thought, behind, content };

  At at_;
  std::string pending_;
  bool fresh_ = true;  ///< nothing but white space came of the thought
};

}  // namespace weft::serve
