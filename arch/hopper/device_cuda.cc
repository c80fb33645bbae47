// The CUDA runtime behind arch/device.h. It is linked statically and looks for the driver on the
// first call, which then says that there is none.
#include "arch/hopper/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "arch/hopper/handle.h"

namespace weft::hopper {
namespace {

// Written before each timed run: several times the L2 of any GPU that these kernels run on.
constexpr size_t kFlushBytes = size_t{256} << 20;

Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) {
    return {};
  }
  return device_error(fmt::format("CUDA could not {}: {} ({})", what, cudaGetErrorString(error),
                                  cudaGetErrorName(error)));
}

/// The vendor's figures for the chip of this name (dense rates, SXM parts).
struct Limits {
  std::string_view name;
  double bandwidth;
  double f32;
  double bf16;
  double fp8;
};
// NVIDIA's data sheets of the H100 (2023) and H200 (2024), rates without sparsity.
constexpr Limits kLimits[] = {{"H200", 4.8e12, 67e12, 989.5e12, 1979e12},
                              {"H100 PCIe", 2.0e12, 51e12, 756e12, 1513e12},
                              {"H100 NVL", 3.9e12, 60e12, 835e12, 1671e12},
                              {"GH200", 4.0e12, 67e12, 989.5e12, 1979e12},
                              {"H100", 3.35e12, 67e12, 989.5e12, 1979e12}};

Result<DeviceInfo> describe(int index) {
  cudaDeviceProp properties;
  WEFT_TRY(to_status(cudaGetDeviceProperties(&properties, index),
                     fmt::format("describe GPU {}", index)));
  DeviceInfo info;
  info.id = fmt::format("cuda:{}", index);
  info.name = properties.name;
  info.target = fmt::format("sm_{}{}", properties.major, properties.minor);
  if (properties.major != 9 || properties.minor != 0) {
    return device_error(
        fmt::format("{} is {} ({}), and the CUDA kernels are for sm_90a (H100, H200)", info.id,
                    info.name, info.target));
  }
  info.target = "sm_90a";
  info.arch = Arch::hopper;
  info.units = properties.multiProcessorCount;
  info.memory = properties.totalGlobalMem;
  info.l2 = static_cast<size_t>(properties.l2CacheSize);
  info.shared_memory = properties.sharedMemPerBlockOptin;
  info.fp8_sum_bits = 14;  // DeepSeek-V3 technical report, section 3.5.2
  for (const Limits& limits : kLimits) {
    if (info.name.find(limits.name) != std::string::npos) {
      info.bandwidth = limits.bandwidth;
      info.peak = {limits.f32, limits.bf16, limits.fp8};
      break;
    }
  }
  return info;
}

/// The GPU that Device::use() last made the calling thread's, and which has a context there since.
thread_local int used_last = -1;

using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, DeviceInfo info) : index_(index), info_(std::move(info)) {}

  Status start() {
    WEFT_TRY(use());
    return to_status(cudaStreamCreateWithFlags(stream_.put(), cudaStreamNonBlocking),
                     fmt::format("make a stream on {}", info_.id));
  }

  const DeviceInfo& info() const override { return info_; }
  Stream stream() override { return {this, stream_.get()}; }
  Status use() override {
    if (const cudaError_t error = cudaSetDevice(index_); error != cudaSuccess) {
      return to_status(error, fmt::format("use {}", info_.id));
    }
    used_last = index_;
    return {};
  }

  Result<DeviceMemory> allocate(size_t bytes) override {
    WEFT_TRY(use());
    void* data = nullptr;
    WEFT_TRY(to_status(cudaMalloc(&data, bytes),
                       fmt::format("allocate {} bytes on {}", bytes, info_.id)));
    return DeviceMemory(data, bytes, [](void* at) { cudaFree(at); });
  }

  Status upload(void* to, const void* from, size_t bytes) override {
    return copy_and_wait(to, from, bytes, cudaMemcpyHostToDevice);
  }
  Status download(void* to, const void* from, size_t bytes) override {
    return copy_and_wait(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  Status copy(void* to, const void* from, size_t bytes) override {
    return start_copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }

  Status synchronize() override {
    WEFT_TRY(use());
    return to_status(cudaStreamSynchronize(stream_.get()), "finish a kernel");
  }

  Result<std::vector<double>> time(const Work& work, int runs) override {
    WEFT_TRY(use());
    if (flush_.size() == 0) {
      WEFT_ASSIGN(flush_, allocate(kFlushBytes));
    }
    GraphHandle graph;
    GraphExecHandle replay;
    EventHandle start;
    EventHandle stop;
    WEFT_TRY(to_status(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                       "begin to record a graph"));
    const Status recorded = work(stream());
    WEFT_TRY(to_status(cudaStreamEndCapture(stream_.get(), graph.put()), "record a graph"));
    WEFT_TRY(recorded);
    WEFT_TRY(to_status(cudaGraphInstantiate(replay.put(), graph.get(), 0), "make a graph"));
    WEFT_TRY(to_status(cudaEventCreate(start.put()), "make an event"));
    WEFT_TRY(to_status(cudaEventCreate(stop.put()), "make an event"));
    std::vector<double> seconds;
    for (int i = -2; i < runs; ++i) {  // the first two warm up
      WEFT_TRY(to_status(cudaMemsetAsync(flush_.data(), i & 0xff, flush_.size(), stream_.get()),
                         "flush the caches"));
      WEFT_TRY(to_status(cudaEventRecord(start.get(), stream_.get()), "record an event"));
      WEFT_TRY(to_status(cudaGraphLaunch(replay.get(), stream_.get()), "launch a graph"));
      WEFT_TRY(to_status(cudaEventRecord(stop.get(), stream_.get()), "record an event"));
      WEFT_TRY(to_status(cudaEventSynchronize(stop.get()), "finish a kernel"));
      float milliseconds = 0;
      WEFT_TRY(
          to_status(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()), "read an event"));
      if (i >= 0) {
        seconds.push_back(milliseconds * 1e-3);
      }
    }
    return seconds;
  }

  Result<Counters> count(const Work& /*work*/) override {
    return device_error(fmt::format("{} keeps time and counts nothing", info_.id));
  }

 private:
  Status start_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    WEFT_TRY(use());
    return to_status(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()),
                     fmt::format("copy {} bytes", bytes));
  }
  Status copy_and_wait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    WEFT_TRY(start_copy(to, from, bytes, kind));
    return to_status(cudaStreamSynchronize(stream_.get()), fmt::format("copy {} bytes", bytes));
  }

  int index_;
  DeviceInfo info_;
  StreamHandle stream_;
  DeviceMemory flush_;
};

/// How many GPUs there are. Error: why there are none.
Result<int> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver == 0) {
    return device_error("there is no NVIDIA driver here");
  }
  if (error != cudaSuccess) {
    return device_error(fmt::format("the CUDA driver says: {} ({})", cudaGetErrorString(error),
                                    cudaGetErrorName(error)));
  }
  if (count == 0) {
    return device_error("the driver knows of no GPU");
  }
  return count;
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(int index) {
  const Result<int> count = device_count();
  if (!count.ok() || index >= *count) {
    return device_error(
        fmt::format("device cuda:{} cannot be had: {}", index,
                    count.ok() ? fmt::format("there are {} here", *count) : count.error().message));
  }
  WEFT_ASSIGN(DeviceInfo info, describe(index));
  auto device = std::make_unique<CudaDevice>(index, std::move(info));
  WEFT_TRY(device->start());
  return std::unique_ptr<Device>(std::move(device));
}

uint64_t recording(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;  // NOLINT(google-runtime-int): CUDA's
  const cudaError_t error =
      cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream.native), &status, &id);
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
}

Result<int64_t> free_bytes() {
  size_t free = 0;
  size_t total = 0;
  WEFT_TRY(to_status(cudaMemGetInfo(&free, &total), "ask for free memory"));
  return static_cast<int64_t>(free);
}

bool in_use(int index) {
  int current = -1;
  return index == used_last && cudaGetDevice(&current) == cudaSuccess && current == index;
}

std::vector<DeviceListing> list_devices() {
  const Result<int> count = device_count();
  if (!count.ok()) {
    return {{.kind = "cuda", .info = {}, .missing = count.error().message}};
  }
  std::vector<DeviceListing> result;
  for (int i = 0; i < *count; ++i) {
    Result<DeviceInfo> info = describe(i);
    result.push_back(
        info.ok() ? DeviceListing{.kind = "cuda", .info = std::move(info).value(), .missing = {}}
                  : DeviceListing{.kind = "cuda", .info = {}, .missing = info.error().message});
  }
  return result;
}

}  // namespace weft::hopper
