#include "serve/protocol/error.h"

#include <nlohmann/json.hpp>

namespace weft::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string error_json(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Json json = {{"error",
                      {{"message", error.message},
                       {"type", type_of(error.status)},
                       {"param", text_or_null(error.param)},
                       {"code", text_or_null(error.code)}}}};
  // What a client sent and a message repeats may be cut within a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{error.status, "application/json", error_json(error), {}};
  if (error.status == 503 || error.status == 429) {
    response.headers.emplace_back("Retry-After", "1");
  } else if (error.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

}  // namespace weft::serve
