// Requests that come and go: three texts are continued at once, each by its own rules.
//
//     requests MODEL_DIRECTORY [DEVICE]        cpu, cuda, cuda:1
//
// One thread steps all of them; submit() and cancel() are for any thread.
#include <weft/engine/slots.h>
#include <weft/model/config.h>
#include <weft/model/tokenizer.h>
#include <weft/model/weights.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Answer {
  std::string text;  // begins with the prompt
  std::vector<int32_t> tokens;
};

weft::Status run(const std::string& directory, const std::string& device) {
  WEFT_ASSIGN(const auto config, weft::read_config(directory));
  WEFT_ASSIGN(const auto tokenizer, weft::Tokenizer::open(directory));
  WEFT_ASSIGN(auto weights, weft::Weights::open(directory, config));
  WEFT_ASSIGN(const auto slots,
              weft::Slots::create(config, std::move(weights),
                                  {.device = device, .slots = 3, .context = 256}));

  std::map<weft::RequestId, Answer> answers;
  const auto submit = [&](const std::string& prompt, weft::Request request) -> weft::Status {
    WEFT_ASSIGN(request.prompt, tokenizer.encode(prompt));
    WEFT_ASSIGN(const weft::RequestId id, slots->submit(std::move(request)));
    answers[id].text = prompt;
    return {};
  };
  // The best token each time; drawn by chance from a seed; and one that is cancelled at a blank
  // line.
  WEFT_TRY(submit("def fibonacci(n):", {.max_tokens = 48}));
  WEFT_TRY(
      submit("class Stack:\n", {.max_tokens = 48, .sampling = {.temperature = 0.8F, .seed = 7}}));
  WEFT_TRY(submit("import os\n", {.max_tokens = 200}));
  const weft::RequestId until_blank = answers.rbegin()->first;

  const auto on_token = [&](const weft::TokenEvent& event) {
    Answer& answer = answers.at(event.id);
    answer.tokens.push_back(event.token);
    if (event.id == until_blank &&
        tokenizer.decode(answer.tokens).find("\n\n") != std::string::npos) {
      slots->cancel(event.id);
    }
  };
  const auto on_end = [&](const weft::EndEvent& event) {
    Answer& answer = answers.at(event.id);
    answer.text += tokenizer.decode(answer.tokens);
    std::cout << "--- request " << event.id << ": " << event.new_tokens
              << " new tokens, stop: " << weft::name_of(event.stop) << '\n'
              << answer.text << '\n';
  };
  for (bool more = true; more;) {
    WEFT_ASSIGN(more, slots->step(on_token, on_end));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: requests MODEL_DIRECTORY [DEVICE]\n";
    return 2;
  }
  const weft::Status status = run(argv[1], argc > 2 ? argv[2] : "cpu");
  if (!status.ok()) {
    std::cerr << status.error().message << '\n';
    return weft::exit_code(status.error().kind);
  }
}
