#include "arch/hopper/limits.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arch/hopper/page_ring.cuh"

namespace weft::hopper {
namespace {

constexpr int kPage = 16384;
constexpr int kPages = 12;  // in flight: more than it takes
constexpr int kPasses = 7;

/// One thread keeps the ring full and never looks at what comes.
__global__ void __launch_bounds__(32, 1)
    read_kernel(const char* data, int64_t pages, int64_t pages_each) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier full[kPages];
  if (threadIdx.x != 0) {
    return;
  }
  for (int i = 0; i < kPages; ++i) {
    full[i].init(1);
  }
  fence_barriers();
  const uint64_t policy = evict_first();
  const int64_t first = blockIdx.x * pages_each;
  const int64_t count = min(pages_each, pages - first);
  const auto wait = [&](int64_t page) {
    while (!full[page % kPages].try_wait(page / kPages % 2)) {
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    if (i >= kPages) {
      wait(i - kPages);
    }
    full[i % kPages].arrive_expect(kPage);
    load_bytes(memory + i % kPages * kPage, data + (first + i) * kPage, kPage, full[i % kPages],
               policy);
  }
  for (int64_t i = max(int64_t{0}, count - kPages); i < count; ++i) {
    wait(i);
  }
}

}  // namespace

Result<double> read_bandwidth(Device& device, const void* data, size_t bytes) {
  const auto stream = static_cast<cudaStream_t>(device.stream().native);
  const int units = device.info().units;
  const int64_t pages = static_cast<int64_t>(bytes) / kPage;
  const int64_t each = (pages + units - 1) / units;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaError_t error = cudaFuncSetAttribute(read_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kPages * kPage);
  const auto run = [&](cudaError_t now) { error = error == cudaSuccess ? now : error; };
  run(cudaEventCreate(&begin));
  run(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int pass = 0; pass < kPasses && error == cudaSuccess; ++pass) {
    run(cudaEventRecord(begin, stream));
    read_kernel<<<static_cast<unsigned>(units), 32, kPages * kPage, stream>>>(
        static_cast<const char*>(data), pages, each);
    run(cudaGetLastError());
    run(cudaEventRecord(end, stream));
    run(cudaEventSynchronize(end));
    float milliseconds = 0;
    run(cudaEventElapsedTime(&milliseconds, begin, end));
    seconds.push_back(milliseconds * 1e-3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  if (error != cudaSuccess) {
    return device_error(std::string("cuda: measuring read bandwidth failed: ") +
                        cudaGetErrorString(error));
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(pages * kPage) / seconds[seconds.size() / 2];
}

}  // namespace weft::hopper
