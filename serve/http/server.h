// HTTP/1.1: connections, requests and responses, whole or as they come. One thread does all input
// and output; nothing here waits for a client, and nothing here knows what is served.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";        ///< an address, not a name
  uint16_t port = 8000;                  ///< 0: any that is free
  size_t body_limit = size_t{16} << 20;  ///< bytes of a request's body; more: 413
  /// Bytes that wait for a client which does not read its stream; more: it is cut off.
  size_t backlog_limit = size_t{4} << 20;
  std::chrono::seconds idle_limit{75};     ///< between requests
  std::chrono::seconds request_limit{30};  ///< from a request's first byte to its last
};

struct HttpRequest {
  std::string method;  ///< "GET"
  std::string path;    ///< without what follows a '?'
  std::string host, origin, authorization;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  ///< beside Content-Type and what frames the body
};

/// A request and where its response goes. Used on the server's thread alone. When the client has
/// gone, what is written is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The request's body may be moved out.
  virtual HttpRequest& request() = 0;
  /// The whole response.
  virtual void respond(HttpResponse response) = 0;
  /// Begins a response that comes in pieces; its body is the first.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  /// Called once if the client goes before the response has been written to its end.
  virtual void on_gone(std::function<void()> gone) = 0;
};

class HttpServer {
 public:
  /// Sees a request without its body and may refuse it; then the body is not read.
  using Gate = std::function<std::optional<HttpResponse>(const HttpRequest&)>;
  using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;
  /// The response to what is no request (400, 408, 413, 431), with a sentence.
  using Refusal = std::function<HttpResponse(int status, std::string_view sentence)>;
  /// What every response to a request carries beside its own headers.
  using Extra = std::function<HttpHeaders(const HttpRequest&)>;

  /// Listens. Error (usage): the address or port cannot be had.
  static Result<std::unique_ptr<HttpServer>> create(const HttpOptions& options, Gate gate,
                                                    Handler handler, Refusal refusal, Extra extra);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual size_t connections() const = 0;
  /// Serves on the calling thread until stop(), or until drain() has ended the last connection.
  virtual void run() = 0;
  /// Has `task` called on the server's thread, in the order of the calls. From any thread.
  virtual void post(std::function<void()> task) = 0;
  /// Has `task` called on the server's thread after a time. On that thread, or before run().
  virtual void after(std::chrono::milliseconds time, std::function<void()> task) = 0;
  /// Has `task` called on the server's thread at each SIGTERM and SIGINT. Before run().
  virtual void on_signal(std::function<void()> task) = 0;
  /// Takes no more connections and ends each after its present response. On the server's thread.
  virtual void drain() = 0;
  /// Ends everything now. From any thread.
  virtual void stop() = 0;
};

}  // namespace weft::serve
