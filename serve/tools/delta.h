// What is new of an answer, taken apart.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace weft::serve {

/// What is new of a call: its id and name once, at first, then pieces of its arguments (JSON text)
/// to be joined.
struct ToolDelta {
  int index = 0;
  std::string id, name;  ///< empty but in a call's first
  std::string arguments;
};

struct AnswerDelta {
  std::string content;
  std::vector<ToolDelta> calls = {};
  std::string reasoning = {};

  /// What came after this.
  void append(AnswerDelta next) {
    content += next.content;
    reasoning += next.reasoning;
    std::move(next.calls.begin(), next.calls.end(), std::back_inserter(calls));
  }
};

}  // namespace weft::serve
