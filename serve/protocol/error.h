// What is wrong with a request, as a client of OpenAI's protocol reads it.
#pragma once

#include <string>

#include "serve/http/server.h"

namespace weft::serve {

struct ApiError {
  int status = 400;
  std::string message;  ///< one sentence: the thing, the value, what to do
  std::string param;    ///< the field that is wrong; empty: none
  std::string code;     ///< for programs ("model_not_found"); empty: none
};

/// {"error": {"message", "type", "param", "code"}}; the type follows from the status.
std::string error_json(const ApiError& error);
/// The same as a response; 503 and 429 say when to come again, 401 how to name a key.
HttpResponse error_response(const ApiError& error);

}  // namespace weft::serve
