#include "serve/tools/harmony.h"

#include <algorithm>
#include <array>
#include <utility>

#include "serve/tools/markers.h"

namespace weft::serve::harmony {
namespace {

constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";
/// What a message's text ends at: the first three are its own ends, the others begin a next one.
constexpr std::array<std::string_view, 5> kEnds = {"<|end|>", "<|call|>", "<|return|>", kStart,
                                                   kChannel};

/// The word behind `key` in a header; empty: there is none.
std::string_view word_behind(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) {
    return {};
  }
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

std::string call_header(std::string_view name) {
  return std::string(kCallBegins) + std::string(name) + std::string(kCallGoesOn);
}

Reader::Reader(bool several, std::function<std::string()> make_id)
    : several_(several), make_id_(std::move(make_id)) {}

void Reader::push(std::string_view text, AnswerDelta& out) {
  for (const char c : text) {
    take(c, out);
  }
}

void Reader::take(char c, AnswerDelta& out) {
  switch (at_) {
    case At::dropped:
      return;
    case At::header:
      pending_ += c;
      return take_header(out);
    case At::body:
      break;
  }
  pending_ += c;
  for (const std::string_view end : kEnds) {
    if (pending_.ends_with(end)) {
      put(std::string_view(pending_).substr(0, pending_.size() - end.size()), out);
      end_body(out);
      if (at_ == At::header && end == kChannel) {
        pending_ = kChannel;
      }
      role_ = end == kStart;
      return;
    }
  }
  size_t held = 0;
  for (const std::string_view end : kEnds) {
    held = std::max(held, begun_of(pending_, end));
  }
  put(std::string_view(pending_).substr(0, pending_.size() - held), out);
  pending_.erase(0, pending_.size() - held);
}

void Reader::take_header(AnswerDelta& out) {
  if (pending_.ends_with(kMessage)) {
    return begin_body(out);
  }
  // What is no message is text: the prompt ended elsewhere, or the model was not taught this.
  const size_t begins = pending_.find_first_not_of(' ');
  if (role_ || begins == std::string::npos) {
    return;
  }
  const std::string_view text = std::string_view(pending_).substr(begins);
  const auto may_be = [&](std::string_view word) {
    return text.starts_with(word.substr(0, text.size()));
  };
  if (!may_be(kRecipient) && !may_be("<|")) {
    at_ = At::body;
    part_ = Part::content;
    const std::string again = std::exchange(pending_, {});
    push(again, out);
  }
}

void Reader::begin_body(AnswerDelta& out) {
  const std::string header = std::exchange(pending_, {});
  const std::string_view recipient = word_behind(header, kRecipient);
  const std::string_view channel = word_behind(header, kChannel);
  at_ = At::body;
  fresh_ = true;
  if (recipient.starts_with(kFunctions) && recipient.size() > kFunctions.size()) {
    part_ = Part::call;
    argued_ = false;
    out.calls.push_back(
        {calls_++, make_id_(), std::string(recipient.substr(kFunctions.size())), ""});
    return;
  }
  part_ = channel == "analysis" ? Part::reasoning : Part::content;
}

void Reader::end_body(AnswerDelta& out) {
  if (part_ == Part::call && !argued_) {
    out.calls.push_back({calls_ - 1, "", "", "{}"});  // clients parse them
  }
  pending_.clear();
  at_ = part_ == Part::call && !several_ ? At::dropped : At::header;
}

void Reader::put(std::string_view text, AnswerDelta& out) {
  if (text.empty()) {
    return;
  }
  const bool fresh = std::exchange(fresh_, false);
  if (part_ == Part::call) {
    if (out.calls.empty() || out.calls.back().index != calls_ - 1) {
      out.calls.push_back({calls_ - 1, "", "", ""});
    }
    out.calls.back().arguments += text;
    argued_ = true;
    return;
  }
  std::string& to = part_ == Part::reasoning ? out.reasoning : out.content;
  bool& before = part_ == Part::reasoning ? thought_ : said_;
  if (fresh && before) {  // messages of one kind one after the other
    to += '\n';
  }
  to += text;
  before = true;
}

void Reader::finish(AnswerDelta& out) {
  if (at_ == At::body) {
    put(std::exchange(pending_, {}), out);
    end_body(out);
  }
  at_ = At::dropped;  // a header alone says nothing
}

}  // namespace weft::serve::harmony
