// Arbitrary bytes as the body of a request to each endpoint.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "serve/protocol/request.h"

namespace {

/// What is refused is the client's fault, and can be said.
template <class T>
void check(const weft::serve::Parsed<T>& parsed) {
  if (const auto* error = std::get_if<weft::serve::ApiError>(&parsed)) {
    if (error->status != 400 || error->message.empty() || weft::serve::error_json(*error).empty()) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weft::serve::Endpoint;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::completions, Endpoint::chat, Endpoint::responses}) {
    check(weft::serve::parse_generate(endpoint, body));
  }
  check(weft::serve::parse_tokenize(body));
  check(weft::serve::parse_detokenize(body));
  return 0;
}
