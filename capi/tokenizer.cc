// The C interface's tokenizers.
#include "model/tokenizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "capi/interface.h"
#include "engine/stop_filter.h"

struct weft_tokenizer {
  weft::Tokenizer tokenizer;
};

struct weft_stream_decoder {
  weft::StreamDecoder decoder;
  weft::StopFilter filter;
  std::string piece;
};

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

weft_status weft_tokenizer_open(const char* directory, weft_tokenizer** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(directory, "directory"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(Tokenizer tokenizer, Tokenizer::open(directory));
    *out = new weft_tokenizer{std::move(tokenizer)};
    return {};
  });
}

void weft_tokenizer_close(weft_tokenizer* tokenizer) { delete tokenizer; }

int64_t weft_tokenizer_size(const weft_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->tokenizer.vocab_size();
}

weft_status weft_encode(const weft_tokenizer* tokenizer, const char* text, size_t bytes,
                        int32_t add_special, int32_t* ids, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(tokenizer, "tokenizer"));
    WEFT_TRY(check_pointer(text, "text"));
    WEFT_TRY(check_pointer(count, "count"));
    WEFT_ASSIGN(const std::vector<int32_t> all,
                tokenizer->tokenizer.encode({text, bytes}, add_special != 0));
    std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
    *count = all.size();
    return {};
  });
}

weft_status weft_decode(const weft_tokenizer* tokenizer, const int32_t* ids, size_t count,
                        int32_t skip_special, char* text, size_t capacity, size_t* bytes) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(tokenizer, "tokenizer"));
    WEFT_TRY(count == 0 ? Status() : check_pointer(ids, "ids"));
    WEFT_TRY(check_pointer(bytes, "bytes"));
    const std::string all = tokenizer->tokenizer.decode({ids, count}, skip_special != 0);
    std::copy_n(all.begin(), std::min(capacity, all.size()), text);
    *bytes = all.size();
    return {};
  });
}

weft_status weft_stream_decoder_open(const weft_tokenizer* tokenizer, const char* const* stops,
                                     size_t count, weft_stream_decoder** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(tokenizer, "tokenizer"));
    WEFT_TRY(check_pointer(out, "out"));
    std::vector<std::string> all;
    for (size_t i = 0; i < count; ++i) {
      WEFT_TRY(check_pointer(stops[i], "stops"));
      all.emplace_back(stops[i]);
    }
    *out = new weft_stream_decoder{
        StreamDecoder(tokenizer->tokenizer), StopFilter(std::move(all)), {}};
    return {};
  });
}

void weft_stream_decoder_close(weft_stream_decoder* decoder) { delete decoder; }

weft_status weft_stream_decoder_push(weft_stream_decoder* decoder, int32_t id, const char** text,
                                     size_t* bytes, int32_t* stopped) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(decoder, "decoder"));
    WEFT_TRY(check_pointer(text, "text"));
    WEFT_TRY(check_pointer(bytes, "bytes"));
    WEFT_TRY(check_pointer(stopped, "stopped"));
    if (id >= 0) {
      decoder->piece = decoder->filter.push(decoder->decoder.push(id));
    } else {
      decoder->piece = decoder->filter.push(decoder->decoder.flush());
      if (!decoder->filter.stopped()) {
        decoder->piece += decoder->filter.flush();
      }
    }
    *text = decoder->piece.data();
    *bytes = decoder->piece.size();
    *stopped = decoder->filter.stopped() ? 1 : 0;
    return {};
  });
}
