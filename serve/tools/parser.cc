#include "serve/tools/parser.h"

#include <algorithm>
#include <random>
#include <utility>

#include "serve/tools/markers.h"

namespace weft::serve {
namespace {

using Json = nlohmann::ordered_json;

bool blank(char c) { return kBlank.find(c) != std::string_view::npos; }

/// One value of JSON, a character at a time, by its brackets and quotes.
class ValueScanner {
 public:
  enum class Step {
    more,
    ended,
    ended_before
  };  ///< ended_before: the character belongs to what follows

  Step push(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return in_string_ || depth_ > 0 ? Step::more : Step::ended;
    }
    if (depth_ == 0 && begun_ && (blank(c) || c == ',' || c == '}' || c == ']')) {
      return Step::ended_before;
    }
    begun_ = true;
    in_string_ = c == '"';
    depth_ += c == '{' || c == '[' ? 1 : 0;
    if (c == '}' || c == ']') {
      return --depth_ <= 0 ? Step::ended : Step::more;
    }
    return Step::more;
  }

 private:
  int depth_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false;
};

/// {"name": ..., "arguments": {...}}, a character at a time.
class CallScanner {
 public:
  enum class Step { more, ended, wrong };

  Step push(char c) {
    raw_ += c;
    switch (at_) {
      case At::open:
        at_ = blank(c) ? At::open : At::key;
        return blank(c) || c == '{' ? Step::more : Step::wrong;
      case At::key:
        if (blank(c) || c == ',') {
          return Step::more;
        }
        if (c == '}') {
          return name_.empty() ? Step::wrong : Step::ended;
        }
        value_.clear();
        scanner_ = {};
        scanner_.push(c);
        value_ += c;
        at_ = At::in_key;
        return c == '"' ? Step::more : Step::wrong;
      case At::in_key:
        value_ += c;
        if (scanner_.push(c) != ValueScanner::Step::more) {
          key_ = text_of(value_);
          at_ = At::colon;
        }
        return Step::more;
      case At::colon:
        at_ = c == ':' ? At::value : At::colon;
        value_.clear();
        scanner_ = {};
        return c == ':' || blank(c) ? check_key() : Step::wrong;
      case At::value:
        at_ = blank(c) ? At::value : At::in_value;
        streaming_ = of_arguments() && c == '{';
        return blank(c) ? Step::more : value(c);
      case At::in_value:
        return value(c);
    }
    return Step::wrong;
  }

  const std::string& raw() const { return raw_; }
  /// Set once the name is known.
  const std::string& name() const { return name_; }
  const std::string& id() const { return id_; }
  /// What is new of the arguments, once the name is known.
  std::string take_arguments() {
    return name_.empty() ? std::string() : std::exchange(arguments_, {});
  }

 private:
  enum class At { open, key, in_key, colon, value, in_value };

  static std::string text_of(const std::string& json) {
    const Json value = Json::parse(json, nullptr, false);
    return value.is_string() ? value.get<std::string>() : std::string();
  }
  bool of_arguments() const { return key_ == "arguments" || key_ == "parameters"; }
  /// An object that begins otherwise is no call.
  Step check_key() const {
    const bool known =
        of_arguments() || key_ == "name" || key_ == "type" || key_ == "id" || key_ == "function";
    return known ? Step::more : Step::wrong;
  }

  Step value(char c) {
    const ValueScanner::Step step = scanner_.push(c);
    if (step != ValueScanner::Step::ended_before) {
      // An object goes out as it comes; what is a text (of JSON in JSON) is to be complete first.
      (streaming_ ? arguments_ : value_) += c;
    }
    if (step == ValueScanner::Step::more) {
      return Step::more;
    }
    if (!end_value()) {
      return Step::wrong;
    }
    at_ = At::key;
    streaming_ = false;
    if (step == ValueScanner::Step::ended_before) {
      raw_.pop_back();
      return push(c);
    }
    return Step::more;
  }

  bool end_value() {
    if (key_ == "name") {
      name_ = text_of(value_);
      return !name_.empty();
    }
    if (key_ == "id") {
      id_ = text_of(value_);
    } else if (of_arguments() && !streaming_) {
      arguments_ += value_.starts_with('"') ? text_of(value_) : value_ == "null" ? "{}" : value_;
    }
    return true;
  }

  At at_ = At::open;
  ValueScanner scanner_;
  std::string raw_, key_, value_, name_, id_, arguments_;
  bool streaming_ = false;
};

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kMistralArguments = "[ARGS]";
constexpr std::string_view kMistralId = "[CALL_ID]";
constexpr std::string_view kPython = "<|python_tag|>";

}  // namespace

struct ToolParser::State {
  enum class At {
    text,       ///< where a call may begin
    call,       ///< in a call's JSON
    after,      ///< behind one: what separates it from the next
    name,       ///< in Mistral's name[ARGS]
    arguments,  ///< in the JSON behind it
    dropped     ///< behind the only call that is wanted
  };

  ToolFormat format;
  bool several;
  std::function<std::string()> make_id;
  At at = At::text;
  bool fresh = true;    ///< nothing but white space came so far
  std::string pending;  ///< text that was not decided on
  CallScanner call;
  ValueScanner value;
  bool named = false;   ///< the call's first delta went out
  bool argued = false;  ///< some of its arguments did
  int calls = 0;
  AnswerDelta out;

  void content(std::string_view text) {
    out.content += text;
    fresh = fresh && std::all_of(text.begin(), text.end(), blank);
  }

  std::string_view marker() const {
    return format == ToolFormat::hermes    ? kHermesOpen
           : format == ToolFormat::mistral ? kMistralOpen
                                           : kPython;
  }

  void begin_call() {
    call = CallScanner();
    named = argued = false;
    at = At::call;
  }

  void end_call() {
    if (named && !argued) {
      arguments("{}");  // clients parse them
    }
    calls += named ? 1 : 0;
    at = several ? At::after : At::dropped;
  }

  void take(std::string_view text) {
    for (const char c : text) {
      switch (at) {
        case At::text:
          take_text(c);
          break;
        case At::call:
          take_call(c);
          break;
        case At::after:
          take_after(c);
          break;
        case At::name:
          take_name(c);
          break;
        case At::arguments:
          take_arguments(c);
          break;
        case At::dropped:
          break;
      }
    }
  }

  void take_text(char c) {
    pending += c;
    if (format == ToolFormat::llama3 && c == '{' && fresh &&
        std::all_of(pending.begin(), pending.end() - 1, blank)) {
      pending.clear();
      begin_call();
      take_call(c);
      return;
    }
    if (const std::string_view mark = marker(); pending.ends_with(mark)) {
      pending.resize(pending.size() - mark.size());
      // White space in front of a call is no text, nor what stands alone.
      pending.resize(pending.find_last_not_of(kBlank) + 1);
      content(std::exchange(pending, {}));
      if (format == ToolFormat::hermes) {
        begin_call();
      } else if (format == ToolFormat::mistral) {
        at = At::after;
      } else {
        fresh = true;  // behind <|python_tag|> an object is a call again
      }
      return;
    }
    // What could begin a marker stays, and the white space in front of it.
    const size_t held = begun_of(pending, marker());
    const size_t ended = pending.find_last_not_of(kBlank, pending.size() - held - 1) + 1;
    const size_t keep = pending.size() == held ? held : pending.size() - ended;
    content(std::string_view(pending).substr(0, pending.size() - keep));
    pending.erase(0, pending.size() - keep);
  }

  void take_call(char c) {
    const CallScanner::Step step = call.push(c);
    if (!named && !call.name().empty()) {
      named = true;
      out.calls.push_back({calls, call.id().empty() ? make_id() : call.id(), call.name(), ""});
    }
    if (named) {
      arguments(call.take_arguments());
    }
    if (step == CallScanner::Step::wrong) {
      if (!named) {  // it was text after all
        content(format == ToolFormat::hermes ? std::string(kHermesOpen) + call.raw() : call.raw());
      }
      calls += named ? 1 : 0;
      at = At::text;
      fresh = false;
    } else if (step == CallScanner::Step::ended) {
      end_call();
    }
  }

  void arguments(std::string_view text) {
    if (text.empty()) {
      return;
    }
    argued = true;
    if (out.calls.empty() || out.calls.back().index != calls) {
      out.calls.push_back({calls, "", "", ""});
    }
    out.calls.back().arguments += text;
  }

  void take_after(char c) {
    if (blank(c) && pending.empty()) {
      return;
    }
    pending += c;
    if (format == ToolFormat::hermes) {
      if (pending == kHermesClose) {
        pending.clear();
      } else if (pending == kHermesOpen) {
        pending.clear();
        begin_call();
      } else if (!kHermesClose.starts_with(pending) && !kHermesOpen.starts_with(pending)) {
        to_text();
      }
      return;
    }
    if (format == ToolFormat::llama3) {
      pending.clear();
      if (c == '{') {
        begin_call();
        take_call(c);
      } else if (c != ';') {
        pending = c;
        to_text();
      }
      return;
    }
    take_after_mistral(c);
  }

  void take_after_mistral(char c) {
    if (pending == "{") {
      pending.clear();
      begin_call();
      take_call(c);
    } else if (pending == kMistralOpen || pending == "," || pending == "]") {
      pending.clear();
    } else if (pending == "[" || kMistralOpen.starts_with(pending)) {
      return;  // a list, or another marker
    } else if (pending[0] == '[') {
      const std::string inside = pending.substr(1);
      pending.clear();
      for (const char each : inside) {
        take_after(each);
      }
    } else {
      at = At::name;
    }
  }

  void take_name(char c) {
    pending += c;
    if (c == '{') {  // "name[ARGS]{", "name[CALL_ID]id[ARGS]{" or "name{"
      pending.pop_back();
      std::string name =
          pending.substr(0, std::min(pending.find(kMistralArguments), pending.find(kMistralId)));
      std::string id;
      if (const size_t mark = pending.find(kMistralId); mark != std::string::npos) {
        id = pending.substr(mark + kMistralId.size());
        id = id.substr(0, id.find(kMistralArguments));
      }
      name = name.substr(0, name.find_last_not_of(kBlank) + 1);
      pending.clear();
      named = true;
      out.calls.push_back({calls, id.empty() ? make_id() : id, name, ""});
      value = ValueScanner();
      at = At::arguments;
      take_arguments(c);
    } else if (c == '\n' || pending.size() > 256) {
      to_text();
    }
  }

  void take_arguments(char c) {
    arguments({&c, 1});
    if (value.push(c) == ValueScanner::Step::ended) {
      end_call();
    }
  }

  void to_text() {
    at = At::text;
    fresh = false;
    const std::string again = std::exchange(pending, {});
    take(again);
  }

  void finish() {
    if (at == At::call && !named) {
      content(format == ToolFormat::hermes ? std::string(kHermesOpen) + call.raw() : call.raw());
    } else if (at == At::call || at == At::arguments) {
      ++calls;
    } else if (at == At::text || at == At::name) {
      content(pending);
    }
    pending.clear();
    at = At::dropped;
  }
};

ToolParser::ToolParser(ToolFormat format, std::string_view begun, bool several,
                       std::function<std::string()> make_id)
    : state_(std::make_unique<State>()) {
  state_->format = format;
  state_->several = several;
  state_->make_id = std::move(make_id);
  if (format != ToolFormat::none) {
    state_->take(begun);
  }
}

ToolParser::~ToolParser() = default;
ToolParser::ToolParser(ToolParser&&) noexcept = default;
ToolParser& ToolParser::operator=(ToolParser&&) noexcept = default;

AnswerDelta ToolParser::push(std::string_view text) {
  if (state_->format == ToolFormat::none) {
    state_->content(text);
  } else {
    state_->take(text);
  }
  return std::exchange(state_->out, {});
}

AnswerDelta ToolParser::finish() {
  state_->finish();
  return std::exchange(state_->out, {});
}

int ToolParser::calls() const { return state_->calls; }

std::string new_tool_id(ToolFormat format) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out = format == ToolFormat::mistral ? "" : "call_";
  for (int i = format == ToolFormat::mistral ? 9 : 24; i > 0; --i) {
    out += kLetters[random() % kLetters.size()];
  }
  return out;
}

}  // namespace weft::serve
