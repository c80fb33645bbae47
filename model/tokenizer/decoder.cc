#include "model/tokenizer/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {

/// Tokens come as put(text, true), or in fragments of which the last says true. Stages after one
/// that fuses all tokens into a single one get that one in fragments, so that streaming goes on
/// behind it.
class DecodeRun::Stage {
 public:
  explicit Stage(Stage* next) : next_(next) {}
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  virtual void put(std::string_view fragment, bool ends_token) = 0;
  virtual void finish() { next_->finish(); }

 protected:
  Stage* next_;
};

namespace {

using Stage = DecodeRun::Stage;

constexpr int kMostReplaceSteps = 4;  // each may lengthen the text
constexpr int64_t kMostStripped = 1'000'000;

/// The last stage: gathers the text.
class Output : public Stage {
 public:
  Output() : Stage(nullptr) {}
  void put(std::string_view fragment, bool /*ends_token*/) override { text.append(fragment); }
  void finish() override {}
  std::string text;
};

/// A stage that needs to see each token as a whole.
class WholeTokenStage : public Stage {
 public:
  using Stage::Stage;
  void put(std::string_view fragment, bool ends_token) final {
    if (!ends_token) {
      collected_.append(fragment);
    } else if (collected_.empty()) {
      token(fragment);
    } else {
      collected_.append(fragment);
      token(std::exchange(collected_, {}));
    }
  }

 protected:
  virtual void token(std::string_view token) = 0;

 private:
  std::string collected_;
};

class ByteLevelStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void finish() override { give(true); }

 private:
  void token(std::string_view token) override {
    const std::optional<std::string> bytes = bytes_of_characters(token);
    bytes_.append(bytes.has_value() ? std::string_view(*bytes) : token);
    give(false);
  }
  void give(bool all) {
    std::string text;
    take_utf8(bytes_, text, all);
    next_->put(text, all);
    if (all) {
      next_->finish();
    }
  }
  std::string bytes_;  ///< those that may yet become a character
};

/// <0x00> to <0xFF> are bytes. A run of them is text if all of it is valid UTF-8, else one U+FFFD
/// for each.
class ByteFallbackStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void finish() override {
    give();
    next_->finish();
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
      return std::nullopt;
    }
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) {
        return std::nullopt;
      }
      value = value * 16 + digit;
    }
    return static_cast<char>(value);
  }
  void token(std::string_view token) override {
    if (const std::optional<char> byte = byte_of(token)) {
      bytes_.push_back(*byte);
    } else {
      give();
      next_->put(token, true);
    }
  }
  void give() {
    if (find_invalid_utf8(bytes_) == std::string::npos) {
      if (!bytes_.empty()) {
        next_->put(bytes_, true);
      }
    } else {
      for (size_t i = 0; i < bytes_.size(); ++i) {
        next_->put("\uFFFD", true);
      }
    }
    bytes_.clear();
  }
  std::string bytes_;
};

class FuseStage : public Stage {
 public:
  using Stage::Stage;
  void put(std::string_view fragment, bool /*ends_token*/) override { next_->put(fragment, false); }
  void finish() override {
    next_->put({}, true);
    next_->finish();
  }
};

class ReplaceStage : public WholeTokenStage {
 public:
  ReplaceStage(Stage* next, const Decoder::Replace& replace)
      : WholeTokenStage(next), replace_(replace) {}

 private:
  void token(std::string_view token) override {
    std::vector<Match> matches;
    if (!replace_.pattern.find_all(token, matches).ok()) {
      next_->put(token, true);  // a pattern that gives up leaves the token as it is
      return;
    }
    const size_t most = kMostReplaced + 4 * token.size();
    std::string text;
    for (size_t i = 0; i < matches.size() && text.size() <= most; ++i) {
      text.append(matches[i].matched ? std::string_view(replace_.content) : matches[i].text);
    }
    next_->put(text.size() <= most ? text : token, true);  // nor one that makes it absurdly longer
  }
  static constexpr size_t kMostReplaced = 65536;
  const Decoder::Replace& replace_;
};

class StripStage : public Stage {
 public:
  StripStage(Stage* next, const Decoder::Strip& strip)
      : Stage(next), strip_(strip), start_left_(strip.start) {}
  void put(std::string_view fragment, bool ends_token) override {
    const std::string_view content = strip_.content;
    while (start_left_ > 0 && fragment.starts_with(content)) {
      fragment.remove_prefix(content.size());
      --start_left_;
    }
    if (!fragment.empty()) {
      start_left_ = 0;
    }
    // The last of them may be the end of the token: they wait until something follows.
    std::string text;
    for (; held_ > 0; --held_) {
      text.append(content);
    }
    text.append(fragment);
    std::string_view given = text;
    while (held_ < strip_.stop && given.ends_with(content)) {
      given.remove_suffix(content.size());
      ++held_;
    }
    next_->put(given, ends_token);
    if (ends_token) {
      held_ = 0;
      start_left_ = strip_.start;
    }
  }

 private:
  const Decoder::Strip& strip_;
  int64_t start_left_;
  int64_t held_ = 0;
};

class MetaspaceStage : public WholeTokenStage {
 public:
  MetaspaceStage(Stage* next, const Decoder::Metaspace& metaspace)
      : WholeTokenStage(next), metaspace_(metaspace) {}

 private:
  void token(std::string_view token) override {
    const std::string_view space = std::exchange(first_, false) && metaspace_.prepended ? "" : " ";
    std::string text;
    size_t from = 0;
    for (size_t at = token.find(metaspace_.replacement); at != std::string_view::npos;
         at = token.find(metaspace_.replacement, from)) {
      text.append(token, from, at - from).append(space);
      from = at + metaspace_.replacement.size();
    }
    next_->put(text.append(token, from), true);
  }
  const Decoder::Metaspace& metaspace_;
  bool first_ = true;
};

class JoinStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;

 private:
  void token(std::string_view token) override {
    next_->put(std::exchange(first_, false) ? "" : " ", true);
    next_->put(token, true);
  }
  bool first_ = true;
};

std::unique_ptr<Stage> make_stage(const Decoder::Step& step, Stage* next) {
  if (std::holds_alternative<Decoder::ByteLevel>(step)) {
    return std::make_unique<ByteLevelStage>(next);
  }
  if (std::holds_alternative<Decoder::ByteFallback>(step)) {
    return std::make_unique<ByteFallbackStage>(next);
  }
  if (std::holds_alternative<Decoder::Fuse>(step)) {
    return std::make_unique<FuseStage>(next);
  }
  if (const auto* replace = std::get_if<Decoder::Replace>(&step)) {
    return std::make_unique<ReplaceStage>(next, *replace);
  }
  if (const auto* strip = std::get_if<Decoder::Strip>(&step)) {
    return std::make_unique<StripStage>(next, *strip);
  }
  if (const auto* metaspace = std::get_if<Decoder::Metaspace>(&step)) {
    return std::make_unique<MetaspaceStage>(next, *metaspace);
  }
  return std::make_unique<JoinStage>(next);
}

Result<std::string> one_character(const Field& field) {
  WEFT_ASSIGN(std::string text, field.text());
  if (!is_one_character(text)) {
    return field.error("must be one character");
  }
  return text;
}

}  // namespace

Result<Decoder> Decoder::parse(const Field& field) {
  Decoder decoder;
  if (field.missing()) {
    decoder.steps_.emplace_back(JoinWithSpaces{});
  } else {
    WEFT_TRY(parse_into(field, 0, decoder.steps_));
  }
  return decoder;
}

Status Decoder::parse_into(const Field& field, int depth, std::vector<Step>& steps) {
  WEFT_ASSIGN(const std::string type, field.type());
  if (steps.size() >= kMostSteps || depth > kMostNesting) {
    return field.error(
        fmt::format("more than {} decoders, or {} inside each other", kMostSteps, kMostNesting));
  }
  if (type == "Sequence") {
    WEFT_ASSIGN(const std::vector<Field> fields, field["decoders"].elements());
    for (const Field& element : fields) {
      WEFT_TRY(parse_into(element, depth + 1, steps));
    }
  } else if (type == "ByteLevel") {
    steps.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps.emplace_back(Fuse{});
  } else if (type == "Replace") {
    WEFT_ASSIGN(Pattern pattern, Pattern::parse(field["pattern"]));
    WEFT_ASSIGN(std::string content, field["content"].text());
    const auto is_replace = [](const Step& step) { return std::holds_alternative<Replace>(step); };
    if (std::count_if(steps.begin(), steps.end(), is_replace) >= kMostReplaceSteps) {
      return field.error(fmt::format("more than {} of this type", kMostReplaceSteps));
    }
    steps.emplace_back(Replace{std::move(pattern), std::move(content)});
  } else if (type == "Strip") {
    WEFT_ASSIGN(std::string content, one_character(field["content"]));
    WEFT_ASSIGN(const int64_t start, field["start"].number(kMostStripped));
    WEFT_ASSIGN(const int64_t stop, field["stop"].number(kMostStripped));
    steps.emplace_back(Strip{std::move(content), start, stop});
  } else if (type == "Metaspace") {
    WEFT_ASSIGN(std::string replacement, one_character(field["replacement"]));
    WEFT_ASSIGN(bool prepended, field["add_prefix_space"].flag_or(true));
    if (const Field scheme = field["prepend_scheme"]; !scheme.missing()) {
      WEFT_ASSIGN(const std::string name, scheme.text());
      prepended = prepended && name != "never";
    }
    steps.emplace_back(Metaspace{std::move(replacement), prepended});
  } else {
    return field["type"].error(
        "an unknown decoder; those known are Sequence, ByteLevel, ByteFallback, Fuse, Replace, "
        "Strip and Metaspace");
  }
  return {};
}

DecodeRun::DecodeRun(const Decoder& decoder) : decoder_(&decoder) { start(); }
DecodeRun::~DecodeRun() = default;
DecodeRun::DecodeRun(DecodeRun&&) noexcept = default;
DecodeRun& DecodeRun::operator=(DecodeRun&&) noexcept = default;

void DecodeRun::start() {
  stages_.clear();
  auto output = std::make_unique<Output>();
  text_ = &output->text;
  stages_.push_back(std::move(output));
  const std::vector<Decoder::Step>& steps = decoder_->steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    stages_.push_back(make_stage(*step, stages_.back().get()));
  }
}

void DecodeRun::push(std::string_view token, std::string& out) {
  stages_.back()->put(token, true);
  out.append(*text_);
  text_->clear();
}

void DecodeRun::finish(std::string& out) {
  stages_.back()->finish();
  out.append(*text_);
  start();
}

}  // namespace weft::tokenizer
