// What the functions of the simulated HIP runtime share: its devices, the handles it gave out, and
// streams. sim/hip_device.cc, hip_memory.cc, hip_pool.cc, hip_transfer.cc, hip_stream.cc,
// hip_graph.cc, hip_module.cc and hip_symbol.cc have the functions.
//
// A stream's work is done by a thread of the stream's, in the order of submission and after what it
// has to wait for (Work::after); different streams' work runs side by side. Work that the caller
// waits for anyway is done in the calling thread, under the same rules.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arch/cdna/target.h"
#include "base/result.h"
#include "sim/device.h"
#include "sim/hip_abi.h"
#include "sim/memory.h"
#include "sim/report.h"

namespace weft::sim {

/// Something to be done in a stream.
struct Work {
  std::function<void()> run;  ///< empty: nothing but its place in the order
  /// What it waits for. This and what follows is guarded by Runtime::schedule.
  std::vector<std::shared_ptr<Work>> after;
  bool done = false;
  std::chrono::steady_clock::time_point ended;
};

/// A launch of the calling thread, for last_launch().
struct LaunchRecord {
  std::shared_ptr<Work> work;  ///< null: it was refused
  LaunchReport report;         ///< complete when the work is done
};

/// A capture that goes on. Guarded by Runtime::schedule.
struct Capture {
  hip::hipGraph_t graph = nullptr;
  hip::ihipStream_t* origin = nullptr;
  hip::hipStreamCaptureMode mode = hip::hipStreamCaptureModeGlobal;
  std::thread::id thread;  ///< that began it
  uint64_t number = 0;
  bool valid = true;
  std::vector<hip::ihipStream_t*> streams;  ///< that take part
};

}  // namespace weft::sim

// HIP's handles, which a program only ever passes back.
namespace weft::hip {
struct ihipStream_t {
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  // Guarded by Runtime::schedule:
  std::shared_ptr<sim::Work> last;  ///< submitted
  std::deque<std::shared_ptr<sim::Work>> queue;
  bool closing = false;
  std::thread thread;                     ///< started with the first work that is not the caller's
  std::shared_ptr<sim::Capture> capture;  ///< that it takes part in
  std::vector<hipGraphNode_t> captured;   ///< what its next node comes after
};
struct ihipEvent_t {
  // Of the last record; guarded by Runtime::schedule:
  std::shared_ptr<sim::Work> work;
  int device = 0;
  std::shared_ptr<sim::Capture> capture;  ///< it was recorded in one
  std::vector<hipGraphNode_t> captured;   ///< what it stands for there
};
struct ihipModule_t {
  int device = 0;
  std::shared_ptr<sim::Module> module;
};
struct ihipModuleSymbol_t {
  ihipModule_t* module = nullptr;
  const sim::Kernel* kernel = nullptr;
};
struct ihipMemPoolHandle_t {
  int device = 0;
  uint64_t most_bytes = 0;  ///< 0: as many as there are
  std::atomic<uint64_t> used{0};
  std::atomic<uint64_t> used_high{0};
  // Kept, and of no effect.
  std::array<std::atomic<int>, 3> reuse{1, 1, 1};
  std::atomic<uint64_t> release_threshold{0};
};
struct hipGraphNode {
  hipGraphNodeType type = hipGraphNodeTypeEmpty;
  std::function<void()> run;  ///< empty: nothing
  std::vector<hipGraphNode_t> after;
  // Of a kernel: as it was given, but for the arguments, which are here, and a pointer to each.
  hipKernelNodeParams kernel{};
  std::shared_ptr<const std::vector<std::byte>> arguments;
  std::vector<void*> pointers;
};
struct ihipGraph {
  std::vector<std::unique_ptr<hipGraphNode>> nodes;
  bool capturing = false;
};
struct hipGraphExec {
  struct Step {
    hipGraphNode_t node = nullptr;  ///< that it was made of
    hipGraphNodeType type = hipGraphNodeTypeEmpty;
    std::vector<size_t> after;  ///< steps
    std::function<void()> run;
  };
  /// In an order that they may be done in. Launches that are under way have theirs.
  std::shared_ptr<const std::vector<Step>> steps;
};
}  // namespace weft::hip

namespace weft::sim {

/// A GPU as HIP numbers them.
struct HipGpu {
  std::unique_ptr<Device> device;
  int node = 0;  ///< GPUs of one node may reach each other's memory
  hip::ihipStream_t null_stream;
  std::vector<hip::ihipStream_t*> streams;  ///< others; guarded by Runtime::schedule
  /// What work failed with and no call has returned yet.
  std::atomic<hip::hipError_t> failed{hip::hipSuccess};
  std::once_flag pool_made;
  std::shared_ptr<hip::ihipMemPoolHandle_t> default_pool;
  std::shared_ptr<hip::ihipMemPoolHandle_t> pool;  ///< in use; guarded by Runtime::mutex
};

/// An allocation that a program asked for.
struct HipAllocation {
  hip::hipMemoryType type = hip::hipMemoryTypeDevice;
  int device = 0;  ///< where it lies or, of host memory, which was current
  unsigned flags = 0;
  bool registered = false;      ///< by hipHostRegister: not to be freed
  std::shared_ptr<void> share;  ///< of a pool, given back when nobody has it
};

/// Everything behind the C functions. Handles are known addresses: a wrong one is found, not
/// followed.
struct Runtime {
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();

  std::mutex mutex;  ///< of the tables that follow
  std::array<std::unique_ptr<HipGpu>, kMaxDevices> gpus;
  std::vector<cdna::Node> nodes;
  std::unordered_map<uint64_t, HipAllocation> allocations;
  std::unordered_map<hip::hipModule_t, std::unique_ptr<hip::ihipModule_t>> modules;
  std::unordered_map<hip::hipFunction_t, std::unique_ptr<hip::ihipModuleSymbol_t>> functions;
  std::unordered_map<hip::hipStream_t, std::unique_ptr<hip::ihipStream_t>> streams;
  std::unordered_map<hip::hipEvent_t, std::unique_ptr<hip::ihipEvent_t>> events;
  std::unordered_map<hip::hipMemPool_t, std::shared_ptr<hip::ihipMemPoolHandle_t>> pools;
  std::unordered_map<hip::hipGraph_t, std::unique_ptr<hip::ihipGraph>> graphs;
  std::unordered_map<hip::hipGraphExec_t, std::unique_ptr<hip::hipGraphExec>> executables;

  std::mutex schedule;
  std::condition_variable changed;  ///< work was submitted or done, or a stream closes
  std::vector<std::shared_ptr<Capture>> captures;  ///< that go on; guarded by schedule

  std::atomic<int> gpu_count{0};
  std::atomic<bool> sanitize{true};
  std::atomic<uint64_t> next_seed{0};  ///< of LaunchOptions::seed; 0: none
  std::atomic<uint32_t> stack_bytes{LaunchOptions().stack_bytes};
  std::atomic<double> hang_seconds{LaunchOptions().hang_seconds};
  /// By hipLimit_t, of no effect: printf's buffer has its size, and malloc()'s heap grows.
  std::array<std::atomic<size_t>, 3> limits{0, 1 << 20, 8 << 20};
  bool blocking = false;  ///< launches return when they are done (HIP_LAUNCH_BLOCKING)

  Runtime();
};
Runtime& runtime();

/// The calling thread's device.
int& current_device();
bool known_device(int device);
HipGpu& gpu(int device);
HipGpu& gpu();

/// The calling thread's latest error that hipGetLastError has not returned yet.
hip::hipError_t& last_error();
/// Notes an error there, and returns it.
hip::hipError_t result(hip::hipError_t error);
/// As result(), with a sentence for last_findings() and, where that is wanted, for stderr.
hip::hipError_t refuse(hip::hipError_t error, std::string_view kernel, std::string message);

/// Why a handle for another process is refused.
inline constexpr const char* kOneProcess =
    "The simulator's GPUs belong to one process, so its memory and events cannot be shared with "
    "another: use one process with a thread for each device.";

/// The launch that last_launch() is about.
std::shared_ptr<LaunchRecord>& latest_launch();
/// Says on stderr what a launch did wrong, where that is wanted.
void tell(const LaunchReport& report);

/// Keeps an object whose address is its handle.
template <class T>
T* keep(std::unordered_map<T*, std::unique_ptr<T>>& table, std::unique_ptr<T> object) {
  const std::lock_guard lock(runtime().mutex);
  T* handle = object.get();
  table[handle] = std::move(object);
  return handle;
}
template <class T>
bool known(const std::unordered_map<T*, std::unique_ptr<T>>& table, T* handle) {
  const std::lock_guard lock(runtime().mutex);
  return table.contains(handle);
}
/// Takes an object out; null: it is not known.
template <class T>
std::unique_ptr<T> take(std::unordered_map<T*, std::unique_ptr<T>>& table, T* handle) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = table.find(handle);
  if (found == table.end()) {
    return nullptr;
  }
  std::unique_ptr<T> object = std::move(found->second);
  table.erase(found);
  return object;
}

uint64_t address_of(const void* pointer);
Memory& memory();
/// Whether bytes lie in one allocation or, where they need not, in none.
bool holds(const void* pointer, size_t bytes, bool in_allocation);
/// Memory that a program asks for; `share`: HipAllocation::share. Errors: hipErrorInvalidValue,
/// hipErrorNoDevice, hipErrorOutOfMemory.
hip::hipError_t allocate(void** pointer, size_t bytes, Placement placement, hip::hipMemoryType type,
                         unsigned flags, std::shared_ptr<void> share = nullptr);
/// What a program asked for at the address where an allocation begins, which is then forgotten;
/// false: nothing, or `registered` is another.
bool give_up(uint64_t begin, bool registered, HipAllocation& allocation);

/// What the ways to launch a kernel have in common.
struct LaunchRequest {
  hip::hipFunction_t function = nullptr;
  Dim3 grid;  ///< workgroups
  Dim3 block;
  uint64_t shared_bytes = 0;
  hip::hipStream_t stream = nullptr;
  void** parameters = nullptr;
  void** extra = nullptr;
  bool cooperative = false;
};
/// A launch that may be done, once or often: keeps its module and its arguments.
struct PreparedLaunch {
  std::function<void(LaunchReport& report)> run;
  std::shared_ptr<const std::vector<std::byte>> arguments;
};
/// Checks a launch, but for its stream. Errors: those that the launch is refused with.
hip::hipError_t prepare(const LaunchRequest& request, PreparedLaunch& launch);

/// The kernel that a program names: by its handle, or by the host's address that stands for it, on
/// a device (sim/hip_symbol.cc). Null: none.
hip::hipFunction_t function_of(const void* handle, int device);

/// The stream of a handle, the current device's default stream among them; null: not known.
hip::ihipStream_t* stream_of(hip::hipStream_t handle);
/// Adds work at the end of a stream, to be done by the stream's thread; and also after `before`.
std::shared_ptr<Work> submit(hip::ihipStream_t& stream, std::function<void()> run,
                             const std::shared_ptr<Work>& before = nullptr);
/// The same, done by the calling thread before this returns.
void perform(hip::ihipStream_t& stream, std::function<void()> run);
// A stream that is captured does nothing: what is asked of it becomes a node of a graph.
/// What the call then returns; none: the stream is not captured.
std::optional<hip::hipError_t> capture(hip::ihipStream_t& stream, hip::hipGraphNodeType type,
                                       std::function<void()> run);
std::optional<hip::hipError_t> capture(hip::ihipStream_t& stream, hip::hipGraphNode node);
/// A kernel's node. `kernel.func`: a hipFunction_t.
hip::hipGraphNode graph_node(const hip::hipKernelNodeParams& kernel, const PreparedLaunch& launch);
/// The same of a call that no graph can have, such as one that waits: its capture is void.
std::optional<hip::hipError_t> refuse_capture(hip::ihipStream_t& stream);
/// The same of an event that is recorded, and of a stream that waits for one: it may join a
/// capture.
std::optional<hip::hipError_t> record_in_capture(hip::ihipStream_t& stream,
                                                 hip::ihipEvent_t& event);
std::optional<hip::hipError_t> join_capture(hip::ihipStream_t& stream,
                                            const hip::ihipEvent_t& event);
/// Of what may not be done while streams are captured, such as hipMalloc: an error if some are.
hip::hipError_t refuse_while_capturing();
/// Ends what a stream has to do with captures, before it is destroyed.
void leave_capture(hip::ihipStream_t& stream);

void wait_for(const std::shared_ptr<Work>& work);
bool is_done(const std::shared_ptr<Work>& work);
/// Waits for a stream's work and ends its thread.
void retire(hip::ihipStream_t& stream);
/// Waits for all streams of a device.
void wait_for_device(int device);
/// What work of the device failed with since this was last asked.
hip::hipError_t take_failure(int device);

}  // namespace weft::sim
