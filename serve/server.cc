#include "serve/server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "arch/cpu/threads.h"
#include "serve/log.h"
#include "serve/metrics.h"
#include "serve/page.h"
#include "serve/worker.h"

namespace weft::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSilence{15};  // then a stream says that it lives

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Whether two texts are equal, in a time that tells nothing of `secret`.
bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  size_t different = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size() && !secret.empty(); ++i) {
    different |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  }
  return different == 0;
}

/// A request from its arrival to its log line.
struct Job {
  std::shared_ptr<Exchange> exchange;
  std::string path;
  std::unique_ptr<Answer> answer;  // once it is prepared
  std::vector<std::shared_ptr<TextScore>> scores;
  std::vector<RequestId> live;  // in the engine
  size_t unscored = 0;          // prompts
  uint64_t seed = 0;
  std::vector<Clock::time_point> last_token;  // of choices
  Clock::time_point arrived, submitted, first_token;
  double waited = 0;       // seconds from `submitted` to a slot
  Clock::time_point said;  // something to the client, if it streams
  bool has_token = false, gone = false, finished = false;
  int status = 200;
  std::string error;
};

/// Where the engine's events of a request go.
struct Route {
  std::shared_ptr<Job> job;
  size_t index = 0;     // choice, or prompt
  bool scores = false;  // a prompt
};

/// What a step of the engine brought.
struct Events {
  Clock::time_point at;
  std::vector<TokenEvent> tokens;
  std::vector<EndEvent> ends;
};

class Server {
 public:
  explicit Server(const ServeOptions& options)
      : options_(options), started_(std::chrono::system_clock::now()) {}

  Result<int> run(const std::function<Result<ServedModel>()>& load);

 private:
  enum class State { loading, ready, draining, failed };

  // On the caller's thread.
  Status step_engine(Slots& slots);
  void wake_engine();

  // On the server's thread.
  std::optional<HttpResponse> gate(const HttpRequest& request);
  void handle(const std::shared_ptr<Exchange>& exchange);
  void on_signal();
  void fail(const std::string& message);
  void reassure();
  void generate(const std::shared_ptr<Exchange>& exchange, Endpoint endpoint);
  void start(const std::shared_ptr<Job>& job, Parsed<Work> prepared);
  bool submit(const std::shared_ptr<Job>& job, Request request, size_t index, bool scores);
  void submit_choices(const std::shared_ptr<Job>& job);
  void on_events(const Events& events);
  void on_token(const TokenEvent& event, Clock::time_point at);
  void on_end(const EndEvent& event, Clock::time_point at);
  void cancel(const Job& job);
  void refuse(const std::shared_ptr<Job>& job, const ApiError& error);
  void finish_if_done(const std::shared_ptr<Job>& job);
  void log(const Job& job);
  bool may_use(const HttpRequest& request) const;
  bool allows(const HttpRequest& request) const;
  HttpHeaders headers_for(const HttpRequest& request) const;
  HttpResponse health() const;
  HttpResponse models() const;
  void transform(const std::shared_ptr<Exchange>& exchange,
                 Parsed<Json> (*make)(const ServedModel&, std::string_view));

  ServeOptions options_;
  std::chrono::system_clock::time_point started_;
  std::unique_ptr<HttpServer> http_;
  const ServedModel* model_ = nullptr;  // once it is loaded
  State state_ = State::loading;
  Metrics metrics_;
  std::unordered_map<RequestId, Route> routes_;
  int64_t requests_ = 0;  // accepted and not finished
  uint64_t answers_ = std::random_device()();
  std::mt19937_64 seeds_{std::random_device()()};
  std::atomic<bool> stopped_{false};
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  RequestLog request_log_;
  Workers workers_{2};
};

struct Endpoints {
  std::string_view path, method;
};
constexpr Endpoints kEndpoints[] = {
    {"/", "GET"},          {"/health", "GET"},          {"/metrics", "GET"},
    {"/v1/models", "GET"}, {"/v1/completions", "POST"}, {"/v1/chat/completions", "POST"},
    {"/tokenize", "POST"}, {"/detokenize", "POST"},     {"/v1/responses", "POST"}};

bool is_open(std::string_view path) {
  return path == "/" || path == "/health" || path == "/metrics";
}

bool Server::may_use(const HttpRequest& request) const {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view given = request.authorization;
  const std::string_view key =
      given.starts_with(kBearer) ? given.substr(kBearer.size()) : std::string_view();
  bool found = false;
  for (const std::string& secret : options_.api_keys) {
    found = equal_in_constant_time(key, secret) || found;
  }
  return found || options_.api_keys.empty() || is_open(request.path);
}

/// Whether a page of the request's origin may read answers: the server's own, or one that is named.
bool Server::allows(const HttpRequest& request) const {
  const std::string& origin = request.origin;
  if (origin.empty() || origin == "http://" + request.host || origin == "https://" + request.host) {
    return true;
  }
  return std::any_of(
      options_.cors_origins.begin(), options_.cors_origins.end(),
      [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

HttpHeaders Server::headers_for(const HttpRequest& request) const {
  if (request.origin.empty() || options_.cors_origins.empty() || !allows(request)) {
    return {};
  }
  HttpHeaders headers = {{"Access-Control-Allow-Origin", request.origin}, {"Vary", "Origin"}};
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
    headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type");
    headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return headers;
}

std::optional<HttpResponse> Server::gate(const HttpRequest& request) {
  const auto refuse = [&](const ApiError& error, const char* reason) {
    ++metrics_.refused[reason];
    return error_response(error);
  };
  if (!allows(request)) {
    return refuse({403, "the origin is not allowed: start the server with --cors-origins", "", ""},
                  "origin");
  }
  if (request.method == "OPTIONS") {
    return HttpResponse{204, "", "", {}};
  }
  if (!may_use(request)) {
    return refuse({401, "the API key is missing or wrong: send Authorization: Bearer KEY", "",
                   "invalid_api_key"},
                  "key");
  }
  const bool of_model = request.path.starts_with("/v1/models/");
  const auto* endpoint = std::find_if(
      std::begin(kEndpoints), std::end(kEndpoints),
      [&](const Endpoints& each) { return each.path == (of_model ? "/v1/models" : request.path); });
  if (endpoint == std::end(kEndpoints)) {
    return refuse({404,
                   fmt::format("{} is not here; see docs/serving.md for what is",
                               request.path.substr(0, 100)),
                   "", ""},
                  "path");
  }
  const bool fits =
      request.method == endpoint->method || (request.method == "HEAD" && endpoint->method == "GET");
  if (!fits) {
    HttpResponse response = refuse(
        {405, fmt::format("{} takes {}", endpoint->path, endpoint->method), "", ""}, "method");
    response.headers.emplace_back("Allow", endpoint->method);
    return response;
  }
  if (endpoint->method == "POST" || endpoint->path == "/v1/models") {
    if (state_ == State::loading) {
      return refuse({503, "the model is being loaded", "", "loading"}, "loading");
    }
    if (state_ == State::failed) {
      return refuse({503, "the engine has failed: the server must be started again", "", ""},
                    "failed");
    }
  }
  const int64_t here = std::max(requests_, std::ssize(routes_));
  if (endpoint->method == "POST" && here >= options_.max_requests) {
    return refuse({503,
                   fmt::format("{} requests are being answered or wait, as many as may: come "
                               "again",
                               here),
                   "", "overloaded"},
                  "overload");
  }
  return {};
}

HttpResponse Server::health() const {
  switch (state_) {
    case State::ready:
      return {200, "application/json", R"({"status":"ok"})", {}};
    case State::loading:
      return error_response({503, "the model is being loaded", "", "loading"});
    case State::draining:
      return error_response({503, "the server ends", "", "draining"});
    case State::failed:
      return error_response({503, "the engine has failed", "", ""});
  }
  return {};
}

HttpResponse Server::models() const {
  const Json one = {{"id", model_->name},
                    {"object", "model"},
                    {"created", std::chrono::system_clock::to_time_t(started_)},
                    {"owned_by", "weft"},
                    {"max_model_len", model_->slots->context()},
                    {"chat", model_->chat.ok()}};
  return {200, "application/json", Json{{"object", "list"}, {"data", {one}}}.dump(), {}};
}

void Server::handle(const std::shared_ptr<Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  if (path == "/") {
    exchange->respond({200,
                       "text/html; charset=utf-8",
                       std::string(kPage),
                       {{"Content-Security-Policy",
                         "default-src 'none'; style-src 'unsafe-inline'; script-src "
                         "'unsafe-inline'; connect-src 'self'; img-src data:"}}});
  } else if (path == "/health") {
    exchange->respond(health());
  } else if (path == "/metrics") {
    const SlotsStatus status = model_ ? model_->slots->status() : SlotsStatus{};
    exchange->respond({200,
                       "text/plain; version=0.0.4; charset=utf-8",
                       metrics_.page(model_ ? model_->name : "", status, http_->connections()),
                       {}});
  } else if (path == "/v1/models") {
    exchange->respond(models());
  } else if (path.starts_with("/v1/models/")) {
    const bool here = path.substr(std::string_view("/v1/models/").size()) == model_->name;
    exchange->respond(
        here ? HttpResponse{200,
                            "application/json",
                            Json::parse(models().body)["data"][0].dump(),
                            {}}
             : error_response({404, "this model is not here", "model", "model_not_found"}));
  } else if (path == "/tokenize") {
    transform(exchange, tokenize);
  } else if (path == "/detokenize") {
    transform(exchange, detokenize);
  } else {
    generate(exchange, path == "/v1/completions"        ? Endpoint::completions
                       : path == "/v1/chat/completions" ? Endpoint::chat
                                                        : Endpoint::responses);
  }
}

void Server::transform(const std::shared_ptr<Exchange>& exchange,
                       Parsed<Json> (*make)(const ServedModel&, std::string_view)) {
  ++requests_;
  workers_.hand_over([this, exchange, make] {
    Parsed<Json> made = make(*model_, exchange->request().body);
    http_->post([this, exchange, made = std::move(made)] {
      --requests_;
      const auto* error = std::get_if<ApiError>(&made);
      exchange->respond(
          error != nullptr
              ? error_response(*error)
              : HttpResponse{200, "application/json", std::get<Json>(made).dump(), {}});
    });
  });
}

void Server::generate(const std::shared_ptr<Exchange>& exchange, Endpoint endpoint) {
  auto job = std::make_shared<Job>();
  job->exchange = exchange;
  job->path = exchange->request().path;
  job->arrived = Clock::now();
  ++requests_;
  exchange->on_gone([this, weak = std::weak_ptr(job)] {
    if (const auto gone = weak.lock()) {
      gone->gone = true;
      cancel(*gone);
    }
  });
  workers_.hand_over([this, job, endpoint] {
    Parsed<Work> prepared = prepare(*model_, endpoint, job->exchange->request().body);
    http_->post(
        [this, job, prepared = std::move(prepared)]() mutable { start(job, std::move(prepared)); });
  });
}

void Server::refuse(const std::shared_ptr<Job>& job, const ApiError& error) {
  job->status = error.status;
  job->error = error.message;
  cancel(*job);
  job->exchange->respond(error_response(error));
  job->answer.reset();
  finish_if_done(job);
}

void Server::start(const std::shared_ptr<Job>& job, Parsed<Work> prepared) {
  if (job->gone) {
    return finish_if_done(job);
  }
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    return refuse(job, *error);
  }
  if (state_ == State::failed) {
    return refuse(job, {500, "the engine has failed: the server must be started again", "", ""});
  }
  Work work = std::get<Work>(std::move(prepared));
  job->seed = work.request.seed.value_or(seeds_());
  job->answer = std::make_unique<Answer>(job->exchange, model_->tokenizer, model_->name, ++answers_,
                                         std::move(work));
  const Work& kept = job->answer->work();
  const GenerateRequest& request = kept.request;
  metrics_.n.observe(request.n);
  metrics_.max_tokens.observe(static_cast<double>(request.max_tokens.value_or(0)));
  metrics_.prompt_tokens.observe(static_cast<double>(job->answer->prompt_tokens()));
  metrics_.prompt_tokens_total += static_cast<uint64_t>(job->answer->prompt_tokens());
  job->submitted = Clock::now();
  if ((request.echo && request.logprobs) || request.prompt_logprobs) {
    for (size_t i = 0; i < kept.prompts.size(); ++i) {
      job->scores.push_back(std::make_shared<TextScore>());
      if (kept.prompts[i].size() > 1) {
        ++job->unscored;
        if (!submit(job, score_request(kept, i, job->scores[i]), i, true)) {
          return;
        }
      }
    }
  }
  if (job->unscored == 0) {
    submit_choices(job);
  }
}

/// False: the engine did not take it, and the request has been refused.
bool Server::submit(const std::shared_ptr<Job>& job, Request request, size_t index, bool scores) {
  const Result<RequestId> id = model_->slots->submit(std::move(request));
  if (!id.ok()) {
    const bool full = id.error().kind == ErrorKind::usage;
    metrics_.refused["overload"] += full ? 1 : 0;
    refuse(job, {full ? 503 : 400, id.error().message, "", full ? "overloaded" : ""});
    return false;
  }
  routes_[*id] = {job, index, scores};
  job->live.push_back(*id);
  wake_engine();
  return true;
}

void Server::submit_choices(const std::shared_ptr<Job>& job) {
  Answer& answer = *job->answer;
  const Work& work = answer.work();
  for (size_t i = 0; i < job->scores.size(); ++i) {
    answer.score(i, std::move(*job->scores[i]));
  }
  job->last_token.resize(answer.choices());
  const auto n = static_cast<size_t>(work.request.n);
  if (work.request.max_tokens != 0) {
    for (size_t i = 0; i < answer.choices(); ++i) {
      Request request = engine_request(*model_, work, i / n, static_cast<int>(i % n), job->seed);
      if (!submit(job, std::move(request), i, false)) {
        return;
      }
    }
  }
  answer.begin();
  job->said = Clock::now();
  for (size_t i = 0; i < answer.choices() && work.request.max_tokens == 0; ++i) {
    answer.end(i, {0, Stop::length, 0, 0, 0});
  }
  finish_if_done(job);
}

void Server::cancel(const Job& job) {
  for (const RequestId id : job.live) {
    model_->slots->cancel(id);
  }
  wake_engine();
}

void Server::on_events(const Events& events) {
  for (const TokenEvent& event : events.tokens) {
    on_token(event, events.at);
  }
  for (const EndEvent& event : events.ends) {
    on_end(event, events.at);
  }
}

void Server::on_token(const TokenEvent& event, Clock::time_point at) {
  const auto found = routes_.find(event.id);
  if (found == routes_.end() || found->second.scores || !found->second.job->answer) {
    return;
  }
  Job& job = *found->second.job;
  const size_t index = found->second.index;
  if (job.gone) {
    return;
  }
  job.answer->token(index, event);
  job.said = at;
  ++metrics_.generation_tokens_total;
  if (!std::exchange(job.has_token, true)) {
    job.first_token = at;
    metrics_.time_to_first_token.observe(seconds_between(job.arrived, at));
    job.waited = event.waited;
    metrics_.queue_time.observe(job.waited);
    metrics_.prefill_time.observe(seconds_between(job.submitted, at) - job.waited);
  }
  const Clock::time_point last = std::exchange(job.last_token[index], at);
  if (last != Clock::time_point()) {
    metrics_.inter_token_latency.observe(seconds_between(last, at));
  }
  if (job.answer->choice(index).stopped()) {
    model_->slots->cancel(event.id);
  }
}

void Server::on_end(const EndEvent& event, Clock::time_point at) {
  const auto found = routes_.find(event.id);
  if (found == routes_.end()) {
    return;
  }
  const Route route = std::move(found->second);
  routes_.erase(found);
  const std::shared_ptr<Job>& job = route.job;
  std::erase(job->live, event.id);
  if (job->answer && !job->gone) {
    if (route.scores) {
      --job->unscored;
      if (job->unscored == 0) {
        submit_choices(job);
      }
    } else {
      job->answer->end(route.index, event);
      ++metrics_.finished[job->answer->choice(route.index).finish_reason()];
      metrics_.cached_tokens_total += static_cast<uint64_t>(event.cached_tokens);
      if (job->has_token) {
        const double decode = seconds_between(job->first_token, at);
        metrics_.decode_time.observe(decode);
        metrics_.inference_time.observe(seconds_between(job->submitted, at) - job->waited);
        if (event.new_tokens > 1) {
          metrics_.time_per_output_token.observe(decode /
                                                 static_cast<double>(event.new_tokens - 1));
        }
      }
    }
  } else if (!route.scores) {
    ++metrics_.finished["abort"];
  }
  finish_if_done(job);
}

void Server::finish_if_done(const std::shared_ptr<Job>& job) {
  const bool complete = !job->answer || job->gone || job->answer->complete();
  if (!complete || !job->live.empty() || std::exchange(job->finished, true)) {
    return;
  }
  --requests_;
  if (job->answer) {
    metrics_.e2e_latency.observe(seconds_between(job->arrived, Clock::now()));
    metrics_.generation_tokens.observe(static_cast<double>(job->answer->new_tokens()));
  }
  log(*job);
}

void Server::log(const Job& job) {
  if (!options_.log) {
    return;
  }
  Json line = {{"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
               {"path", job.path},
               {"status", job.gone ? 499 : job.status}};
  if (job.answer) {
    const Answer& answer = *job.answer;
    line["id"] = answer.id();
    line["stream"] = answer.work().request.stream;
    line["choices"] = answer.choices();
    line["prompt_tokens"] = answer.prompt_tokens();
    line["cached_tokens"] = answer.cached_tokens();
    line["new_tokens"] = answer.new_tokens();
  }
  if (job.has_token) {
    line["first_token_seconds"] = seconds_between(job.arrived, job.first_token);
  }
  line["seconds"] = seconds_between(job.arrived, Clock::now());
  if (!job.error.empty()) {
    line["error"] = job.error;
  }
  request_log_.write(line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Server::on_signal() {
  if (state_ == State::loading) {
    std::_Exit(0);  // nothing is being answered, and loading cannot be interrupted
  }
  if (state_ == State::draining) {
    return http_->stop();
  }
  state_ = State::draining;
  http_->drain();
  http_->after(options_.drain_limit, [this] { http_->stop(); });
}

/// The engine has failed: everyone is told, and no one else is let in.
void Server::fail(const std::string& message) {
  state_ = State::failed;
  for (const auto& [id, route] : std::exchange(routes_, {})) {
    route.job->live.clear();
    if (route.job->answer && !route.job->answer->complete()) {
      route.job->status = 500;
      route.job->error = message;
      route.job->answer->fail({500, message, "", ""});
    }
    finish_if_done(route.job);
  }
}

/// Streams that had nothing to say for long say so, lest a proxy takes them for dead.
void Server::reassure() {
  const Clock::time_point now = Clock::now();
  for (const auto& [id, route] : routes_) {
    Job& job = *route.job;
    if (job.answer && job.answer->begun() && now - job.said > kSilence) {
      job.exchange->write(": still here\n\n");
      job.said = now;
    }
  }
  http_->after(kSilence / 3, [this] { reassure(); });
}

void Server::wake_engine() {
  {
    const std::lock_guard lock(wake_mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

Status Server::step_engine(Slots& slots) {
  // Once, and not in every step: a thread that comes from another core loses microseconds.
  std::optional<cpu::PinnedThread> pinned;
  if (const int workers = slots.cpu_workers(); workers > 0) {
    pinned.emplace(0);
    http_->post([workers] { cpu::keep_off_workers(workers); });
  }
  Events events;
  const auto post = [&] {
    if (!events.tokens.empty() || !events.ends.empty()) {
      events.at = Clock::now();
      http_->post([this, events = std::exchange(events, {})] { on_events(events); });
    }
  };
  while (!stopped_) {
    // A step of a GPU may be several: tokens go out while it runs.
    const Result<bool> busy = slots.step(
        [&](const TokenEvent& event) {
          events.tokens.push_back(event);
          if (!event.more) {
            post();
          }
        },
        [&](const EndEvent& event) {
          events.ends.push_back(event);
          post();
        });
    if (!busy.ok()) {
      return busy.error();
    }
    post();
    if (!*busy) {
      std::unique_lock lock(wake_mutex_);
      wake_.wait(lock, [&] { return woken_ || stopped_; });
      woken_ = false;
    }
  }
  return {};
}

Result<int> Server::run(const std::function<Result<ServedModel>()>& load) {
  WEFT_ASSIGN(http_,
              HttpServer::create(
                  options_.http, [this](const HttpRequest& request) { return gate(request); },
                  [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); },
                  [](int status, std::string_view sentence) {
                    return error_response({status, std::string(sentence), "", ""});
                  },
                  [this](const HttpRequest& request) { return headers_for(request); }));
  http_->on_signal([this] { on_signal(); });
  http_->after(kSilence, [this] { reassure(); });
  std::thread io([this] {
    pthread_setname_np(pthread_self(), "weft-http");  // as top -H and bench/serve_latency.py see it
    http_->run();
    stopped_ = true;
    wake_engine();
  });
  const std::string address = fmt::format("http://{}:{}/", options_.http.host, http_->port());
  request_log_.write("weft: " + address + " loads");
  const Result<ServedModel> loaded = load();
  if (!loaded.ok()) {
    http_->stop();
    io.join();
    return loaded.error();
  }
  const ServedModel& model = *loaded;
  http_->post([this, &model] {
    model_ = &model;
    state_ = state_ == State::loading ? State::ready : state_;
  });
  if (!model.chat.ok()) {
    request_log_.write("weft: completions alone: " + model.chat.error().message);
  }
  request_log_.write("weft: " + address + " serves " + model.name);
  const Status status = step_engine(*model.slots);
  if (!status.ok()) {
    http_->post([this, message = status.error().message] { fail(message); });
  }
  io.join();
  if (!status.ok()) {
    return status.error();
  }
  return 0;
}

}  // namespace

Result<int> serve(const ServeOptions& options, const std::function<Result<ServedModel>()>& load) {
  return Server(options).run(load);
}

}  // namespace weft::serve
