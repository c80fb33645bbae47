// Arbitrary bytes as an answer in each format, whole and cut into pieces: both must give the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "serve/tools/answer_parser.h"

namespace {

using weft::serve::AnswerDelta;
using weft::serve::AnswerFormat;
using weft::serve::AnswerParser;
using weft::serve::ReasoningFormat;
using weft::serve::ToolDelta;
using weft::serve::ToolFormat;

/// Thoughts, text and calls; each call's first delta must carry its name and the index that comes
/// next.
std::string parsed(const AnswerFormat& format, std::string_view answer, size_t piece) {
  int count = 0;
  AnswerParser parser(format, "", true, [] { return std::string("id"); });
  std::string content;
  std::string reasoning;
  std::string calls;
  const auto add = [&](const AnswerDelta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const ToolDelta& call : delta.calls) {
      if (call.name.empty() ? call.index != count - 1 : call.index != count++) {
        std::abort();
      }
      calls += call.name.empty() ? call.arguments
                                 : "\n" + call.id + " " + call.name + " " + call.arguments;
    }
  };
  for (size_t at = 0; at < answer.size(); at += piece) {
    add(parser.push(answer.substr(at, piece)));
  }
  add(parser.finish());
  if (parser.calls() != count) {
    std::abort();
  }
  return reasoning + "\n" + content + "\n" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view answer(reinterpret_cast<const char*>(data), size);
  for (const AnswerFormat& format :
       {AnswerFormat{}, AnswerFormat{ToolFormat::llama3}, AnswerFormat{ToolFormat::mistral},
        AnswerFormat{ToolFormat::hermes, ReasoningFormat::think},
        AnswerFormat{ToolFormat::none, ReasoningFormat::think, true},
        AnswerFormat{ToolFormat::harmony, ReasoningFormat::harmony}}) {
    if (parsed(format, answer, size + 1) != parsed(format, answer, 1 + size % 7)) {
      std::abort();
    }
  }
  return 0;
}
