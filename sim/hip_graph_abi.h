// The part of the HIP runtime's binary interface that is about graphs and the capture of streams.
// Types and values are those of ROCm 6 and 7 (hip/hip_runtime_api.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "arch/cdna/hip_abi.h"

namespace weft::hip {

// NOLINTBEGIN(readability-identifier-naming): HIP's names

struct dim3 {
  uint32_t x;
  uint32_t y;
  uint32_t z;
};

using hipGraph_t = struct ihipGraph*;
using hipGraphNode_t = struct hipGraphNode*;
using hipGraphExec_t = struct hipGraphExec*;
using hipHostFn_t = void (*)(void* data);

enum hipStreamCaptureStatus : uint32_t {
  hipStreamCaptureStatusNone = 0,
  hipStreamCaptureStatusActive = 1,
  hipStreamCaptureStatusInvalidated = 2,
};
enum hipStreamCaptureMode : uint32_t {
  hipStreamCaptureModeGlobal = 0,
  hipStreamCaptureModeThreadLocal = 1,
  hipStreamCaptureModeRelaxed = 2,
};

enum hipGraphNodeType : uint32_t {
  hipGraphNodeTypeKernel = 0,
  hipGraphNodeTypeMemcpy = 1,
  hipGraphNodeTypeMemset = 2,
  hipGraphNodeTypeHost = 3,
  hipGraphNodeTypeGraph = 4,
  hipGraphNodeTypeEmpty = 5,
  hipGraphNodeTypeMemAlloc = 10,
  hipGraphNodeTypeMemFree = 11,
};

struct hipKernelNodeParams {
  dim3 blockDim;
  void** extra;
  void* func;
  dim3 gridDim;
  void** kernelParams;
  unsigned sharedMemBytes;
};
static_assert(sizeof(hipKernelNodeParams) == 64);
struct hipMemsetParams {
  void* dst;
  unsigned elementSize;
  size_t height;
  size_t pitch;
  unsigned value;
  size_t width;  ///< elements
};
static_assert(sizeof(hipMemsetParams) == 48);
struct hipHostNodeParams {
  hipHostFn_t fn;
  void* userData;
};

enum hipGraphExecUpdateResult : uint32_t {
  hipGraphExecUpdateSuccess = 0,
  hipGraphExecUpdateError = 1,
  hipGraphExecUpdateErrorTopologyChanged = 2,
  hipGraphExecUpdateErrorNodeTypeChanged = 3,
};

/// X(result, name, (parameters)), as WEFT_HIP_FUNCTIONS.
#define WEFT_SIM_HIP_GRAPH_FUNCTIONS(X)                                                            \
  X(hipError_t, hipStreamBeginCapture, (hipStream_t stream, hipStreamCaptureMode mode))            \
  X(hipError_t, hipStreamEndCapture, (hipStream_t stream, hipGraph_t * graph))                     \
  X(hipError_t, hipStreamIsCapturing, (hipStream_t stream, hipStreamCaptureStatus * status))       \
  X(hipError_t, hipStreamGetCaptureInfo,                                                           \
    (hipStream_t stream, hipStreamCaptureStatus * status, unsigned long long* id))                 \
  X(hipError_t, hipStreamGetCaptureInfo_v2,                                                        \
    (hipStream_t stream, hipStreamCaptureStatus * status, unsigned long long* id,                  \
     hipGraph_t* graph, const hipGraphNode_t** last, size_t* last_count))                          \
  X(hipError_t, hipStreamUpdateCaptureDependencies,                                                \
    (hipStream_t stream, hipGraphNode_t * nodes, size_t count, unsigned flags))                    \
  X(hipError_t, hipThreadExchangeStreamCaptureMode, (hipStreamCaptureMode * mode))                 \
  X(hipError_t, hipGraphCreate, (hipGraph_t * graph, unsigned flags))                              \
  X(hipError_t, hipGraphDestroy, (hipGraph_t graph))                                               \
  X(hipError_t, hipGraphClone, (hipGraph_t * clone, hipGraph_t graph))                             \
  X(hipError_t, hipGraphAddDependencies,                                                           \
    (hipGraph_t graph, const hipGraphNode_t* from, const hipGraphNode_t* to, size_t count))        \
  X(hipError_t, hipGraphAddKernelNode,                                                             \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,           \
     const hipKernelNodeParams* parameters))                                                       \
  X(hipError_t, hipGraphAddMemcpyNode1D,                                                           \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count, void* to, \
     const void* from, size_t bytes, hipMemcpyKind kind))                                          \
  X(hipError_t, hipGraphAddMemsetNode,                                                             \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,           \
     const hipMemsetParams* parameters))                                                           \
  X(hipError_t, hipGraphAddHostNode,                                                               \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,           \
     const hipHostNodeParams* parameters))                                                         \
  X(hipError_t, hipGraphAddEmptyNode,                                                              \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count))          \
  X(hipError_t, hipGraphAddChildGraphNode,                                                         \
    (hipGraphNode_t * node, hipGraph_t graph, const hipGraphNode_t* after, size_t count,           \
     hipGraph_t child))                                                                            \
  X(hipError_t, hipGraphGetNodes, (hipGraph_t graph, hipGraphNode_t * nodes, size_t * count))      \
  X(hipError_t, hipGraphGetRootNodes, (hipGraph_t graph, hipGraphNode_t * nodes, size_t * count))  \
  X(hipError_t, hipGraphNodeGetType, (hipGraphNode_t node, hipGraphNodeType * type))               \
  X(hipError_t, hipGraphNodeGetDependencies,                                                       \
    (hipGraphNode_t node, hipGraphNode_t * nodes, size_t * count))                                 \
  X(hipError_t, hipGraphKernelNodeGetParams,                                                       \
    (hipGraphNode_t node, hipKernelNodeParams * parameters))                                       \
  X(hipError_t, hipGraphKernelNodeSetParams,                                                       \
    (hipGraphNode_t node, const hipKernelNodeParams* parameters))                                  \
  X(hipError_t, hipGraphInstantiate,                                                               \
    (hipGraphExec_t * executable, hipGraph_t graph, hipGraphNode_t * wrong, char* log,             \
     size_t log_bytes))                                                                            \
  X(hipError_t, hipGraphInstantiateWithFlags,                                                      \
    (hipGraphExec_t * executable, hipGraph_t graph, unsigned long long flags))                     \
  X(hipError_t, hipGraphExecDestroy, (hipGraphExec_t executable))                                  \
  X(hipError_t, hipGraphExecKernelNodeSetParams,                                                   \
    (hipGraphExec_t executable, hipGraphNode_t node, const hipKernelNodeParams* parameters))       \
  X(hipError_t, hipGraphExecUpdate,                                                                \
    (hipGraphExec_t executable, hipGraph_t graph, hipGraphNode_t * wrong,                          \
     hipGraphExecUpdateResult * outcome))                                                          \
  X(hipError_t, hipGraphUpload, (hipGraphExec_t executable, hipStream_t stream))                   \
  X(hipError_t, hipGraphLaunch, (hipGraphExec_t executable, hipStream_t stream))

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::hip
