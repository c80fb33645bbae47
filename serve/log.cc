#include "serve/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace weft::serve {
namespace {

constexpr size_t kMostWaiting = 8192;  // lines

}  // namespace

struct RequestLog::Impl {
  std::shared_ptr<spdlog::details::thread_pool> thread =
      std::make_shared<spdlog::details::thread_pool>(kMostWaiting, 1);
  std::shared_ptr<spdlog::async_logger> logger = std::make_shared<spdlog::async_logger>(
      "requests", std::make_shared<spdlog::sinks::stderr_sink_mt>(), thread,
      spdlog::async_overflow_policy::overrun_oldest);
};

RequestLog::RequestLog() : impl_(std::make_unique<Impl>()) {
  impl_->logger->set_pattern("%v");
  impl_->logger->set_error_handler([](const std::string&) {});
}
RequestLog::~RequestLog() = default;

void RequestLog::write(const std::string& line) { impl_->logger->info(line); }

}  // namespace weft::serve
