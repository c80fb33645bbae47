// HttpServer on Boost.Beast and Asio (decision 0017).
#include "serve/http/server.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <unordered_set>

namespace weft::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kHeaderLimit = size_t{64} << 10;
// What a client may send while its response is not complete; the rest waits in the system.
constexpr size_t kAheadLimit = size_t{64} << 10;
constexpr std::chrono::seconds kLinger{2};

std::string text_of(beast::string_view text) { return {text.data(), text.size()}; }

class Connection;

struct Shared {
  explicit Shared(HttpOptions given) : options(std::move(given)) {}
  HttpOptions options;
  HttpServer::Gate gate;
  HttpServer::Handler handler;
  HttpServer::Refusal refusal;
  HttpServer::Extra extra;
  std::unordered_set<Connection*> connections;
  bool draining = false;
};

/// A client's connection: reads a request, has it answered, reads the next.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), shared_(shared) {
    shared_.connections.insert(this);
  }
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    read_request();
  }
  void drain() {
    if (!exchange_ && !in_request_) {
      close();
    }
  }
  void close();

  // What an exchange asks for. `last`: the response ends here.
  void send(std::string_view bytes, bool last);
  bool keeps_alive() const { return keep_alive_ && !shared_.draining; }
  bool is_http_1_1() const { return http_1_1_; }

 private:
  class ExchangeOnConnection;

  void read_request();
  void read_header();
  void read_body();
  void refuse(error_code error);
  void answer(HttpResponse response);
  void expect_by(std::chrono::seconds limit);
  void watch();
  void flush();
  void finish_response();
  void linger();

  tcp::socket socket_;
  asio::steady_timer timer_;
  Shared& shared_;
  beast::flat_buffer buffer_{kHeaderLimit + kAheadLimit};
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  std::shared_ptr<ExchangeOnConnection> exchange_;
  std::string backlog_;  // what the socket has not yet taken
  size_t sent_ = 0;      // of it
  bool http_1_1_ = true, keep_alive_ = true, in_request_ = false;
  bool watching_ = false, writing_ = false, last_ = false, closed_ = false, lingers_ = false;
};

/// Outlives its connection in the hands of who answers; does nothing then.
class Connection::ExchangeOnConnection : public Exchange {
 public:
  ExchangeOnConnection(Connection& connection, HttpRequest request)
      : connection_(&connection),
        request_(std::move(request)),
        extra_(connection.shared_.extra(request_)) {}

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse response) override {
    send(head(response, fmt::format("Content-Length: {}\r\n", response.body.size())) +
             (request_.method == "HEAD" ? "" : response.body),
         true);
  }
  void begin(HttpResponse response) override {
    if (connection_ == nullptr) {
      return;
    }
    chunked_ = connection_->is_http_1_1();
    if (!chunked_) {
      connection_->keep_alive_ = false;  // the end of the connection ends the body
    }
    send(head(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : "") + chunk(response.body),
         false);
  }
  void write(std::string_view piece) override { send(chunk(piece), false); }
  void end() override { send(chunked_ ? "0\r\n\r\n" : "", true); }
  void on_gone(std::function<void()> gone) override { gone_ = std::move(gone); }

  /// The connection has written the response, or is no more.
  void leave(bool complete) {
    connection_ = nullptr;
    if (auto gone = std::exchange(gone_, {}); gone && !complete) {
      gone();
    }
  }

 private:
  std::string head(const HttpResponse& response, std::string_view framing) const {
    const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
    std::string text =
        fmt::format("HTTP/1.1 {} {}\r\n{}", response.status, text_of(reason), framing);
    if (!response.content_type.empty()) {
      text += fmt::format("Content-Type: {}\r\n", response.content_type);
    }
    for (const HttpHeaders* headers : {&response.headers, &extra_}) {
      for (const auto& [name, value] : *headers) {
        text += fmt::format("{}: {}\r\n", name, value);
      }
    }
    if (connection_ != nullptr && !connection_->keeps_alive()) {
      text += "Connection: close\r\n";
    }
    return text + "\r\n";
  }
  std::string chunk(std::string_view piece) const {
    if (!chunked_ || piece.empty()) {
      return std::string(piece);
    }
    return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  }
  void send(std::string_view bytes, bool last) {
    if (connection_ != nullptr) {
      connection_->send(bytes, last);
    }
  }

  Connection* connection_;
  HttpRequest request_;
  HttpHeaders extra_;
  bool chunked_ = false;
  std::function<void()> gone_;
};

Connection::~Connection() {
  shared_.connections.erase(this);
  if (exchange_) {  // the server ends: nobody is left to tell
    exchange_->on_gone({});
    exchange_->leave(false);
  }
}

void Connection::close() {
  if (closed_) {
    return;
  }
  closed_ = true;
  const auto self = shared_from_this();
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  if (const auto exchange = std::exchange(exchange_, nullptr)) {
    exchange->leave(false);
  }
}

void Connection::expect_by(std::chrono::seconds limit) {
  timer_.expires_after(limit);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) {
      self->close();
    }
  });
}

void Connection::read_request() {
  parser_.emplace();
  parser_->header_limit(kHeaderLimit);
  parser_->body_limit(shared_.options.body_limit);
  in_request_ = false;
  http_1_1_ = keep_alive_ = true;
  last_ = false;
  if (buffer_.size() > 0) {
    return read_header();
  }
  expect_by(shared_.options.idle_limit);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && !self->closed_) {
      self->read_header();
    }
  });
}

void Connection::read_header() {
  in_request_ = true;
  expect_by(shared_.options.request_limit);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) {
                            if (self->closed_) {
                              return;
                            }
                            if (error) {
                              return self->refuse(error);
                            }
                            const auto& message = self->parser_->get();
                            HttpRequest& request = self->request_;
                            const std::string target = text_of(message.target());
                            request = {};
                            request.method = text_of(message.method_string());
                            request.path = target.substr(0, target.find('?'));
                            request.host = text_of(message[http::field::host]);
                            request.origin = text_of(message[http::field::origin]);
                            request.authorization = text_of(message[http::field::authorization]);
                            self->http_1_1_ = message.version() >= 11;
                            self->keep_alive_ = message.keep_alive();
                            if (std::optional<HttpResponse> refusal = self->shared_.gate(request)) {
                              self->lingers_ = !self->parser_->is_done();
                              self->keep_alive_ = self->keep_alive_ && !self->lingers_;
                              return self->answer(std::move(*refusal));
                            }
                            if (beast::iequals(message[http::field::expect], "100-continue")) {
                              self->send("HTTP/1.1 100 Continue\r\n\r\n", false);
                            }
                            self->read_body();
                          });
}

void Connection::read_body() {
  http::async_read(
      socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
        if (self->closed_) {
          return;
        }
        if (error) {
          return self->refuse(error);
        }
        self->timer_.cancel();
        self->request_.body = std::move(self->parser_->get().body());
        self->exchange_ = std::make_shared<ExchangeOnConnection>(*self, std::move(self->request_));
        self->watch();
        self->shared_.handler(self->exchange_);
      });
}

/// Answers what is no request; a client that has gone gets nothing.
void Connection::refuse(error_code error) {
  if (error.category() != make_error_code(http::error::bad_method).category() ||
      error == http::error::end_of_stream || error == http::error::partial_message) {
    return close();
  }
  keep_alive_ = false;
  lingers_ = true;
  if (error == http::error::body_limit) {
    return answer(shared_.refusal(413, fmt::format("the request's body is longer than {} bytes",
                                                   shared_.options.body_limit)));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return answer(shared_.refusal(
        431, fmt::format("the request's header is longer than {} bytes", kHeaderLimit)));
  }
  answer(shared_.refusal(400, fmt::format("this is no HTTP request: {}", error.message())));
}

void Connection::answer(HttpResponse response) {
  timer_.cancel();
  exchange_ = std::make_shared<ExchangeOnConnection>(*this, std::move(request_));
  const auto exchange = exchange_;
  exchange->respond(std::move(response));
}

/// Notices that the client goes while its response is made, and keeps what it sends ahead.
void Connection::watch() {
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->watching_ = false;
    if (self->closed_) {
      return;
    }
    if (!self->exchange_) {
      return self->read_request();
    }
    if (error) {
      return;  // the response is complete to the last write, which goes on
    }
    error_code failed;
    const size_t room = kAheadLimit - std::min(kAheadLimit, self->buffer_.size());
    const size_t got = self->socket_.read_some(self->buffer_.prepare(room), failed);
    self->buffer_.commit(got);
    if (failed && failed != asio::error::would_block) {
      return self->close();
    }
    if (self->buffer_.size() < kAheadLimit) {
      self->watch();
    }
  });
}

void Connection::send(std::string_view bytes, bool last) {
  if (closed_) {
    return;
  }
  last_ = last_ || last;
  if (!writing_) {
    error_code error;
    const size_t taken =
        bytes.empty() ? 0 : socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (error && error != asio::error::would_block) {
      return close();
    }
    bytes.remove_prefix(taken);
  }
  backlog_ += bytes;
  if (!last && backlog_.size() - sent_ > shared_.options.backlog_limit) {
    return close();
  }
  if (!writing_) {
    flush();
  }
}

void Connection::flush() {
  if (sent_ == backlog_.size()) {
    backlog_.clear();
    sent_ = 0;
    if (last_ && exchange_) {
      finish_response();
    }
    return;
  }
  writing_ = true;
  socket_.async_write_some(asio::buffer(backlog_.data() + sent_, backlog_.size() - sent_),
                           [self = shared_from_this()](error_code error, size_t taken) {
                             self->writing_ = false;
                             if (self->closed_) {
                               return;
                             }
                             if (error) {
                               return self->close();
                             }
                             self->sent_ += taken;
                             if (self->sent_ > (size_t{1} << 20)) {
                               self->backlog_.erase(0, self->sent_);
                               self->sent_ = 0;
                             }
                             self->flush();
                           });
}

void Connection::finish_response() {
  std::exchange(exchange_, nullptr)->leave(true);
  if (lingers_) {
    return linger();
  }
  if (!keeps_alive()) {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    return close();
  }
  if (watching_) {
    error_code ignored;
    socket_.cancel(ignored);  // watch() goes on to the next request
  } else {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      if (!self->closed_) {
        self->read_request();
      }
    });
  }
}

/// Reads what the client still sends: closed with bytes unread, a connection is reset, and the
/// client would not see the response.
void Connection::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  expect_by(kLinger);
  struct Drain {
    static void more(const std::shared_ptr<Connection>& self) {
      self->buffer_.clear();
      self->socket_.async_read_some(self->buffer_.prepare(kAheadLimit),
                                    [self](error_code error, size_t) {
                                      if (!self->closed_) {
                                        error ? self->close() : more(self);
                                      }
                                    });
    }
  };
  Drain::more(shared_from_this());
}

class BeastServer : public HttpServer {
 public:
  explicit BeastServer(const HttpOptions& options)
      : shared_(options), acceptor_(context_), signals_(context_), wakes_(context_) {}

  Shared& shared() { return shared_; }

  Status listen() {
    const HttpOptions& options = shared_.options;
    error_code error;
    const auto address = asio::ip::make_address(options.host, error);
    if (error) {
      return usage_error(
          fmt::format("--host {}: is no address; use 127.0.0.1, 0.0.0.0 (every interface) or ::",
                      options.host));
    }
    const tcp::endpoint endpoint(address, options.port);
    const auto step = [&](auto&& call) {
      if (!error) {
        call();
      }
    };
    step([&] { acceptor_.open(endpoint.protocol(), error); });
    step([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), error); });
    step([&] { acceptor_.bind(endpoint, error); });
    step([&] { acceptor_.listen(1024, error); });
    if (error) {
      return usage_error(fmt::format("--port {}: cannot listen on {}: {}; use another port",
                                     options.port, options.host, error.message()));
    }
    const int wakes = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wakes < 0) {
      return device_error("the system gives no eventfd: raise the limit of open files (ulimit -n)");
    }
    wakes_.assign(wakes);
    wait_for_tasks();
    accept();
    return {};
  }

  uint16_t port() const override {
    error_code error;
    return acceptor_.local_endpoint(error).port();
  }
  size_t connections() const override { return shared_.connections.size(); }
  void run() override { context_.run(); }
  void post(std::function<void()> task) override {
    bool asleep = false;
    {
      const std::lock_guard lock(posted_mutex_);
      asleep = posted_.empty();
      posted_.push_back(std::move(task));
    }
    // asio::post() wakes the server's thread with its mutex held, on which that thread then sleeps
    // anew: two more switches a token.
    if (asleep) {
      const uint64_t one = 1;
      (void)!::write(wakes_.native_handle(), &one, sizeof one);
    }
  }
  void after(std::chrono::milliseconds time, std::function<void()> task) override {
    auto timer = std::make_shared<asio::steady_timer>(context_, time);
    timer->async_wait([timer, task = std::move(task)](error_code error) {
      if (!error) {
        task();
      }
    });
  }
  void on_signal(std::function<void()> task) override {
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    wait_for_signal(std::move(task));
  }
  void drain() override {
    if (shared_.draining) {
      return;
    }
    shared_.draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    const std::vector<Connection*> all(shared_.connections.begin(), shared_.connections.end());
    for (Connection* connection : all) {
      connection->drain();
    }
    leave_when_empty();
  }
  void stop() override { context_.stop(); }

 private:
  void wait_for_tasks() {
    wakes_.async_read_some(asio::buffer(&wake_count_, sizeof wake_count_),
                           [this](error_code error, size_t) {
                             if (error) {
                               return;
                             }
                             {
                               const std::lock_guard lock(posted_mutex_);
                               running_.swap(posted_);
                             }
                             for (const std::function<void()>& task : running_) {
                               task();
                             }
                             running_.clear();
                             wait_for_tasks();
                           });
  }
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) {
        return;
      }
      if (error) {  // out of descriptors, most likely: some will be given back
        return after(std::chrono::milliseconds(50), [this] {
          if (acceptor_.is_open()) {
            accept();
          }
        });
      }
      std::make_shared<Connection>(std::move(socket), shared_)->start();
      accept();
    });
  }
  void wait_for_signal(std::function<void()> task) {
    signals_.async_wait([this, task = std::move(task)](error_code error, int) {
      if (!error) {
        task();
        wait_for_signal(task);
      }
    });
  }
  void leave_when_empty() {
    if (shared_.connections.empty()) {
      return context_.stop();
    }
    after(std::chrono::milliseconds(5), [this] { leave_when_empty(); });
  }

  Shared shared_;  // outlives the connections that the context holds
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::posix::stream_descriptor wakes_;  // an eventfd: tasks have been posted
  uint64_t wake_count_ = 0;
  std::vector<std::function<void()>> running_;
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpOptions& options, Gate gate,
                                                       Handler handler, Refusal refusal,
                                                       Extra extra) {
  auto server = std::make_unique<BeastServer>(options);
  server->shared().gate = std::move(gate);
  server->shared().handler = std::move(handler);
  server->shared().refusal = std::move(refusal);
  server->shared().extra = std::move(extra);
  WEFT_TRY(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace weft::serve
