// CUDA as host code calls it, on the interpreter: what a kernel is given, in which order things
// happen, and what is refused.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "sim/hopper/runtime_kernels.h"

namespace weft::ptx {
namespace {

__global__ void add_kernel(const float* a, const float* b, float* sum, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) {
    sum[i] = a[i] + b[i];
  }
}

/// Each thread's cluster rank, and what it was given by value.
struct Shape {
  int64_t bias;
  int scale;
};
__global__ void cluster_kernel(Shape shape, int* ranks) {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  extern __shared__ int shared[];
  shared[threadIdx.x] = static_cast<int>(rank) * shape.scale + static_cast<int>(shape.bias);
  __syncthreads();
  ranks[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

/// Counts in the host's memory until it is told to stop.
__global__ void count_kernel(volatile int* counter, const volatile int* stop) {
  while (*stop == 0) {
    *counter = *counter + 1;
  }
}

__global__ void write_kernel(int* data, int at) { data[at] = 1; }

template <class T>
T* device(size_t count) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(data);
}
template <class T>
std::vector<T> download(const T* data, size_t count) {
  std::vector<T> result(count);
  EXPECT_EQ(cudaMemcpy(result.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return result;
}

TEST(PtxRuntime, AKernelAddsVectors) {
  constexpr int kCount = 1000;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 0.25f * static_cast<float>(i);
  }
  auto* const on_device = device<float>(3 * kCount);
  ASSERT_EQ(cudaMemcpy(on_device, a.data(), kCount * 4, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(on_device + kCount, b.data(), kCount * 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  add_kernel<<<8, 128>>>(on_device, on_device + kCount, on_device + 2 * kCount, kCount);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaErrorLaunchFailure);
  const std::vector<float> sum = download(on_device + 2 * kCount, kCount);
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(sum[i], a[i] + b[i]) << i;
  }
  EXPECT_EQ(cudaFree(on_device), cudaSuccess);
}

TEST(PtxRuntime, ALaunchHasItsClusterSharedMemoryAndArgumentsByValue) {
  auto* const ranks = device<int>(6 * 32);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = 6;
  config.blockDim = 32;
  config.dynamicSmemBytes = 128;
  config.attrs = &attribute;
  config.numAttrs = 1;
  ASSERT_EQ(cudaLaunchKernelEx(&config, cluster_kernel, Shape{1000, 7}, ranks), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaErrorLaunchFailure);
  const std::vector<int> result = download(ranks, 6 * 32);
  for (int i = 0; i < 6 * 32; ++i) {
    ASSERT_EQ(result[i], 1000 + i / 32 % 2 * 7) << i;
  }
  EXPECT_EQ(cudaFree(ranks), cudaSuccess);
}

TEST(PtxRuntime, ClustersOfMoreThanEightBlocksMustBeAskedFor) {
  auto* const ranks = device<int>(16 * 32);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {16, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(16);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 128;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT_NE(cudaLaunchKernelEx(&config, cluster_kernel, Shape{0, 1}, ranks), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
            cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config, cluster_kernel, Shape{0, 1}, ranks), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(download(ranks, 16 * 32).back(), 15);
  EXPECT_EQ(cudaFree(ranks), cudaSuccess);
}

TEST(PtxRuntime, TheHostGoesOnWhileAKernelRunsAndStopsIt) {
  void* mapped = nullptr;
  ASSERT_EQ(cudaHostAlloc(&mapped, 8, cudaHostAllocMapped), cudaSuccess);
  auto* const words = static_cast<int*>(mapped);
  words[0] = 0;
  words[1] = 1;
  auto* const stop = device<int>(1);
  ASSERT_EQ(cudaMemset(stop, 0, 4), cudaSuccess);
  cudaStream_t stream = nullptr;
  cudaStream_t side = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), cudaSuccess);
  count_kernel<<<1, 1, 0, stream>>>(words, stop);
  while (std::atomic_ref<int>(words[0]).load() < 3) {
    ASSERT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  }
  ASSERT_EQ(cudaMemcpyAsync(stop, words + 1, 4, cudaMemcpyHostToDevice, side), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(side), cudaSuccess);
  EXPECT_EQ(cudaFree(stop), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(mapped), cudaSuccess);
}

TEST(PtxRuntime, AGraphDoesNothingUntilItIsLaunchedAndThenAllOfIt) {
  auto* const data = device<float>(3);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t before = nullptr;
  cudaEvent_t after = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&after), cudaSuccess);
  const std::vector<float> values = {1, 2, 0};
  ASSERT_EQ(cudaMemcpy(data, values.data(), 12, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            cudaErrorIllegalState);
  add_kernel<<<1, 32, 0, stream>>>(data, data + 1, data + 2, 1);
  add_kernel<<<1, 32, 0, stream>>>(data + 2, data + 1, data, 1);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(download(data, 3), values);
  ASSERT_EQ(cudaEventRecord(before, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(after, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(after), cudaSuccess);
  EXPECT_EQ(download(data, 3), (std::vector<float>{9, 2, 7}));
  float milliseconds = 0;
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, before, after), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(before), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(after), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

std::string why(cudaError_t error) { return cudaGetErrorString(error); }

TEST(PtxRuntime, LaunchesAndCopiesThatAGpuRefusesAreRefusedInWords) {
  auto* const data = device<int>(4);
  int at = 0;
  void* arguments[] = {const_cast<int**>(&data), &at};
  const auto* const function = reinterpret_cast<const void*>(&write_kernel);
  cudaError_t error = cudaLaunchKernel(function, 1, 1025, arguments, 0, nullptr);
  EXPECT_EQ(error, cudaErrorInvalidConfiguration);
  EXPECT_NE(why(error).find("write_kernel"), std::string::npos) << why(error);
  error = cudaLaunchKernel(function, 1, 1, arguments, 49153, nullptr);
  EXPECT_EQ(error, cudaErrorInvalidConfiguration);
  EXPECT_NE(why(error).find("49153 bytes of shared memory, and 49152 are allowed"),
            std::string::npos);
  EXPECT_EQ(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449),
            cudaErrorInvalidValue);
  error = cudaLaunchCooperativeKernel(function, 1000000, 1, arguments, 0, nullptr);
  EXPECT_EQ(error, cudaErrorInvalidConfiguration);
  EXPECT_NE(why(error).find("can be resident"), std::string::npos) << why(error);
  EXPECT_EQ(cudaLaunchKernel(data, 1, 1, arguments, 0, nullptr), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(cudaMemcpy(data, &at, 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(data + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(PtxRuntime, AsManyClustersAreResidentAsHaveMultiprocessors) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.attrs = &cluster;
  const auto* const function = reinterpret_cast<const void*>(&write_kernel);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  for (const unsigned attributes : {0u, 1u}) {
    config.numAttrs = attributes;
    int count = 0;
    ASSERT_EQ(cudaOccupancyMaxActiveClusters(&count, function, &config), cudaSuccess);
    EXPECT_EQ(count, properties.multiProcessorCount / (attributes == 0 ? 1 : 2));
  }
  int count = 0;
  const void* const no_kernel = &config;
  EXPECT_EQ(cudaOccupancyMaxActiveClusters(&count, no_kernel, &config), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);  // who launches next does not find it
}

/// In a process of its own, because a failed launch stays.
void write_beyond() {
  auto* const data = device<int>(64);
  write_kernel<<<1, 1>>>(data, 64);
  const cudaError_t error = cudaDeviceSynchronize();
  std::fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
  std::_Exit(error == cudaErrorLaunchFailure && cudaGetLastError() == cudaErrorLaunchFailure ? 7
                                                                                             : 1);
}

TEST(PtxRuntimeDeathTest, AWriteBehindAnAllocationFailsTheLaunchAndNamesTheKernel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(write_beyond(), testing::ExitedWithCode(7), "cudaErrorLaunchFailure: .*write_kernel");
}

/// A fat binary of one entry.
std::string fat_binary(uint16_t kind, uint64_t flags, const std::string& text) {
  std::string bytes(16 + 64, '\0');
  const auto put = [&](size_t at, auto value) { std::memcpy(&bytes[at], &value, sizeof(value)); };
  put(0, uint32_t{0xba55ed50});
  put(6, uint16_t{16});
  put(8, uint64_t{64 + text.size()});
  put(16, kind);
  put(20, uint32_t{64});
  put(24, uint64_t{text.size()});
  put(56, flags);
  return bytes + text;
}

TEST(PtxRuntime, AFatBinaryWithoutPtxAsTextIsRefusedInWords) {
  const auto text = ptx_text(fat_binary(1, 0x11, ".version 9.0\n").c_str());
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, ".version 9.0\n");
  EXPECT_NE(ptx_text(fat_binary(1, 0x2011, "x").c_str()).error().message.find("--no-compress"),
            std::string::npos);
  EXPECT_NE(ptx_text(fat_binary(2, 0, "x").c_str()).error().message.find("has no PTX"),
            std::string::npos);
  EXPECT_NE(ptx_text("what is no fat binary").error().message.find("begins with"),
            std::string::npos);
}

}  // namespace
}  // namespace weft::ptx
