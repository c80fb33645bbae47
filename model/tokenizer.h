// Text to token ids and back, as the model's own tokenizer.json says.
//
// Token for token the same as the Hugging Face `tokenizers` package on the byte-pair encodings that
// Weft's models use: byte-level (GPT-2, Llama 3, Qwen, OLMo, Granite, Tekken) and SentencePiece
// with byte fallback (Llama 2, Mistral). The fields "truncation" and "padding" are not applied:
// they are for batches of documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft {

class Tokenizer {
 public:
  /// Reads `directory`/tokenizer.json. Errors name the file, the field and the value.
  static Result<Tokenizer> open(const std::filesystem::path& directory);
  /// Reads the text of a tokenizer.json. `name_for_errors` stands for the file in messages.
  static Result<Tokenizer> parse(std::string_view json, std::string_view name_for_errors);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of `text`. Added tokens are recognised wherever they stand in it. `add_special` puts
  /// the post-processor's tokens around them (beginning of sequence, for most models). Fails for
  /// text that is not valid UTF-8, naming the byte. Safe to call from several threads.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special = true) const;

  /// The text of the ids, without special tokens if `skip_special`. Ids that no token has are left
  /// out. Bytes that are not UTF-8 come out as U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  /// The token as the vocabulary writes it (byte-level ones in GPT-2's alphabet: a space is
  /// U+0120); empty for an id that no token has.
  std::string_view token(int32_t id) const;
  /// The id of a token as the vocabulary writes it.
  std::optional<int32_t> find(std::string_view token) const;
  /// Whether `id` is a special token: one that is no text.
  bool is_special(int32_t id) const;
  /// The highest id + 1, added tokens included.
  int64_t vocab_size() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Turns a stream of ids into pieces of text, each of whole UTF-8 characters. A piece comes as soon
/// as later ids cannot change it; all pieces and flush() together are what decode() gives for all
/// ids.
class StreamDecoder {
 public:
  /// The tokenizer must outlive this (it may be moved).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  /// What the id adds to the text; empty while a character or a run of byte tokens is unfinished.
  std::string push(int32_t id);
  /// What was held back; the decoder then stands at the beginning of a new stream.
  std::string flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
