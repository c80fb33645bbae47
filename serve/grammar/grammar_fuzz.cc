// Arbitrary bytes as a GBNF grammar, a regular expression or a JSON schema; then tokens are drawn
// by its masks, each of which must be taken.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "model/json.h"
#include "serve/grammar/matcher.h"

namespace {

using namespace weft::grammar;

weft::Result<Rules> read(uint8_t kind, std::string_view text) {
  if (kind % 3 == 0) {
    return read_gbnf(text);
  }
  if (kind % 3 == 1) {
    return read_regex(text);
  }
  auto schema = weft::parse_ordered_json(text, "schema");
  return schema.ok() ? read_schema(schema.value()) : weft::Result<Rules>(schema.error());
}

std::shared_ptr<const Vocabulary> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* text :
       {"\",", "\": ", "{\"", "\"}", "ab", "abc", "12", "null", "((", "))", "é"}) {
    tokens.emplace_back(text);
  }
  tokens.emplace_back();
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  return std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{end});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokens = vocabulary();
  if (size == 0) {
    return 0;
  }
  auto rules = read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!rules.ok()) {
    return 0;
  }
  auto grammar = Grammar::make(rules.value(), tokens);
  if (!grammar.ok()) {
    return 0;
  }
  Matcher matcher(grammar.value());
  uint32_t random = 1;
  for (int step = 0; step < 20; ++step) {
    const auto mask = matcher.mask();
    std::vector<int32_t> allowed;
    for (size_t id = 0; id + 1 < tokens->size(); ++id) {
      if ((mask[id / 32] >> (id % 32) & 1) != 0) {
        allowed.push_back(static_cast<int32_t>(id));
      }
    }
    if (allowed.empty()) {
      break;
    }
    random = random * 1664525 + 1013904223;
    if (!matcher.accept(allowed[(random >> 8) % allowed.size()])) {
      std::abort();
    }
  }
  return 0;
}
