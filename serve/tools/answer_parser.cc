#include "serve/tools/answer_parser.h"

#include <utility>

namespace weft::serve {

AnswerParser::AnswerParser(const AnswerFormat& format, std::string_view begun, bool several,
                           std::function<std::string()> make_id) {
  if (format.is_harmony()) {
    messages_.emplace(several, std::move(make_id));
    messages_->push(begun, begun_);
    return;
  }
  if (format.reasoning == ReasoningFormat::think) {
    thinking_.emplace(format.in_thought);
  }
  if (format.tools != ToolFormat::none) {
    tools_.emplace(format.tools, begun, several, std::move(make_id));
  }
}

AnswerDelta AnswerParser::push(std::string_view text) {
  AnswerDelta delta = std::exchange(begun_, {});
  if (messages_) {
    messages_->push(text, delta);
    return delta;
  }
  if (thinking_) {
    thinking_->push(text, delta.reasoning, delta.content);
  } else {
    delta.content = text;
  }
  if (tools_) {
    delta.append(tools_->push(std::exchange(delta.content, {})));
  }
  return delta;
}

AnswerDelta AnswerParser::finish() {
  AnswerDelta delta = std::exchange(begun_, {});
  if (messages_) {
    messages_->finish(delta);
    return delta;
  }
  if (thinking_) {
    thinking_->finish(delta.reasoning, delta.content);
  }
  if (tools_) {
    delta.append(tools_->push(std::exchange(delta.content, {})));
    delta.append(tools_->finish());
  }
  return delta;
}

int AnswerParser::calls() const {
  return messages_ ? messages_->calls() : tools_ ? tools_->calls() : 0;
}

bool AnswerParser::reasons() const {
  return messages_ ? messages_->reasons() : thinking_ && thinking_->reasons();
}

}  // namespace weft::serve
