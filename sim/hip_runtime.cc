#include "sim/hip_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "sim/hip.h"

namespace weft::sim {

using namespace weft::hip;  // NOLINT: this is HIP's other side

namespace {

thread_local int this_device = 0;
thread_local hipError_t this_error = hipSuccess;
thread_local std::shared_ptr<LaunchRecord> latest;
/// libweft-amdhip64.so says what went wrong on stderr, as a driver does.
std::atomic<bool> findings_to_stderr{false};

/// Makes a node's GPUs, numbered after those that there are; false: there are too many.
bool add_node(Runtime& r, const cdna::Node& node) {
  const int first = r.gpu_count;
  if (first + node.count > kMaxDevices) {
    return false;
  }
  r.nodes.push_back({node.target, node.count, first});
  for (int k = 0; k < node.count; ++k) {
    auto made = std::make_unique<HipGpu>();
    made->device = std::make_unique<Device>(node.target, r.memory);
    made->node = static_cast<int>(r.nodes.size()) - 1;
    made->null_stream.device = first + k;
    r.gpus[static_cast<size_t>(made->null_stream.device)] = std::move(made);
  }
  r.gpu_count = first + node.count;
  return true;
}

/// The GPUs that WEFT_SIM_DEVICES names: "gfx942*8", or several nodes with commas between.
void add_nodes(Runtime& r, std::string_view list) {
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    const auto node = cdna::node_named(name);
    if (!node || name.find(':') != std::string_view::npos || !add_node(r, *node)) {
      std::fprintf(stderr,
                   "WEFT_SIM_DEVICES=%s: \"%s\" cannot be had; write gfx942, gfx950*8 or several "
                   "such with commas between, %d GPUs at most.\n",
                   std::string(list).c_str(), std::string(name).c_str(), kMaxDevices);
      r.nodes.clear();
      r.gpu_count = 0;
      return;
    }
    begin = end + 1;
  }
}

/// Waits until all of it is done, does the work, and tells those who wait for it.
void do_work(Work& work, std::unique_lock<std::mutex>& lock) {
  Runtime& r = runtime();
  for (const std::shared_ptr<Work>& before : work.after) {
    r.changed.wait(lock, [&] { return before->done; });
  }
  work.after.clear();
  const std::function<void()> run = std::exchange(work.run, nullptr);
  lock.unlock();
  if (run) {
    run();
  }
  lock.lock();
  work.ended = std::chrono::steady_clock::now();
  work.done = true;
  r.changed.notify_all();
}

/// A stream's thread.
void serve(ihipStream_t& stream) {
  Runtime& r = runtime();
  std::unique_lock lock(r.schedule);
  for (;;) {
    r.changed.wait(lock, [&] { return !stream.queue.empty() || stream.closing; });
    if (stream.queue.empty()) {
      return;
    }
    const std::shared_ptr<Work> work = std::move(stream.queue.front());
    stream.queue.pop_front();
    do_work(*work, lock);
  }
}

/// Gives work its place: after what its stream has, and, by HIP's rule for the default stream,
/// after all streams that do not exempt themselves, as they wait for it.
std::shared_ptr<Work> place(ihipStream_t& stream, std::function<void()> run) {
  HipGpu& on = gpu(stream.device);
  auto work = std::make_shared<Work>();
  work->run = std::move(run);
  const auto follow = [&](const ihipStream_t& other) {
    if (other.last != nullptr && !other.last->done) {
      work->after.push_back(other.last);
    }
  };
  follow(stream);
  if (&stream == &on.null_stream) {
    for (const ihipStream_t* other : on.streams) {
      if ((other->flags & hipStreamNonBlocking) == 0) {
        follow(*other);
      }
    }
  } else if ((stream.flags & hipStreamNonBlocking) == 0) {
    follow(on.null_stream);
  }
  stream.last = work;
  return work;
}

/// The device's streams' last work.
std::vector<std::shared_ptr<Work>> last_of(int device) {
  HipGpu& on = gpu(device);
  const std::lock_guard lock(runtime().schedule);
  std::vector<std::shared_ptr<Work>> last{on.null_stream.last};
  for (const ihipStream_t* stream : on.streams) {
    last.push_back(stream->last);
  }
  return last;
}

}  // namespace

Runtime::Runtime() {
  const auto is = [](const char* name, std::string_view value) {
    const char* text = std::getenv(name);
    return text != nullptr && text == value;
  };
  sanitize = !is("WEFT_SIM_SANITIZE", "0");
  if (const char* seed = std::getenv("WEFT_SIM_SEED")) {
    next_seed = std::strtoull(seed, nullptr, 10);
  }
  blocking = is("HIP_LAUNCH_BLOCKING", "1");
  const char* devices = std::getenv("WEFT_SIM_DEVICES");
  add_nodes(*this, devices != nullptr ? devices : "gfx942,gfx950");
}

Runtime& runtime() {
  // Never destroyed: a program may free its memory while it exits. What it did not wait for is
  // done then, so that findings are told, and no thread stays.
  static auto* const kRuntime = [] {
    std::atexit([] {
      for (int device = 0; device < runtime().gpu_count; ++device) {
        for (ihipStream_t* stream : gpu(device).streams) {
          retire(*stream);
        }
        retire(gpu(device).null_stream);
      }
    });
    return new Runtime();
  }();
  return *kRuntime;
}

int& current_device() { return this_device; }
hipError_t& last_error() { return this_error; }
bool known_device(int device) { return device >= 0 && device < runtime().gpu_count; }
HipGpu& gpu(int device) { return *runtime().gpus[static_cast<size_t>(device)]; }
HipGpu& gpu() { return gpu(this_device); }

hipError_t result(hipError_t error) {
  if (error != hipSuccess) {
    this_error = error;
  }
  return error;
}
hipError_t refuse(hipError_t error, std::string_view kernel, std::string message) {
  latest = std::make_shared<LaunchRecord>();
  latest->report.kernel = kernel;
  Finding finding;
  finding.kernel = kernel;
  finding.message = std::move(message);
  latest->report.findings.push_back(std::move(finding));
  tell(latest->report);
  return result(error);
}

std::shared_ptr<LaunchRecord>& latest_launch() { return latest; }

namespace {

std::string sentences(const LaunchReport& report) {
  std::string out;
  for (const Finding& finding : report.findings) {
    // What was refused has a message and nothing else.
    out += (out.empty() ? "" : "\n") +
           (finding.instruction.empty() ? finding.message : finding.text());
  }
  return out;
}

}  // namespace

void tell(const LaunchReport& report) {
  if (findings_to_stderr && !report.ok()) {
    std::fprintf(stderr, "%s\n", sentences(report).c_str());
  }
}

ihipStream_t* stream_of(hipStream_t handle) {
  if (handle == nullptr || handle == hipStreamLegacy || handle == hipStreamPerThread) {
    return known_device(this_device) ? &gpu().null_stream : nullptr;
  }
  return known(runtime().streams, handle) ? handle : nullptr;
}

std::shared_ptr<Work> submit(ihipStream_t& stream, std::function<void()> run,
                             const std::shared_ptr<Work>& before) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.schedule);
  std::shared_ptr<Work> work = place(stream, std::move(run));
  if (before != nullptr) {
    work->after.push_back(before);
  }
  stream.queue.push_back(work);
  if (!stream.thread.joinable()) {
    stream.thread = std::thread([&stream] { serve(stream); });
  }
  r.changed.notify_all();
  return work;
}

void perform(ihipStream_t& stream, std::function<void()> run) {
  std::unique_lock lock(runtime().schedule);
  const std::shared_ptr<Work> work = place(stream, std::move(run));
  do_work(*work, lock);
}

void wait_for(const std::shared_ptr<Work>& work) {
  Runtime& r = runtime();
  std::unique_lock lock(r.schedule);
  r.changed.wait(lock, [&] { return work == nullptr || work->done; });
}

bool is_done(const std::shared_ptr<Work>& work) {
  const std::lock_guard lock(runtime().schedule);
  return work == nullptr || work->done;
}

void retire(ihipStream_t& stream) {
  Runtime& r = runtime();
  {
    std::unique_lock lock(r.schedule);
    r.changed.wait(lock, [&] { return stream.last == nullptr || stream.last->done; });
    stream.closing = true;
    r.changed.notify_all();
  }
  if (stream.thread.joinable()) {
    stream.thread.join();
  }
  const std::lock_guard lock(r.schedule);
  stream.closing = false;
}

void wait_for_device(int device) {
  for (const std::shared_ptr<Work>& work : last_of(device)) {
    wait_for(work);
  }
}

hipError_t take_failure(int device) { return gpu(device).failed.exchange(hipSuccess); }

const LaunchReport& last_launch() {
  static const LaunchReport kNone;
  if (latest == nullptr) {
    return kNone;
  }
  wait_for(latest->work);
  return latest->report;
}

std::string last_findings() { return sentences(last_launch()); }

void set_findings_to_stderr(bool on) { findings_to_stderr = on; }

void set_sanitizer(bool on) { runtime().sanitize = on; }
void set_seed(uint64_t first) { runtime().next_seed = first; }
void set_hang_seconds(double seconds) { runtime().hang_seconds = seconds; }

Result<int> hip_ordinal(const cdna::Node& node) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  for (const cdna::Node& there : r.nodes) {  // whose index is its first GPU's number
    if (there.target == node.target && there.count == node.count) {
      return there.index + node.index;
    }
  }
  if (!add_node(r, node)) {
    return device_error("The simulator has " + std::to_string(kMaxDevices) +
                        " GPUs at most, and that many more do not fit.");
  }
  return r.nodes.back().index + node.index;
}

}  // namespace weft::sim
