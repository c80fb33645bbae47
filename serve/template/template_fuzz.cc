// Arbitrary bytes as a chat template, rendered over a conversation with tools.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "model/tokenizer/unicode.h"
#include "serve/template/evaluator.h"
#include "serve/template/syntax.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weft::jinja::Value;
  static const Value kMessages = Value::from_json(nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "s"}, {"role": "user", "content": "é <x> 12"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
    {"role": "tool", "content": "r"}])"));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (weft::tokenizer::find_invalid_utf8(text) != std::string_view::npos) {
    return 0;
  }
  weft::jinja::Limits limits;  // small: the fuzzer is to look at many templates
  limits.steps = 20'000;
  limits.bytes = limits.output = 1 << 20;
  limits.depth = 200;  // frames are larger under the sanitizers
  try {
    const weft::jinja::Body body = weft::jinja::parse_template(text);
    weft::jinja::Evaluator evaluator(limits, 0);
    const std::string out =
        evaluator.render(body, {{"messages", kMessages},
                                {"bos_token", Value::string("<s>")},
                                {"add_generation_prompt", Value::boolean(true)}});
    if (out.size() > static_cast<size_t>(limits.output) ||
        weft::tokenizer::find_invalid_utf8(out) != std::string_view::npos) {
      std::abort();
    }
  } catch (const weft::jinja::Failure& failure) {
    if (failure.message.find("line ") == std::string::npos) {
      std::abort();
    }
  }
  return 0;
}
