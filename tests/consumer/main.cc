// The smallest use of libweft from another project: the model in argv[1] continues the text in
// argv[2].
#include <weft/engine/engine.h>
#include <weft/model/config.h>
#include <weft/model/tokenizer.h>
#include <weft/model/weights.h>

#include <iostream>
#include <string>
#include <utility>

namespace {

weft::Result<std::string> complete(const char* directory, const char* prompt) {
  WEFT_ASSIGN(const auto config, weft::read_config(directory));
  WEFT_ASSIGN(const auto tokenizer, weft::Tokenizer::open(directory));
  WEFT_ASSIGN(auto weights, weft::Weights::open(directory, config));
  WEFT_ASSIGN(const auto engine, weft::Engine::create(config, std::move(weights), {}));
  WEFT_ASSIGN(const auto ids, tokenizer.encode(prompt));
  WEFT_ASSIGN(const auto generation, engine->generate(ids, {}, 32));
  return tokenizer.decode(generation.tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: consumer MODEL_DIRECTORY PROMPT\n";
    return 2;
  }
  const auto text = complete(argv[1], argv[2]);
  if (!text.ok()) {
    std::cerr << text.error().message << '\n';
    return weft::exit_code(text.error().kind);
  }
  std::cout << argv[2] << text.value() << '\n';
}
