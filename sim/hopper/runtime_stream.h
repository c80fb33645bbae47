// CUDA's streams, events and graphs: what is put into a stream is done by a thread of its own, in
// order, while the host goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

/// Something to do on the device.
using Task = std::function<weft::Status()>;

// CUDA's names of what its handles point to.
struct CUstream_st {
 public:
  CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;
  /// Waits.
  ~CUstream_st();

  /// Does it after all that is before it; while a graph is recorded, records it.
  void put(Task task);
  void wait();
  static void wait_for_all();
  bool idle();

  /// False: it already records.
  bool begin_recording();
  /// What was put since; nothing: it did not record.
  std::optional<std::vector<Task>> end_recording();
  /// 0: it does not record.
  uint64_t recording();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  uint64_t recording_ = 0;
  std::vector<Task> recorded_;
  std::thread thread_;
};

struct CUevent_st {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t recorded = 0;  ///< calls of cudaEventRecord()
  int64_t reached = 0;   ///< of these, that their streams came to
  std::chrono::steady_clock::time_point time;
};

struct CUgraph_st {
  std::vector<Task> tasks;
};
struct CUgraphExec_st {
  std::vector<Task> tasks;
};

namespace weft::ptx {

/// The first failure of a task, which all calls return from then on, as CUDA's do.
void fail(const Error& error);
bool has_failed();
/// Its sentence.
const char* failure_sentence();

}  // namespace weft::ptx
