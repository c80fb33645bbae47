// The part of the HIP runtime's binary interface that Weft calls and that the simulator answers:
// types, values and signatures as in libamdhip64.so of ROCm 6 and 7 (hip/hip_runtime_api.h). Names
// are HIP's own, so that code written against either reads the same; no ROCm header is needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::hip {

// NOLINTBEGIN(readability-identifier-naming): HIP's names

enum hipError_t : uint32_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidSymbol = 13,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorInvalidContext = 201,
  hipErrorNoBinaryForGpu = 209,
  hipErrorPeerAccessUnsupported = 217,
  hipErrorFileNotFound = 301,
  hipErrorInvalidHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchOutOfResources = 701,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorPeerAccessNotEnabled = 705,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipErrorHostMemoryNotRegistered = 713,
  hipErrorLaunchFailure = 719,
  hipErrorCooperativeLaunchTooLarge = 720,
  hipErrorNotSupported = 801,
  hipErrorStreamCaptureUnsupported = 900,
  hipErrorStreamCaptureInvalidated = 901,
  hipErrorStreamCaptureMerge = 902,
  hipErrorStreamCaptureUnmatched = 903,
  hipErrorStreamCaptureUnjoined = 904,
  hipErrorStreamCaptureIsolation = 905,
  hipErrorStreamCaptureImplicit = 906,
  hipErrorCapturedEvent = 907,
  hipErrorStreamCaptureWrongThread = 908,
  hipErrorGraphExecUpdateFailure = 910,
  hipErrorUnknown = 999,
};

enum hipMemcpyKind : uint32_t {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
};

/// The attributes of a device that are of use here, out of some hundred.
enum hipDeviceAttribute_t : uint32_t {
  hipDeviceAttributeEccEnabled = 0,
  hipDeviceAttributeAsyncEngineCount = 2,
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
  hipDeviceAttributeClockRate = 5,  ///< kHz
  hipDeviceAttributeComputeMode = 6,
  hipDeviceAttributeComputePreemptionSupported = 7,
  hipDeviceAttributeConcurrentKernels = 8,
  hipDeviceAttributeConcurrentManagedAccess = 9,
  hipDeviceAttributeCooperativeLaunch = 10,
  hipDeviceAttributeCooperativeMultiDeviceLaunch = 11,
  hipDeviceAttributeDirectManagedMemAccessFromHost = 13,
  hipDeviceAttributeHostNativeAtomicSupported = 15,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributeIsMultiGpuBoard = 17,
  hipDeviceAttributeKernelExecTimeout = 18,
  hipDeviceAttributeL2CacheSize = 19,
  hipDeviceAttributeComputeCapabilityMajor = 23,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMaxBlocksPerMultiProcessor = 25,
  hipDeviceAttributeMaxBlockDimX = 26,
  hipDeviceAttributeMaxBlockDimY = 27,
  hipDeviceAttributeMaxBlockDimZ = 28,
  hipDeviceAttributeMaxGridDimX = 29,
  hipDeviceAttributeMaxGridDimY = 30,
  hipDeviceAttributeMaxGridDimZ = 31,
  hipDeviceAttributeMaxThreadsDim = 55,
  hipDeviceAttributeMaxThreadsPerBlock = 56,
  hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
  hipDeviceAttributeMaxPitch = 58,
  hipDeviceAttributeMemoryBusWidth = 59,   ///< bits
  hipDeviceAttributeMemoryClockRate = 60,  ///< kHz
  hipDeviceAttributeComputeCapabilityMinor = 61,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePageableMemoryAccess = 65,
  hipDeviceAttributePageableMemoryAccessUsesHostPageTables = 66,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainID = 69,
  hipDeviceAttributeMaxRegistersPerBlock = 71,
  hipDeviceAttributeMaxRegistersPerMultiprocessor = 72,
  hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
  hipDeviceAttributeSharedMemPerBlockOptin = 75,
  hipDeviceAttributeSharedMemPerMultiprocessor = 76,
  hipDeviceAttributeStreamPrioritiesSupported = 78,
  hipDeviceAttributeTotalConstantMemory = 83,
  hipDeviceAttributeTotalGlobalMem = 84,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeWarpSize = 87,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeVirtualMemoryManagementSupported = 89,
  hipDeviceAttributeHostRegisterSupported = 90,
  hipDeviceAttributeClockInstructionRate = 10000,  ///< kHz
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
  hipDeviceAttributeIsLargeBar = 10011,
  hipDeviceAttributeAsicRevision = 10012,
  hipDeviceAttributeCanUseStreamWaitValue = 10013,
  hipDeviceAttributeImageSupport = 10014,
  hipDeviceAttributePhysicalMultiProcessorCount = 10015,
  hipDeviceAttributeFineGrainSupport = 10016,
  hipDeviceAttributeWallClockRate = 10017,  ///< kHz
};

enum hipFunction_attribute : uint32_t {
  HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
  HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  HIP_FUNC_ATTRIBUTE_NUM_REGS = 4,
  HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

/// For `extra` of hipModuleLaunchKernel: the packed arguments and their size.
inline void* const HIP_LAUNCH_PARAM_BUFFER_POINTER = reinterpret_cast<void*>(1);
inline void* const HIP_LAUNCH_PARAM_BUFFER_SIZE = reinterpret_cast<void*>(2);
inline void* const HIP_LAUNCH_PARAM_END = reinterpret_cast<void*>(3);

inline constexpr unsigned hipEventDisableTiming = 2;
inline constexpr unsigned hipStreamNonBlocking = 1;

/// What hipGetDevicePropertiesR0600 fills: ROCm 6's hipDeviceProp_t.
struct hipDeviceProp_t {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;  ///< kHz
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int deviceOverlap;
  int multiProcessorCount;
  int kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int computeMode;
  int unused_textures[40];  ///< the limits of textures and surfaces
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;  ///< kHz
  int memoryBusWidth;   ///< bits
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
  int singleToDoublePrecisionPerfRatio;
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;
  int unused_pools[12];  ///< sparseHipArraySupported ... unifiedFunctionPointers
  int reserved[63];
  int hipReserved[32];
  char gcnArchName[256];  ///< "gfx942:sramecc+:xnack-"
  size_t maxSharedMemoryPerMultiProcessor;
  int clockInstructionRate;  ///< kHz
  unsigned arch;             ///< a bit for each feature
  void* hdpMemFlushCntl;
  void* hdpRegFlushCntl;
  int unused_cooperative[4];
  int isLargeBar;
  int asicRevision;
};
static_assert(sizeof(hipDeviceProp_t) == 1472);
static_assert(offsetof(hipDeviceProp_t, multiProcessorCount) == 388);
static_assert(offsetof(hipDeviceProp_t, surfaceAlignment) == 568);
static_assert(offsetof(hipDeviceProp_t, l2CacheSize) == 616);
static_assert(offsetof(hipDeviceProp_t, sharedMemPerBlockOptin) == 696);
static_assert(offsetof(hipDeviceProp_t, gcnArchName) == 1160);

struct hipFuncAttributes {
  int binaryVersion;
  int cacheModeCA;
  size_t constSizeBytes;
  size_t localSizeBytes;  ///< scratch of a thread
  int maxDynamicSharedSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int preferredShmemCarveout;
  int ptxVersion;
  size_t sharedSizeBytes;
};
static_assert(sizeof(hipFuncAttributes) == 56);

using hipDevice_t = int;
using hipDeviceptr_t = void*;
using hipStream_t = struct ihipStream_t*;
using hipEvent_t = struct ihipEvent_t*;
using hipModule_t = struct ihipModule_t*;
using hipFunction_t = struct ihipModuleSymbol_t*;

/// Every function: X(result, name, (parameters)). A table of pointers, the look-up by name and the
/// simulator's exports all come from this list.
#define WEFT_HIP_FUNCTIONS(X)                                                                     \
  X(hipError_t, hipInit, (unsigned flags))                                                        \
  X(hipError_t, hipDriverGetVersion, (int* version))                                              \
  X(hipError_t, hipRuntimeGetVersion, (int* version))                                             \
  X(hipError_t, hipGetDeviceCount, (int* count))                                                  \
  X(hipError_t, hipGetDevice, (int* device))                                                      \
  X(hipError_t, hipSetDevice, (int device))                                                       \
  X(hipError_t, hipDeviceGet, (hipDevice_t * device, int ordinal))                                \
  X(hipError_t, hipDeviceGetName, (char* name, int bytes, hipDevice_t device))                    \
  X(hipError_t, hipDeviceTotalMem, (size_t * bytes, hipDevice_t device))                          \
  X(hipError_t, hipDeviceGetAttribute, (int* value, hipDeviceAttribute_t attribute, int device))  \
  X(hipError_t, hipGetDevicePropertiesR0600, (hipDeviceProp_t * properties, int device))          \
  X(hipError_t, hipDeviceSynchronize, ())                                                         \
  X(hipError_t, hipGetLastError, ())                                                              \
  X(hipError_t, hipPeekAtLastError, ())                                                           \
  X(const char*, hipGetErrorName, (hipError_t error))                                             \
  X(const char*, hipGetErrorString, (hipError_t error))                                           \
  X(hipError_t, hipMalloc, (void** pointer, size_t bytes))                                        \
  X(hipError_t, hipFree, (void* pointer))                                                         \
  X(hipError_t, hipHostMalloc, (void** pointer, size_t bytes, unsigned flags))                    \
  X(hipError_t, hipHostFree, (void* pointer))                                                     \
  X(hipError_t, hipMemGetInfo, (size_t * free, size_t * total))                                   \
  X(hipError_t, hipMemcpy, (void* to, const void* from, size_t bytes, hipMemcpyKind kind))        \
  X(hipError_t, hipMemcpyAsync,                                                                   \
    (void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream))           \
  X(hipError_t, hipMemcpyHtoD, (hipDeviceptr_t to, void* from, size_t bytes))                     \
  X(hipError_t, hipMemcpyDtoH, (void* to, hipDeviceptr_t from, size_t bytes))                     \
  X(hipError_t, hipMemcpyDtoD, (hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes))            \
  X(hipError_t, hipMemset, (void* pointer, int value, size_t bytes))                              \
  X(hipError_t, hipMemsetAsync, (void* pointer, int value, size_t bytes, hipStream_t stream))     \
  X(hipError_t, hipMemsetD32, (hipDeviceptr_t pointer, int value, size_t count))                  \
  X(hipError_t, hipStreamCreate, (hipStream_t * stream))                                          \
  X(hipError_t, hipStreamCreateWithFlags, (hipStream_t * stream, unsigned flags))                 \
  X(hipError_t, hipStreamDestroy, (hipStream_t stream))                                           \
  X(hipError_t, hipStreamSynchronize, (hipStream_t stream))                                       \
  X(hipError_t, hipStreamQuery, (hipStream_t stream))                                             \
  X(hipError_t, hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned flags))       \
  X(hipError_t, hipEventCreate, (hipEvent_t * event))                                             \
  X(hipError_t, hipEventCreateWithFlags, (hipEvent_t * event, unsigned flags))                    \
  X(hipError_t, hipEventDestroy, (hipEvent_t event))                                              \
  X(hipError_t, hipEventRecord, (hipEvent_t event, hipStream_t stream))                           \
  X(hipError_t, hipEventSynchronize, (hipEvent_t event))                                          \
  X(hipError_t, hipEventQuery, (hipEvent_t event))                                                \
  X(hipError_t, hipEventElapsedTime, (float* milliseconds, hipEvent_t start, hipEvent_t stop))    \
  X(hipError_t, hipModuleLoad, (hipModule_t * module, const char* path))                          \
  X(hipError_t, hipModuleLoadData, (hipModule_t * module, const void* image))                     \
  X(hipError_t, hipModuleUnload, (hipModule_t module))                                            \
  X(hipError_t, hipModuleGetFunction,                                                             \
    (hipFunction_t * function, hipModule_t module, const char* name))                             \
  X(hipError_t, hipModuleGetGlobal,                                                               \
    (hipDeviceptr_t * pointer, size_t * bytes, hipModule_t module, const char* name))             \
  X(hipError_t, hipFuncGetAttributes, (hipFuncAttributes * attributes, const void* function))     \
  X(hipError_t, hipFuncGetAttribute,                                                              \
    (int* value, hipFunction_attribute attribute, hipFunction_t function))                        \
  X(hipError_t, hipModuleLaunchKernel,                                                            \
    (hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, hipStream_t stream,               \
     void** parameters, void** extra))

/// The functions as pointers, under their own names.
struct HipApi {
#define WEFT_HIP_MEMBER(result, name, parameters) result(*name) parameters;
  WEFT_HIP_FUNCTIONS(WEFT_HIP_MEMBER)
#undef WEFT_HIP_MEMBER
};

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::hip
