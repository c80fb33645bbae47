#include "sim/hopper/runtime_stream.h"

#include <atomic>
#include <set>
#include <utility>

namespace weft::ptx {
namespace {

struct Failure {
  std::mutex mutex;
  std::atomic<bool> happened = false;
  std::string sentence;
};
Failure& failure() {
  static Failure the;
  return the;
}

}  // namespace

void fail(const Error& error) {
  Failure& the = failure();
  const std::lock_guard lock(the.mutex);
  if (!the.happened) {
    the.sentence = error.message;
    the.happened = true;
  }
}
bool has_failed() { return failure().happened; }
const char* failure_sentence() { return has_failed() ? failure().sentence.c_str() : ""; }

}  // namespace weft::ptx

namespace {

struct Streams {
  std::mutex mutex;
  std::set<CUstream_st*> all;
};
Streams& streams() {
  static Streams the;
  return the;
}

}  // namespace

CUstream_st::CUstream_st() : thread_([this] { work(); }) {
  const std::lock_guard lock(streams().mutex);
  streams().all.insert(this);
}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(streams().mutex);
    streams().all.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CUstream_st::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    if (const weft::Status done = task(); !done.ok()) {
      weft::ptx::fail(done.error());
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void CUstream_st::put(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (recording_ != 0) {
      recorded_.push_back(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void CUstream_st::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

void CUstream_st::wait_for_all() {
  const std::lock_guard lock(streams().mutex);
  for (CUstream_st* const stream : streams().all) {
    stream->wait();
  }
}

bool CUstream_st::idle() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !busy_;
}

bool CUstream_st::begin_recording() {
  static std::atomic<uint64_t> last = 0;
  const std::lock_guard lock(mutex_);
  if (recording_ != 0) {
    return false;
  }
  recording_ = ++last;
  recorded_.clear();
  return true;
}

std::optional<std::vector<Task>> CUstream_st::end_recording() {
  const std::lock_guard lock(mutex_);
  if (recording_ == 0) {
    return std::nullopt;
  }
  recording_ = 0;
  return std::move(recorded_);
}

uint64_t CUstream_st::recording() {
  const std::lock_guard lock(mutex_);
  return recording_;
}
