// Decoders: they turn tokens back into text, a token at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/normalizer.h"

namespace weft::tokenizer {

/// A list of decoders, applied in order. Without any, tokens are joined with spaces.
class Decoder {
 public:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    std::string content;  ///< one character
    int64_t start, stop;  ///< at most so many are taken off each end of a token
  };
  struct Metaspace {
    std::string replacement;  ///< one character
    bool prepended;           ///< whether encoding may have put one in front of the first word
  };
  struct JoinWithSpaces {};
  using Step =
      std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, JoinWithSpaces>;

  /// The field "decoder" of a tokenizer.json; null is no decoder.
  static Result<Decoder> parse(const Field& field);

  const std::vector<Step>& steps() const { return steps_; }

 private:
  static Status parse_into(const Field& field, int depth, std::vector<Step>& steps);
  std::vector<Step> steps_;
};

/// The state of decoding one stream of tokens. Everything is given out as soon as no later token
/// can change it.
class DecodeRun {
 public:
  /// `decoder` must outlive this.
  explicit DecodeRun(const Decoder& decoder);
  ~DecodeRun();
  DecodeRun(DecodeRun&&) noexcept;
  DecodeRun& operator=(DecodeRun&&) noexcept;

  /// Appends what the next token adds to the text; always whole characters.
  void push(std::string_view token, std::string& out);
  /// Appends what was held back. The run then stands at the beginning of a new stream.
  void finish(std::string& out);

  /// A decoder at work: it takes tokens, possibly in fragments, and hands its own tokens to the
  /// next.
  class Stage;

 private:
  void start();
  const Decoder* decoder_;
  std::vector<std::unique_ptr<Stage>> stages_;  ///< the last to act comes first
  std::string* text_ = nullptr;                 ///< what has come out of the last stage
};

}  // namespace weft::tokenizer
