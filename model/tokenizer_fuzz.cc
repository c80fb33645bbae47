// Arbitrary bytes as a tokenizer.json and as a text: the input up to its first NUL byte is the
// file, the rest is encoded and decoded with it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const weft::Result<weft::Tokenizer> tokenizer =
      weft::Tokenizer::parse(input.substr(0, end), "fuzz");
  if (!tokenizer.ok()) {
    return 0;
  }
  const weft::Result<std::vector<int32_t>> encoded =
      tokenizer->encode(input.substr(std::min(end + 1, size)));
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(tokenizer->vocab_size(), 1000)));
  std::iota(ids.begin(), ids.end(), -1);
  if (encoded.ok()) {
    ids.insert(ids.end(), encoded->begin(), encoded->end());
  }
  for (const bool skip_special : {false, true}) {
    weft::StreamDecoder decoder(*tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += decoder.push(id);
    }
    streamed += decoder.flush();
    if (streamed != tokenizer->decode(ids, skip_special)) {
      std::abort();
    }
  }
  return 0;
}
