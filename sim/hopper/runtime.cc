// The CUDA runtime's functions that Weft and nvcc's host code call, on the interpreter of PTX:
// linked in place of libcudart_static.a. CUDA Runtime API 13.0; a name that is missing here fails
// to link.
//
// The device is an H200 but for its SMs, of which there are WEFT_PTX_SMS (4), so that a resident
// kernel has few workers. WEFT_PTX_SECONDS (600): after which a launch has failed. WEFT_PTX_COPIES
// (either): see Landing.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "sim/hopper/memory.h"
#include "sim/hopper/runtime_kernels.h"
#include "sim/hopper/runtime_stream.h"
#include "sim/hopper/tensor_map.h"

namespace weft::ptx {
namespace {

constexpr uint32_t kMostSharedBytes = 232448;     // of a block, on sm_90
constexpr uint32_t kSharedBytesOfSm = 228 << 10;  // and 1024 of each block are the system's
constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kThreadsOfSm = 2048;
constexpr uint32_t kMostCluster = 16;  // of a function that asks for it; of others 8
constexpr int kKilohertz = 1980000;

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_sentence;  // of the last error of this thread
/// Whether a thread has a context, which the runtime gives it with its first call of those that
/// need one and the driver's functions demand.
thread_local bool has_context = false;

/// What a call returns.
cudaError_t returned(cudaError_t error) {
  if (error == cudaSuccess && has_failed()) {
    error = cudaErrorLaunchFailure;
  }
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    last_error = error;
  }
  return error;
}
cudaError_t refused(cudaError_t error, std::string sentence) {
  last_sentence = std::move(sentence);
  return returned(error);
}

int multiprocessors() {
  const char* text = std::getenv("WEFT_PTX_SMS");
  return std::clamp(text != nullptr ? std::atoi(text) : 4, 1, 132);
}

CUstream_st& stream_of(cudaStream_t stream) {
  static CUstream_st legacy;
  return stream != nullptr ? *stream : legacy;
}

/// Why a launch cannot be; empty: it can.
std::string refusal(const Kernel& kernel, const Launch& launch, bool cooperative) {
  const auto product = [](const std::array<uint32_t, 3>& size) {
    return uint64_t{size[0]} * size[1] * size[2];
  };
  const uint64_t blocks = product(launch.grid);
  const uint64_t threads = product(launch.block);
  if (blocks == 0 || threads == 0 || threads > kMostThreads || launch.grid[1] > 65535 ||
      launch.grid[2] > 65535) {
    return fmt::format("{} blocks of {} threads: 1 to {} threads", blocks, threads, kMostThreads);
  }
  if (launch.shared_bytes > kernel.most_shared_bytes) {
    return fmt::format("{} bytes of shared memory, and {} are allowed by cudaFuncSetAttribute()",
                       launch.shared_bytes, kernel.most_shared_bytes);
  }
  if (launch.cluster > kernel.most_cluster || launch.grid[0] % launch.cluster != 0) {
    return fmt::format("clusters of {} blocks, and {} blocks along x", launch.cluster,
                       launch.grid[0]);
  }
  const uint64_t resident =
      std::min<uint64_t>(kSharedBytesOfSm / (launch.shared_bytes + 1024), kThreadsOfSm / threads) *
      static_cast<uint64_t>(multiprocessors());
  if (cooperative && blocks > resident) {
    return fmt::format("{} blocks, and {} can be resident (WEFT_PTX_SMS)", blocks, resident);
  }
  return {};
}

cudaError_t launch_kernel(const void* function, const Launch& launch, void** arguments,
                          cudaStream_t stream, bool cooperative) {
  has_context = true;
  Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) {
    return refused(cudaErrorInvalidDeviceFunction, "no kernel is registered at this address");
  }
  if (std::string why = refusal(*kernel, launch, cooperative); !why.empty()) {
    return refused(cudaErrorInvalidConfiguration, fmt::format("{}: {}", kernel->name, why));
  }
  Result<Work> work = Work::create(*kernel, launch, arguments);
  if (!work.ok()) {
    return refused(cudaErrorInvalidPtx, work.error().message);
  }
  stream_of(stream).put(
      [work = std::move(work).value()] { return has_failed() ? Status() : work.run(); });
  return returned(cudaSuccess);
}

std::array<uint32_t, 3> sizes(dim3 size) { return {size.x, size.y, size.z}; }

/// Device memory, or the host's that the device reads in place.
bool known(const void* data, size_t bytes) {
  return bytes == 0 || accessible(reinterpret_cast<uint64_t>(data), bytes);
}

/// Puts a task of memory into a stream. One with memory of the host that is not pinned is waited
/// for.
cudaError_t put_memory_task(cudaStream_t stream, bool waits, Task task) {
  has_context = true;
  CUstream_st& to = stream_of(stream);
  to.put(std::move(task));
  if (waits) {
    to.wait();
  }
  return returned(cudaSuccess);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                 bool waits) {
  const bool to_known = known(to, bytes);
  const bool from_known = known(from, bytes);
  if ((kind == cudaMemcpyHostToDevice && !to_known) ||
      (kind == cudaMemcpyDeviceToHost && !from_known) ||
      (kind == cudaMemcpyDeviceToDevice && !(to_known && from_known))) {
    return refused(
        cudaErrorInvalidValue,
        fmt::format("a copy of {} bytes from {} to {}: not within an allocation", bytes, from, to));
  }
  return put_memory_task(stream, waits || !to_known || !from_known, [=] {
    std::memcpy(to, from, bytes);
    return Status();
  });
}

cudaError_t fill(void* to, size_t pitch, int value, size_t width, size_t height,
                 cudaStream_t stream, bool waits) {
  if (height != 0 && width != 0 && !known(to, pitch * (height - 1) + width)) {
    return refused(
        cudaErrorInvalidValue,
        fmt::format("{} rows of {} bytes at {}: not within an allocation", height, width, to));
  }
  return put_memory_task(stream, waits, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memset(static_cast<char*>(to) + row * pitch, value, width);
    }
    return Status();
  });
}

cudaError_t allocate(void** data, size_t bytes) {
  has_context = true;
  *data = allocate_memory(bytes);
  return returned(*data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t release(void* data) {
  return data == nullptr || free_memory(data)
             ? returned(cudaSuccess)
             : refused(cudaErrorInvalidValue, fmt::format("no allocation begins at {}", data));
}

struct Name {
  cudaError_t error;
  const char* name;
  const char* sentence;
};
constexpr Name kNames[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx", "a PTX module cannot be run"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "a stream records, or does not"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "a launch failed"},
};
const Name* name_of(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kNames), std::end(kNames),
                                         [&](const Name& name) { return name.error == error; });
  return found != std::end(kNames) ? found : nullptr;
}

uint8_t element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
    default:
      return 0;  // not used here
  }
}

/// As the driver's, of tiles without interleaving whose elements lie together.
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion /*promotion*/,
                      CUtensorMapFloatOOBfill outside) {
  if (!has_context) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  TensorMap ours;
  ours.dimensions = static_cast<uint8_t>(rank);
  ours.element_bytes = element_bytes(type);
  ours.address = reinterpret_cast<uint64_t>(address);
  if (rank < 1 || rank > ours.size.size() || ours.element_bytes == 0 ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || outside != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      swizzle > CU_TENSOR_MAP_SWIZZLE_128B || ours.address % 16 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ours.swizzle_bytes =
      swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : static_cast<uint8_t>(16 << swizzle);
  for (cuuint32_t i = 0; i < rank; ++i) {
    ours.size[i] = sizes[i];
    ours.stride[i] = i == 0 ? ours.element_bytes : strides[i - 1];
    ours.box[i] = box[i];
    if (sizes[i] == 0 || sizes[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 ||
        steps[i] != 1 || (i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] >> 40 != 0))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const uint32_t row = box[0] * ours.element_bytes;
  if (row % 16 != 0 || (ours.swizzle_bytes != 0 && row > ours.swizzle_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &ours, sizeof(ours));
  return CUDA_SUCCESS;
}

/// Of `<<< >>>`, between its two halves.
struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local CallConfiguration call;

}  // namespace
}  // namespace weft::ptx

using weft::ptx::returned;
using weft::ptx::stream_of;

extern "C" {

// What nvcc's host code calls (crt/host_runtime.h, crt/device_functions.h), by its names.
// NOLINTBEGIN(readability-identifier-naming)

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(weft::ptx::add_binary(wrapper));
}
void __cudaRegisterFatBinaryEnd(void** /*binary*/) {}
void __cudaUnregisterFatBinary(void** /*binary*/) {}
void __cudaRegisterFunction(void** binary, const char* function, char* /*device_function*/,
                            const char* name, int /*thread_limit*/, uint3* /*thread*/,
                            uint3* /*block*/, dim3* /*block_size*/, dim3* /*grid_size*/,
                            int* /*warp*/) {
  weft::ptx::add_kernel(reinterpret_cast<weft::ptx::Binary*>(binary), function, name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  weft::ptx::call = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       cudaStream_t* stream) {
  *grid = weft::ptx::call.grid;
  *block = weft::ptx::call.block;
  *shared_bytes = weft::ptx::call.shared_bytes;
  *stream = weft::ptx::call.stream;
  return cudaSuccess;
}
/// A function of the host is its kernel's handle.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
// NOLINTEND(readability-identifier-naming)

// Launches.

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return weft::ptx::launch_kernel(
      function,
      {weft::ptx::sizes(grid), weft::ptx::sizes(block), 1, static_cast<uint32_t>(shared_bytes)},
      arguments, stream, false);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** arguments, size_t shared_bytes,
                                        cudaStream_t stream) {
  return weft::ptx::launch_kernel(
      function,
      {weft::ptx::sizes(grid), weft::ptx::sizes(block), 1, static_cast<uint32_t>(shared_bytes)},
      arguments, stream, true);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  weft::ptx::Launch launch{weft::ptx::sizes(config->gridDim), weft::ptx::sizes(config->blockDim), 1,
                           static_cast<uint32_t>(config->dynamicSmemBytes)};
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeClusterDimension:
        launch.cluster = attribute.val.clusterDim.x;
        if (attribute.val.clusterDim.y != 1 || attribute.val.clusterDim.z != 1) {
          return weft::ptx::refused(cudaErrorInvalidValue, "a cluster along y or z");
        }
        break;
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        break;  // it may begin early, and need not
      case cudaLaunchAttributeCooperative:
        cooperative = attribute.val.cooperative != 0;
        break;
      default:
        return weft::ptx::refused(
            cudaErrorInvalidValue,
            fmt::format("launch attribute {} is not known", static_cast<int>(attribute.id)));
    }
  }
  return weft::ptx::launch_kernel(function, launch, arguments, config->stream, cooperative);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  weft::ptx::Kernel* const kernel = weft::ptx::find_kernel(function);
  const auto given = static_cast<uint32_t>(value);
  if (kernel != nullptr && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
      given <= weft::ptx::kMostSharedBytes) {
    kernel->most_shared_bytes = given;
    return returned(cudaSuccess);
  }
  if (kernel != nullptr && attribute == cudaFuncAttributeNonPortableClusterSizeAllowed &&
      given == 1) {
    kernel->most_cluster = weft::ptx::kMostCluster;
    return returned(cudaSuccess);
  }
  return weft::ptx::refused(cudaErrorInvalidValue, fmt::format("attribute {} of a function: {}",
                                                               static_cast<int>(attribute), value));
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function,
                                           const cudaLaunchConfig_t* config) {
  if (weft::ptx::find_kernel(function) == nullptr) {
    return weft::ptx::refused(cudaErrorInvalidValue, "clusters of a function that is no kernel");
  }
  int cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster = static_cast<int>(config->attrs[i].val.clusterDim.x);
    }
  }
  *count = weft::ptx::multiprocessors() / cluster;
  return returned(cudaSuccess);
}

// Errors.

cudaError_t cudaGetLastError() {
  return std::exchange(weft::ptx::last_error,
                       weft::ptx::has_failed() ? cudaErrorLaunchFailure : cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t error) {
  const auto* const name = weft::ptx::name_of(error);
  return name != nullptr ? name->name : "unrecognized error code";
}
/// Of the last error of this kind in this thread, what was wrong.
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure && weft::ptx::has_failed()) {
    return weft::ptx::failure_sentence();
  }
  if (error != cudaSuccess && error == weft::ptx::last_error && !weft::ptx::last_sentence.empty()) {
    return weft::ptx::last_sentence.c_str();
  }
  const auto* const name = weft::ptx::name_of(error);
  return name != nullptr ? name->sentence : "unrecognized error code";
}

// The device.

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return returned(cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  weft::ptx::has_context = weft::ptx::has_context || device == 0;
  return returned(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return returned(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return returned(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) {
    return returned(cudaErrorInvalidDevice);
  }
  *properties = {};
  const std::string name =
      fmt::format("NVIDIA H200 of {} SMs, simulated", weft::ptx::multiprocessors());
  std::copy_n(name.c_str(), name.size() + 1, properties->name);
  properties->major = 9;
  properties->multiProcessorCount = weft::ptx::multiprocessors();
  properties->totalGlobalMem = weft::ptx::total_memory();
  properties->l2CacheSize = 60 << 20;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = weft::ptx::kMostSharedBytes;
  properties->sharedMemPerMultiprocessor = weft::ptx::kSharedBytesOfSm;
  properties->maxThreadsPerBlock = static_cast<int>(weft::ptx::kMostThreads);
  properties->warpSize = 32;
  return returned(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0 || attribute != cudaDevAttrClockRate) {
    return weft::ptx::refused(
        cudaErrorInvalidValue,
        fmt::format("attribute {} of device {} is not known", static_cast<int>(attribute), device));
  }
  *value = weft::ptx::kKilohertz;
  return returned(cudaSuccess);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool ours = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = ours ? reinterpret_cast<void*>(&weft::ptx::encode_tiled) : nullptr;
  if (found != nullptr) {
    *found = ours ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return returned(cudaSuccess);
}

// Memory.

cudaError_t cudaMalloc(void** data, size_t bytes) { return weft::ptx::allocate(data, bytes); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return weft::ptx::allocate(data, bytes);
}
/// As CUDA's, when all that may use it is done.
cudaError_t cudaFree(void* data) {
  cudaDeviceSynchronize();
  return weft::ptx::release(data);
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = weft::ptx::total_memory();
  *free = *total - std::min(*total, weft::ptx::allocated_memory());
  return returned(cudaSuccess);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return weft::ptx::copy(to, from, bytes, kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return weft::ptx::copy(to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return weft::ptx::fill(to, bytes, value, bytes, 1, nullptr, true);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return weft::ptx::fill(to, bytes, value, bytes, 1, stream, false);
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return weft::ptx::fill(to, pitch, value, width, height, stream, false);
}

// Streams, events, graphs.

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st;
  return returned(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return returned(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).wait();
  return returned(cudaSuccess);
}
cudaError_t cudaDeviceSynchronize() {
  CUstream_st::wait_for_all();
  return returned(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream_of(stream).idle()) {
    return returned(cudaSuccess);
  }
  // Who asks again and again would take a core from the threads that run kernels.
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  return returned(cudaErrorNotReady);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return returned(stream_of(stream).begin_recording() ? cudaSuccess : cudaErrorIllegalState);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::optional<std::vector<Task>> tasks = stream_of(stream).end_recording();
  if (!tasks) {
    return returned(cudaErrorIllegalState);
  }
  *graph = new CUgraph_st{std::move(*tasks)};
  return returned(cudaSuccess);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* /*graph*/,
                                     const cudaGraphNode_t** /*before*/,
                                     const cudaGraphEdgeData** /*edges*/, size_t* /*count*/) {
  const uint64_t recording = stream_of(stream).recording();
  *status = recording != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = recording;
  }
  return returned(cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* replay, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *replay = new CUgraphExec_st{graph->tasks};
  return returned(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t replay, cudaStream_t stream) {
  for (const Task& task : replay->tasks) {
    stream_of(stream).put(task);
  }
  return returned(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return returned(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t replay) {
  delete replay;
  return returned(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return returned(cudaSuccess);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return returned(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  {
    const std::lock_guard lock(event->mutex);
    ++event->recorded;
  }
  stream_of(stream).put([event] {
    const std::lock_guard lock(event->mutex);
    event->time = std::chrono::steady_clock::now();
    ++event->reached;
    event->changed.notify_all();
    return weft::Status();
  });
  return returned(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  int64_t wanted = 0;
  {
    const std::lock_guard lock(event->mutex);
    wanted = event->recorded;
  }
  stream_of(stream).put([event, wanted] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= wanted; });
    return weft::Status();
  });
  return returned(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [&] { return event->reached == event->recorded; });
  return returned(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return returned(cudaSuccess);
}

}  // extern "C"
