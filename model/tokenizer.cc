#include "model/tokenizer.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "model/mapped_file.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/post_processor.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/vocabulary.h"

namespace weft {
namespace {

using tokenizer::AddedToken;
using tokenizer::AddedTokens;
using tokenizer::Bpe;
using tokenizer::Decoder;
using tokenizer::DecodeRun;
using tokenizer::Document;
using tokenizer::Field;
using tokenizer::Normalizer;
using tokenizer::PostProcessor;
using tokenizer::PreTokenizer;
using tokenizer::Stretch;
using tokenizer::Vocabulary;

constexpr size_t kMostFileBytes = size_t{1} << 30;
constexpr size_t kMostTextBytes = size_t{1} << 30;

/// The buffers of one call of encode(), kept for the next: the memo of words is worth keeping.
struct Scratch {
  std::vector<Stretch> in_text, in_normalized;
  std::string normalized;
  PreTokenizer::Words words;
  Bpe::Scratch bpe;
};

class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<Scratch>();
    }
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

/// The model's vocabulary, with room for the added tokens.
Result<Vocabulary> make_vocabulary(const Document& document, const AddedTokens& added,
                                   std::string_view name) {
  size_t bytes = 0;
  for (const auto& [token, id] : document.vocabulary) {
    bytes += token.size();
  }
  for (const AddedToken& token : added.all()) {
    bytes += token.content.size();
  }
  Vocabulary vocabulary(document.vocabulary.size() + added.all().size(), bytes);
  for (const auto& [token, id] : document.vocabulary) {
    if (const Status status = vocabulary.add(token, id); !status.ok()) {
      return input_error(fmt::format("{}: model.vocab: {}", name, status.error().message));
    }
  }
  return vocabulary;
}

/// Adds the tokens that are not in the model's vocabulary.
Status extend(Vocabulary& vocabulary, const AddedTokens& added, std::string_view name) {
  for (const AddedToken& token : added.all()) {
    if (vocabulary.find(token.content) == token.id) {
      continue;
    }
    if (const Status status = vocabulary.add(token.content, token.id); !status.ok()) {
      return input_error(fmt::format("{}: added_tokens: {}", name, status.error().message));
    }
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  Normalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;
  Decoder decoder;
  mutable ScratchPool scratch;

  Status encode_stretch(std::string_view text, bool at_start, Scratch& scratch,
                        std::vector<int32_t>& ids) const;
  Status encode_into(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;

  /// What the decoder gets for an id; empty data for ids that are left out.
  std::string_view decoded_token(int32_t id, bool skip_special) const {
    const AddedToken* token = added.find(id);
    if (token == nullptr) {
      return vocabulary.token(id);
    }
    return skip_special && token->special ? std::string_view()
                                          : std::string_view(token->normalized_content);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::open(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  WEFT_ASSIGN(const std::string text, read_text_file(path, kMostFileBytes));
  return parse(text, path.string());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name_for_errors) {
  WEFT_ASSIGN(const Document document, tokenizer::read_document(json, name_for_errors));
  const Field root(&document.rest, fmt::format("{}: ", name_for_errors));
  const Field model = root["model"];
  if (model.missing() || model["vocab"].missing() || model["merges"].missing()) {
    return model.error("must be an object with \"vocab\" and \"merges\"");
  }
  WEFT_TRY(Bpe::check_type(model));
  WEFT_TRY(model["vocab"].members());
  WEFT_TRY(model["merges"].elements());
  if (!document.problem.empty()) {
    return input_error(fmt::format("{}: {}", name_for_errors, document.problem));
  }
  WEFT_ASSIGN(Normalizer normalizer, Normalizer::parse(root["normalizer"]));
  WEFT_ASSIGN(AddedTokens added, AddedTokens::parse(root["added_tokens"], normalizer));
  WEFT_ASSIGN(Vocabulary vocabulary, make_vocabulary(document, added, name_for_errors));
  WEFT_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::parse(root["pre_tokenizer"]));
  WEFT_ASSIGN(Bpe bpe, Bpe::parse(model, document.merges, vocabulary, pre_tokenizer.byte_level()));
  WEFT_TRY(extend(vocabulary, added, name_for_errors));  // the model does not know them
  WEFT_ASSIGN(PostProcessor post_processor,
              PostProcessor::parse(root["post_processor"], vocabulary));
  WEFT_ASSIGN(Decoder decoder, Decoder::parse(root["decoder"]));
  return Tokenizer(std::unique_ptr<const Impl>(new Impl{std::move(vocabulary),
                                                        std::move(normalizer),
                                                        std::move(added),
                                                        std::move(pre_tokenizer),
                                                        std::move(bpe),
                                                        std::move(post_processor),
                                                        std::move(decoder),
                                                        {}}));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kMostTextBytes) {
    return input_error(fmt::format("a text of {} bytes is too long to tokenize; {} is the limit",
                                   text.size(), kMostTextBytes));
  }
  if (const size_t at = tokenizer::find_invalid_utf8(text); at != std::string_view::npos) {
    return input_error(fmt::format(
        "the text is not valid UTF-8, which is needed: byte {} (0x{:02x}) belongs to no "
        "character",
        at, static_cast<uint8_t>(text[at])));
  }
  std::vector<int32_t> ids;
  if (add_special) {
    ids = impl_->post_processor.before;
  }
  std::unique_ptr<Scratch> scratch = impl_->scratch.take();
  const Status status = impl_->encode_into(text, *scratch, ids);
  impl_->scratch.give(std::move(scratch));
  if (!status.ok()) {
    return status.error();
  }
  if (add_special) {
    ids.insert(ids.end(), impl_->post_processor.after.begin(), impl_->post_processor.after.end());
  }
  return ids;
}

Status Tokenizer::Impl::encode_into(std::string_view text, Scratch& scratch,
                                    std::vector<int32_t>& ids) const {
  scratch.in_text.clear();
  added.in_text().split(text, scratch.in_text);
  for (const Stretch& stretch : scratch.in_text) {
    if (stretch.id >= 0) {
      ids.push_back(stretch.id);
    } else {
      WEFT_TRY(encode_stretch(stretch.text, stretch.text.data() == text.data(), scratch, ids));
    }
  }
  return {};
}

/// Encodes text in which there is no added token but those that are looked for after normalising.
Status Tokenizer::Impl::encode_stretch(std::string_view text, bool at_start, Scratch& scratch,
                                       std::vector<int32_t>& ids) const {
  if (!normalizer.empty()) {
    scratch.normalized = text;
    WEFT_TRY(normalizer.apply(scratch.normalized));
    text = scratch.normalized;
  }
  scratch.in_normalized.clear();
  added.in_normalized().split(text, scratch.in_normalized);
  for (const Stretch& stretch : scratch.in_normalized) {
    if (stretch.id >= 0) {
      ids.push_back(stretch.id);
      continue;
    }
    WEFT_TRY(pre_tokenizer.split(stretch.text, at_start && stretch.text.data() == text.data(),
                                 scratch.words));
    for (const std::string_view word : scratch.words.words) {
      bpe.encode(word, scratch.bpe, ids);
    }
  }
  return {};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeRun run(impl_->decoder);
  std::string text;
  for (const int32_t id : ids) {
    const std::string_view token = impl_->decoded_token(id, skip_special);
    if (token.data() != nullptr) {
      run.push(token, text);
    }
  }
  run.finish(text);
  return text;
}

std::string_view Tokenizer::token(int32_t id) const { return impl_->vocabulary.token(id); }
std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  return impl_->vocabulary.find(token);
}
int64_t Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }
bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = impl_->added.find(id);
  return token != nullptr && token->special;
}

struct StreamDecoder::Impl {
  const Tokenizer::Impl& tokenizer;
  bool skip_special;
  DecodeRun run;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : impl_(new Impl{*tokenizer.impl_, skip_special, DecodeRun(tokenizer.impl_->decoder)}) {}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(int32_t id) {
  std::string text;
  const std::string_view token = impl_->tokenizer.decoded_token(id, impl_->skip_special);
  if (token.data() != nullptr) {
    impl_->run.push(token, text);
  }
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  impl_->run.finish(text);
  return text;
}

}  // namespace weft
