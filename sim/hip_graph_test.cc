// Graphs and the capture of streams, as programs and as their libraries use them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "sim/hip.h"
#include "sim/hip_abi.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: HIP's names

/// A kernel c[k] = a[k] + b[k], memory for it, and two streams.
class HipGraph : public testing::Test {
 protected:
  static constexpr int kCount = 100;

  void SetUp() override {
    const std::vector<std::byte> code = test_kernels("ordinary", Target::gfx942);
    if (code.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    ASSERT_EQ(hipSetDevice(0), hipSuccess);
    ASSERT_EQ(hipModuleLoadData(&module_, code.data()), hipSuccess);
    ASSERT_EQ(hipModuleGetFunction(&add_, module_, "add"), hipSuccess);
    for (hipStream_t* stream : {&stream_, &other_}) {
      ASSERT_EQ(hipStreamCreateWithFlags(stream, hipStreamNonBlocking), hipSuccess);
    }
    ASSERT_EQ(hipMallocManaged(reinterpret_cast<void**>(&data_), sizeof(float) * kCount,
                               hipMemAttachGlobal),
              hipSuccess);
    std::fill(data_, data_ + kCount, 1.0F);
  }
  void TearDown() override {
    if (module_ != nullptr) {
      EXPECT_EQ(hipStreamDestroy(stream_), hipSuccess);
      EXPECT_EQ(hipStreamDestroy(other_), hipSuccess);
      EXPECT_EQ(hipFree(data_), hipSuccess);
      EXPECT_EQ(hipModuleUnload(module_), hipSuccess);
    }
  }
  /// Doubles all of `data`.
  hipError_t twice(hipStream_t stream) {
    void* arguments[] = {&data_, &data_, &data_, &count_};
    return hipModuleLaunchKernel(add_, 1, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr);
  }
  hipStreamCaptureStatus status(hipStream_t stream) {
    hipStreamCaptureStatus now = hipStreamCaptureStatusNone;
    EXPECT_EQ(hipStreamIsCapturing(stream, &now), hipSuccess);
    return now;
  }
  /// Ends a capture whose error is known.
  hipError_t end() {
    hipGraph_t graph = nullptr;
    const hipError_t error = hipStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph != nullptr, error == hipSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
    }
    return error;
  }
  void begin(hipStreamCaptureMode mode = hipStreamCaptureModeGlobal) {
    ASSERT_EQ(hipStreamBeginCapture(stream_, mode), hipSuccess);
  }

  hipModule_t module_ = nullptr;
  hipFunction_t add_ = nullptr;
  hipStream_t stream_ = nullptr;
  hipStream_t other_ = nullptr;
  float* data_ = nullptr;
  int count_ = kCount;
};

TEST_F(HipGraph, IsCapturedAndLaunched) {
  static int called;
  called = 0;
  float first = 0;
  hipEvent_t fork = nullptr;
  hipEvent_t join = nullptr;
  ASSERT_EQ(hipEventCreate(&fork), hipSuccess);
  ASSERT_EQ(hipEventCreate(&join), hipSuccess);
  begin();
  EXPECT_EQ(status(stream_), hipStreamCaptureStatusActive);
  EXPECT_EQ(twice(stream_), hipSuccess);
  EXPECT_EQ(hipEventRecord(fork, stream_), hipSuccess);
  EXPECT_EQ(status(other_), hipStreamCaptureStatusNone);
  EXPECT_EQ(hipStreamWaitEvent(other_, fork, 0), hipSuccess);
  EXPECT_EQ(status(other_), hipStreamCaptureStatusActive);
  EXPECT_EQ(twice(other_), hipSuccess);
  EXPECT_EQ(hipLaunchHostFunc(
                other_, [](void* n) { ++*static_cast<int*>(n); }, &called),
            hipSuccess);
  EXPECT_EQ(hipEventRecord(join, other_), hipSuccess);
  EXPECT_EQ(hipEventQuery(join), hipErrorCapturedEvent);
  EXPECT_EQ(hipStreamWaitEvent(stream_, join, 0), hipSuccess);
  EXPECT_EQ(hipMemsetAsync(data_ + 50, 0, 4, stream_), hipSuccess);
  // What the host's memory holds when the graph runs.
  EXPECT_EQ(hipMemcpyAsync(&first, data_, 4, hipMemcpyDeviceToHost, stream_), hipSuccess);
  unsigned long long id = 0;
  hipStreamCaptureStatus now{};
  hipGraph_t graph = nullptr;
  const hipGraphNode_t* last = nullptr;
  size_t count = 0;
  EXPECT_EQ(hipStreamGetCaptureInfo_v2(stream_, &now, &id, &graph, &last, &count), hipSuccess);
  EXPECT_NE(id, 0U);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(hipGraphDestroy(graph), hipErrorInvalidValue);
  ASSERT_EQ(hipStreamEndCapture(stream_, &graph), hipSuccess);
  EXPECT_EQ(status(other_), hipStreamCaptureStatusNone);
  ASSERT_EQ(hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(data_[0], 1.0F);  // nothing was done

  ASSERT_EQ(hipGraphGetNodes(graph, nullptr, &count), hipSuccess);
  EXPECT_EQ(count, 5U);
  std::array<hipGraphNode_t, 7> nodes{};
  count = nodes.size();
  ASSERT_EQ(hipGraphGetNodes(graph, nodes.data(), &count), hipSuccess);
  EXPECT_EQ(count, 5U);
  hipGraphNodeType type{};
  EXPECT_EQ(hipGraphNodeGetType(nodes[2], &type), hipSuccess);
  EXPECT_EQ(type, hipGraphNodeTypeHost);
  ASSERT_EQ(hipGraphGetRootNodes(graph, nullptr, &count), hipSuccess);
  EXPECT_EQ(count, 1U);
  ASSERT_EQ(hipGraphNodeGetDependencies(nodes[3], nullptr, &count), hipSuccess);
  EXPECT_EQ(count, 2U);

  hipGraphExec_t executable = nullptr;
  ASSERT_EQ(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0), hipSuccess);
  EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
  EXPECT_EQ(hipGraphDestroy(graph), hipErrorInvalidValue);
  for (int k = 1; k <= 3; ++k) {
    ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  }
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  EXPECT_EQ(data_[0], 64.0F);
  EXPECT_EQ(first, 64.0F);
  EXPECT_EQ(data_[50], 0.0F);
  EXPECT_EQ(called, 3);
  EXPECT_EQ(hipGraphExecDestroy(executable), hipSuccess);
  EXPECT_EQ(hipGraphLaunch(executable, stream_), hipErrorInvalidValue);
  EXPECT_EQ(hipEventDestroy(fork), hipSuccess);
  EXPECT_EQ(hipEventDestroy(join), hipSuccess);
}

TEST_F(HipGraph, RefusesWhatNoCaptureHas) {
  begin();
  EXPECT_EQ(hipStreamBeginCapture(stream_, hipStreamCaptureModeGlobal), hipErrorIllegalState);
  EXPECT_EQ(hipStreamSynchronize(stream_), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(status(stream_), hipStreamCaptureStatusInvalidated);
  EXPECT_EQ(twice(stream_), hipErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), hipErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), hipErrorIllegalState);

  // Calls that may wait, unless the thread says that it knows what it does.
  void* memory = nullptr;
  begin();
  EXPECT_EQ(hipMalloc(&memory, 8), hipErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), hipErrorStreamCaptureInvalidated);
  begin();
  auto mode = hipStreamCaptureModeRelaxed;
  EXPECT_EQ(hipThreadExchangeStreamCaptureMode(&mode), hipSuccess);
  EXPECT_EQ(hipMalloc(&memory, 8), hipSuccess);
  EXPECT_EQ(hipThreadExchangeStreamCaptureMode(&mode), hipSuccess);
  EXPECT_EQ(end(), hipSuccess);
  EXPECT_EQ(hipFree(memory), hipSuccess);

  // A fork that is not joined, in another thread, of another stream, of the default stream.
  hipEvent_t event = nullptr;
  ASSERT_EQ(hipEventCreate(&event), hipSuccess);
  begin();
  EXPECT_EQ(hipEventRecord(event, stream_), hipSuccess);
  EXPECT_EQ(hipStreamWaitEvent(other_, event, 0), hipSuccess);
  EXPECT_EQ(twice(other_), hipSuccess);
  hipGraph_t graph = nullptr;
  EXPECT_EQ(hipStreamEndCapture(other_, &graph), hipErrorStreamCaptureUnmatched);
  hipError_t elsewhere = hipSuccess;
  std::thread([&] { elsewhere = hipStreamEndCapture(stream_, &graph); }).join();
  EXPECT_EQ(elsewhere, hipErrorStreamCaptureWrongThread);
  EXPECT_EQ(end(), hipErrorStreamCaptureUnjoined);
  EXPECT_EQ(hipStreamWaitEvent(other_, event, 0), hipErrorCapturedEvent);
  EXPECT_EQ(hipEventDestroy(event), hipSuccess);
  EXPECT_EQ(hipStreamBeginCapture(nullptr, hipStreamCaptureModeGlobal),
            hipErrorStreamCaptureUnsupported);

  // The default stream waits for streams that do not exempt themselves.
  hipStream_t blocking = nullptr;
  ASSERT_EQ(hipStreamCreate(&blocking), hipSuccess);
  ASSERT_EQ(hipStreamBeginCapture(blocking, hipStreamCaptureModeRelaxed), hipSuccess);
  EXPECT_EQ(twice(nullptr), hipErrorStreamCaptureImplicit);
  EXPECT_EQ(status(blocking), hipStreamCaptureStatusInvalidated);
  EXPECT_EQ(hipStreamDestroy(blocking), hipSuccess);
  EXPECT_EQ(twice(nullptr), hipSuccess);
  EXPECT_EQ(hipDeviceSynchronize(), hipSuccess);
}

TEST_F(HipGraph, IsBuiltAndChanged) {
  hipGraph_t graph = nullptr;
  ASSERT_EQ(hipGraphCreate(&graph, 0), hipSuccess);
  void* arguments[] = {&data_, &data_, &data_, &count_};
  hipKernelNodeParams kernel{.blockDim = {128, 1, 1},
                             .extra = nullptr,
                             .func = add_,
                             .gridDim = {1, 1, 1},
                             .kernelParams = static_cast<void**>(arguments),
                             .sharedMemBytes = 0};
  const hipMemsetParams fill{.dst = data_ + 1,
                             .elementSize = 4,
                             .height = 2,
                             .pitch = 16,
                             .value = 0x40400000,  // 3
                             .width = 2};
  hipGraphNode_t add = nullptr;
  hipGraphNode_t set = nullptr;
  hipGraphNode_t copy = nullptr;
  hipGraphNode_t none = nullptr;
  ASSERT_EQ(hipGraphAddMemsetNode(&set, graph, nullptr, 0, &fill), hipSuccess);
  ASSERT_EQ(hipGraphAddKernelNode(&add, graph, nullptr, 0, &kernel), hipSuccess);
  ASSERT_EQ(hipGraphAddMemcpyNode1D(&copy, graph, &add, 1, data_ + 9, data_ + 1, 4,
                                    hipMemcpyDeviceToDevice),
            hipSuccess);
  ASSERT_EQ(hipGraphAddDependencies(graph, &set, &add, 1), hipSuccess);
  EXPECT_EQ(hipGraphAddDependencies(graph, &set, &add, 1), hipErrorInvalidValue);
  EXPECT_EQ(hipGraphAddKernelNode(&none, graph, nullptr, 1, &kernel), hipErrorInvalidValue);
  EXPECT_EQ(hipGraphAddEmptyNode(&none, graph, &none, 1), hipErrorInvalidValue);
  hipGraphExec_t executable = nullptr;
  ASSERT_EQ(hipGraphInstantiateWithFlags(&executable, graph, 0), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  const std::array<float, 10> expected{2, 6, 6, 2, 2, 6, 6, 2, 2, 6};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data_));

  // As many as before, in the graph and in what was made of it.
  hipKernelNodeParams given{};
  ASSERT_EQ(hipGraphKernelNodeGetParams(add, &given), hipSuccess);
  EXPECT_EQ(given.func, add_);
  EXPECT_EQ(*static_cast<int*>(given.kernelParams[3]), kCount);
  int one = 1;
  arguments[3] = &one;
  EXPECT_EQ(hipGraphExecKernelNodeSetParams(executable, set, &kernel), hipErrorInvalidValue);
  ASSERT_EQ(hipGraphExecKernelNodeSetParams(executable, add, &kernel), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  EXPECT_EQ(data_[0], 4.0F);
  EXPECT_EQ(data_[3], 2.0F);
  ASSERT_EQ(hipGraphKernelNodeSetParams(add, &given), hipSuccess);
  hipGraphExecUpdateResult outcome{};
  ASSERT_EQ(hipGraphExecUpdate(executable, graph, &none, &outcome), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  EXPECT_EQ(data_[3], 4.0F);

  // A graph in a graph, once more than itself.
  hipGraph_t outer = nullptr;
  ASSERT_EQ(hipGraphClone(&outer, graph), hipSuccess);
  EXPECT_EQ(hipGraphAddChildGraphNode(&none, graph, nullptr, 0, graph), hipErrorInvalidValue);
  ASSERT_EQ(hipGraphAddChildGraphNode(&none, outer, nullptr, 0, graph), hipSuccess);
  EXPECT_EQ(hipGraphExecUpdate(executable, outer, &none, &outcome), hipErrorGraphExecUpdateFailure);
  EXPECT_EQ(outcome, hipGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(hipGraphExecDestroy(executable), hipSuccess);
  ASSERT_EQ(hipGraphInstantiateWithFlags(&executable, outer, 0), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  EXPECT_EQ(data_[3], 16.0F);
  EXPECT_EQ(hipGraphExecDestroy(executable), hipSuccess);

  // What goes round is no order.
  ASSERT_EQ(hipGraphAddDependencies(graph, &copy, &set, 1), hipSuccess);
  EXPECT_EQ(hipGraphInstantiateWithFlags(&executable, graph, 0), hipErrorInvalidValue);
  EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
  EXPECT_EQ(hipGraphDestroy(outer), hipSuccess);
  EXPECT_EQ(hipGraphNodeGetDependencies(add, nullptr, nullptr), hipErrorInvalidValue);
}

/// As PyTorch's caching allocator does with `cudaMallocAsync`: memory of a capture stays where it
/// is for all launches, and goes with the last of them.
TEST_F(HipGraph, HasMemoryOfItsOwn) {
  begin();
  float* own = nullptr;
  EXPECT_EQ(hipMallocAsync(reinterpret_cast<void**>(&own), 4 * kCount, stream_), hipSuccess);
  EXPECT_EQ(hipMemcpyAsync(own, data_, 4 * kCount, hipMemcpyDeviceToDevice, stream_), hipSuccess);
  void* arguments[] = {&own, &own, &data_, &count_};
  EXPECT_EQ(hipModuleLaunchKernel(add_, 1, 1, 1, 128, 1, 1, 0, stream_,
                                  static_cast<void**>(arguments), nullptr),
            hipSuccess);
  EXPECT_EQ(hipFreeAsync(own, stream_), hipSuccess);
  hipGraph_t graph = nullptr;
  ASSERT_EQ(hipStreamEndCapture(stream_, &graph), hipSuccess);
  hipGraphExec_t executable = nullptr;
  ASSERT_EQ(hipGraphInstantiateWithFlags(&executable, graph, 0), hipSuccess);
  EXPECT_EQ(hipGraphDestroy(graph), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipGraphLaunch(executable, stream_), hipSuccess);
  ASSERT_EQ(hipStreamSynchronize(stream_), hipSuccess);
  EXPECT_EQ(data_[99], 4.0F);
  size_t bytes = 0;
  EXPECT_EQ(hipMemPtrGetInfo(own, &bytes), hipSuccess);
  EXPECT_EQ(hipGraphExecDestroy(executable), hipSuccess);
  EXPECT_EQ(hipMemPtrGetInfo(own, &bytes), hipErrorInvalidValue);
}

}  // namespace
}  // namespace weft::sim
