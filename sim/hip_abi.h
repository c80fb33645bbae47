// The rest of the HIP runtime's binary interface that the simulator answers, beside what Weft
// itself calls (arch/cdna/hip_abi.h): what programs of the module API, and the launchers of
// compilers such as Triton's, ask of libamdhip64.so. Types and values are those of ROCm 6 and 7
// (hip/hip_runtime_api.h, hip/driver_types.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "arch/cdna/hip_abi.h"
#include "sim/hip_graph_abi.h"

namespace weft::hip {

// NOLINTBEGIN(readability-identifier-naming): HIP's names

/// In place of a stream's handle: the default stream, by another name.
inline hipStream_t const hipStreamLegacy = reinterpret_cast<hipStream_t>(1);
inline hipStream_t const hipStreamPerThread = reinterpret_cast<hipStream_t>(2);

inline constexpr unsigned hipHostMallocPortable = 0x1;
inline constexpr unsigned hipHostMallocMapped = 0x2;
inline constexpr unsigned hipHostMallocWriteCombined = 0x4;
inline constexpr unsigned hipHostMallocNumaUser = 0x2000'0000;
inline constexpr unsigned hipHostMallocCoherent = 0x4000'0000;
inline constexpr unsigned hipHostMallocNonCoherent = 0x8000'0000;
inline constexpr unsigned hipDeviceMallocDefault = 0x0;
inline constexpr unsigned hipDeviceMallocFinegrained = 0x1;
inline constexpr unsigned hipMallocSignalMemory = 0x2;
inline constexpr unsigned hipDeviceMallocUncached = 0x3;
inline constexpr unsigned hipDeviceMallocContiguous = 0x4;
inline constexpr unsigned hipHostRegisterPortable = 0x1;
inline constexpr unsigned hipHostRegisterMapped = 0x2;
inline constexpr unsigned hipExtHostRegisterCoarseGrained = 0x8;
inline constexpr unsigned hipMemAttachGlobal = 0x1;
inline constexpr unsigned hipMemAttachHost = 0x2;
inline constexpr int hipCpuDeviceId = -1;

enum hipMemoryAdvise : uint32_t {
  hipMemAdviseSetReadMostly = 1,
  hipMemAdviseUnsetReadMostly = 2,
  hipMemAdviseSetPreferredLocation = 3,
  hipMemAdviseUnsetPreferredLocation = 4,
  hipMemAdviseSetAccessedBy = 5,
  hipMemAdviseUnsetAccessedBy = 6,
  hipMemAdviseSetCoarseGrain = 100,
  hipMemAdviseUnsetCoarseGrain = 101,
};

enum hipMemoryType : uint32_t {
  hipMemoryTypeUnregistered = 0,
  hipMemoryTypeHost = 1,
  hipMemoryTypeDevice = 2,
  hipMemoryTypeManaged = 3,
};

struct hipPointerAttribute_t {
  hipMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned allocationFlags;
};
static_assert(sizeof(hipPointerAttribute_t) == 32);

enum hipPointer_attribute : uint32_t {
  HIP_POINTER_ATTRIBUTE_CONTEXT = 1,
  HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  HIP_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
  HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE = 10,
  HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  HIP_POINTER_ATTRIBUTE_MAPPED = 13,
};

enum hipDeviceP2PAttr : uint32_t {
  hipDevP2PAttrPerformanceRank = 0,
  hipDevP2PAttrAccessSupported = 1,
  hipDevP2PAttrNativeAtomicSupported = 2,
  hipDevP2PAttrHipArrayAccessSupported = 3,
};

enum hipFuncAttribute : uint32_t {
  hipFuncAttributeMaxDynamicSharedMemorySize = 8,
  hipFuncAttributePreferredSharedMemoryCarveout = 9,
};

enum hipDriverProcAddressQueryResult : uint32_t {
  HIP_GET_PROC_ADDRESS_SUCCESS = 0,
  HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
};

enum hipLaunchAttributeID : uint32_t {
  hipLaunchAttributeAccessPolicyWindow = 1,
  hipLaunchAttributeCooperative = 2,
  hipLaunchAttributePriority = 8,
};
struct hipLaunchAttribute {
  hipLaunchAttributeID id;
  uint32_t pad;
  union {
    char bytes[64];
    int cooperative;
    int priority;
  } value;
};
static_assert(sizeof(hipLaunchAttribute) == 72);

struct HIP_LAUNCH_CONFIG {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  hipStream_t hStream;
  hipLaunchAttribute* attrs;
  unsigned numAttrs;
};
static_assert(sizeof(HIP_LAUNCH_CONFIG) == 56);

struct hipLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  hipStream_t stream;
  hipLaunchAttribute* attrs;
  unsigned numAttrs;
};
static_assert(sizeof(hipLaunchConfig_t) == 56);

struct hipUUID {
  char bytes[16];
};
struct hipIpcMemHandle_t {
  char reserved[64];
};
struct hipIpcEventHandle_t {
  char reserved[64];
};

enum hipLimit_t : uint32_t {
  hipLimitStackSize = 0,
  hipLimitPrintfFifoSize = 1,
  hipLimitMallocHeapSize = 2,
};

using hipMemPool_t = struct ihipMemPoolHandle_t*;
enum hipMemPoolAttr : uint32_t {
  hipMemPoolReuseFollowEventDependencies = 1,  ///< int, as the next two
  hipMemPoolReuseAllowOpportunistic = 2,
  hipMemPoolReuseAllowInternalDependencies = 3,
  hipMemPoolAttrReleaseThreshold = 4,  ///< uint64_t, as the others
  hipMemPoolAttrReservedMemCurrent = 5,
  hipMemPoolAttrReservedMemHigh = 6,
  hipMemPoolAttrUsedMemCurrent = 7,
  hipMemPoolAttrUsedMemHigh = 8,
};
enum hipMemAllocationType : uint32_t { hipMemAllocationTypePinned = 1 };
enum hipMemLocationType : uint32_t { hipMemLocationTypeDevice = 1 };
struct hipMemLocation {
  hipMemLocationType type;
  int id;
};
enum hipMemAccessFlags : uint32_t {
  hipMemAccessFlagsProtNone = 0,
  hipMemAccessFlagsProtRead = 1,
  hipMemAccessFlagsProtReadWrite = 3,
};
struct hipMemAccessDesc {
  hipMemLocation location;
  hipMemAccessFlags flags;
};
struct hipMemPoolProps {
  hipMemAllocationType allocType;
  uint32_t handleTypes;
  hipMemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;  ///< 0: none
  unsigned char reserved[56];
};
static_assert(sizeof(hipMemPoolProps) == 88);

enum hipMemRangeAttribute : uint32_t {
  hipMemRangeAttributeReadMostly = 1,
  hipMemRangeAttributePreferredLocation = 2,
  hipMemRangeAttributeAccessedBy = 3,
  hipMemRangeAttributeLastPrefetchLocation = 4,
  hipMemRangeAttributeCoherencyMode = 100,
};

struct hipPitchedPtr {
  void* ptr;
  size_t pitch;
  size_t xsize;
  size_t ysize;
};
struct hipExtent {
  size_t width;  ///< bytes
  size_t height;
  size_t depth;
};
struct hipPos {
  size_t x;
  size_t y;
  size_t z;
};
struct hipMemcpy3DParms {
  void* srcArray;
  hipPos srcPos;
  hipPitchedPtr srcPtr;
  void* dstArray;
  hipPos dstPos;
  hipPitchedPtr dstPtr;
  hipExtent extent;
  hipMemcpyKind kind;
};
static_assert(sizeof(hipMemcpy3DParms) == 160);
struct hip_Memcpy2D {
  size_t srcXInBytes;
  size_t srcY;
  hipMemoryType srcMemoryType;
  const void* srcHost;
  hipDeviceptr_t srcDevice;
  void* srcArray;
  size_t srcPitch;
  size_t dstXInBytes;
  size_t dstY;
  hipMemoryType dstMemoryType;
  void* dstHost;
  hipDeviceptr_t dstDevice;
  void* dstArray;
  size_t dstPitch;
  size_t WidthInBytes;
  size_t Height;
};
static_assert(sizeof(hip_Memcpy2D) == 128);

using hipCtx_t = struct ihipCtx_t*;

/// What hipGetDeviceProperties fills under that name: the hipDeviceProp_t from before ROCm 6.
struct hipDeviceProp_tR0000 {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  int memoryClockRate;
  int memoryBusWidth;
  size_t totalConstMem;
  int major;
  int minor;
  int multiProcessorCount;
  int l2CacheSize;
  int maxThreadsPerMultiProcessor;
  int computeMode;
  int clockInstructionRate;
  unsigned arch;
  int concurrentKernels;
  int pciDomainID;
  int pciBusID;
  int pciDeviceID;
  size_t maxSharedMemoryPerMultiProcessor;
  int isMultiGpuBoard;
  int canMapHostMemory;
  int gcnArch;
  char gcnArchName[256];
  int integrated;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  int unused_textures[7];
  void* hdpMemFlushCntl;
  void* hdpRegFlushCntl;
  size_t memPitch;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int kernelExecTimeoutEnabled;
  int ECCEnabled;
  int tccDriver;
  int unused_cooperative[4];
  int isLargeBar;
  int asicRevision;
  int managedMemory;
  int directManagedMemAccessFromHost;
  int concurrentManagedAccess;
  int pageableMemoryAccess;
  int pageableMemoryAccessUsesHostPageTables;
};
static_assert(offsetof(hipDeviceProp_tR0000, gcnArchName) == 396);
static_assert(sizeof(hipDeviceProp_tR0000) == 792);

using hipStreamCallback_t = void (*)(hipStream_t stream, hipError_t status, void* data);

/// Functions beside WEFT_HIP_FUNCTIONS: X(result, name, (parameters)).
#define WEFT_SIM_HIP_FUNCTIONS(X)                                                                  \
  X(hipError_t, hipDeviceReset, ())                                                                \
  X(hipError_t, hipSetDeviceFlags, (unsigned flags))                                               \
  X(hipError_t, hipGetDeviceFlags, (unsigned* flags))                                              \
  X(hipError_t, hipDevicePrimaryCtxGetState, (hipDevice_t device, unsigned* flags, int* active))   \
  X(hipError_t, hipDevicePrimaryCtxRetain, (hipCtx_t * context, hipDevice_t device))               \
  X(hipError_t, hipDevicePrimaryCtxRelease, (hipDevice_t device))                                  \
  X(hipError_t, hipCtxCreate, (hipCtx_t * context, unsigned flags, hipDevice_t device))            \
  X(hipError_t, hipCtxDestroy, (hipCtx_t context))                                                 \
  X(hipError_t, hipCtxGetCurrent, (hipCtx_t * context))                                            \
  X(hipError_t, hipCtxSetCurrent, (hipCtx_t context))                                              \
  X(hipError_t, hipCtxPushCurrent, (hipCtx_t context))                                             \
  X(hipError_t, hipCtxPopCurrent, (hipCtx_t * context))                                            \
  X(hipError_t, hipCtxGetDevice, (hipDevice_t * device))                                           \
  X(hipError_t, hipCtxSynchronize, ())                                                             \
  X(hipError_t, hipDeviceSetCacheConfig, (int config))                                             \
  X(hipError_t, hipDeviceGetCacheConfig, (int* config))                                            \
  X(hipError_t, hipDeviceSetSharedMemConfig, (int config))                                         \
  X(hipError_t, hipDeviceGetSharedMemConfig, (int* config))                                        \
  X(hipError_t, hipExtGetLastError, ())                                                            \
  X(hipError_t, hipProfilerStart, ())                                                              \
  X(hipError_t, hipProfilerStop, ())                                                               \
  X(hipError_t, hipDeviceGetUuid, (hipUUID * uuid, hipDevice_t device))                            \
  X(hipError_t, hipDeviceGetPCIBusId, (char* id, int bytes, int device))                           \
  X(hipError_t, hipDeviceGetByPCIBusId, (int* device, const char* id))                             \
  X(hipError_t, hipDeviceComputeCapability, (int* major, int* minor, hipDevice_t device))          \
  X(hipError_t, hipDeviceGetLimit, (size_t * value, hipLimit_t limit))                             \
  X(hipError_t, hipDeviceSetLimit, (hipLimit_t limit, size_t value))                               \
  X(hipError_t, hipDeviceGetStreamPriorityRange, (int* least, int* greatest))                      \
  X(hipError_t, hipGetDeviceProperties, (hipDeviceProp_tR0000 * properties, int device))           \
  X(hipError_t, hipDeviceCanAccessPeer, (int* can, int device, int peer))                          \
  X(hipError_t, hipDeviceEnablePeerAccess, (int peer, unsigned flags))                             \
  X(hipError_t, hipDeviceDisablePeerAccess, (int peer))                                            \
  X(hipError_t, hipDeviceGetP2PAttribute,                                                          \
    (int* value, hipDeviceP2PAttr attribute, int device, int peer))                                \
  X(hipError_t, hipDrvGetErrorName, (hipError_t error, const char** name))                         \
  X(hipError_t, hipDrvGetErrorString, (hipError_t error, const char** text))                       \
  X(hipError_t, hipGetProcAddress,                                                                 \
    (const char* symbol, void** function, int version, uint64_t flags,                             \
     hipDriverProcAddressQueryResult* status))                                                     \
  X(hipError_t, hipExtMallocWithFlags, (void** pointer, size_t bytes, unsigned flags))             \
  X(hipError_t, hipMallocManaged, (void** pointer, size_t bytes, unsigned flags))                  \
  X(hipError_t, hipMallocPitch, (void** pointer, size_t* pitch, size_t width, size_t height))      \
  X(hipError_t, hipMemAllocPitch,                                                                  \
    (hipDeviceptr_t * pointer, size_t * pitch, size_t width, size_t height,                        \
     unsigned element_bytes))                                                                      \
  X(hipError_t, hipMalloc3D, (hipPitchedPtr * pointer, hipExtent extent))                          \
  X(hipError_t, hipMallocAsync, (void** pointer, size_t bytes, hipStream_t stream))                \
  X(hipError_t, hipFreeAsync, (void* pointer, hipStream_t stream))                                 \
  X(hipError_t, hipMallocFromPoolAsync,                                                            \
    (void** pointer, size_t bytes, hipMemPool_t pool, hipStream_t stream))                         \
  X(hipError_t, hipDeviceGetDefaultMemPool, (hipMemPool_t * pool, int device))                     \
  X(hipError_t, hipDeviceGetMemPool, (hipMemPool_t * pool, int device))                            \
  X(hipError_t, hipDeviceSetMemPool, (int device, hipMemPool_t pool))                              \
  X(hipError_t, hipMemPoolCreate, (hipMemPool_t * pool, const hipMemPoolProps* properties))        \
  X(hipError_t, hipMemPoolDestroy, (hipMemPool_t pool))                                            \
  X(hipError_t, hipMemPoolTrimTo, (hipMemPool_t pool, size_t bytes))                               \
  X(hipError_t, hipMemPoolSetAttribute,                                                            \
    (hipMemPool_t pool, hipMemPoolAttr attribute, void* value))                                    \
  X(hipError_t, hipMemPoolGetAttribute,                                                            \
    (hipMemPool_t pool, hipMemPoolAttr attribute, void* value))                                    \
  X(hipError_t, hipMemPoolSetAccess,                                                               \
    (hipMemPool_t pool, const hipMemAccessDesc* wanted, size_t count))                             \
  X(hipError_t, hipMemPoolGetAccess,                                                               \
    (hipMemAccessFlags * flags, hipMemPool_t pool, hipMemLocation * location))                     \
  X(hipError_t, hipMemPoolExportToShareableHandle,                                                 \
    (void* handle, hipMemPool_t pool, unsigned type, unsigned flags))                              \
  X(hipError_t, hipMemPoolImportFromShareableHandle,                                               \
    (hipMemPool_t * pool, void* handle, unsigned type, unsigned flags))                            \
  X(hipError_t, hipMallocHost, (void** pointer, size_t bytes))                                     \
  X(hipError_t, hipHostAlloc, (void** pointer, size_t bytes, unsigned flags))                      \
  X(hipError_t, hipFreeHost, (void* pointer))                                                      \
  X(hipError_t, hipHostGetDevicePointer, (void** device, void* host, unsigned flags))              \
  X(hipError_t, hipHostGetFlags, (unsigned* flags, void* pointer))                                 \
  X(hipError_t, hipHostRegister, (void* pointer, size_t bytes, unsigned flags))                    \
  X(hipError_t, hipHostUnregister, (void* pointer))                                                \
  X(hipError_t, hipMemGetAddressRange,                                                             \
    (hipDeviceptr_t * base, size_t * bytes, hipDeviceptr_t pointer))                               \
  X(hipError_t, hipMemPtrGetInfo, (void* pointer, size_t* bytes))                                  \
  X(hipError_t, hipPointerGetAttributes,                                                           \
    (hipPointerAttribute_t * attributes, const void* pointer))                                     \
  X(hipError_t, hipPointerGetAttribute,                                                            \
    (void* data, hipPointer_attribute attribute, hipDeviceptr_t pointer))                          \
  X(hipError_t, hipDrvPointerGetAttributes,                                                        \
    (unsigned count, hipPointer_attribute* attributes, void** data, hipDeviceptr_t pointer))       \
  X(hipError_t, hipMemAdvise,                                                                      \
    (const void* pointer, size_t bytes, hipMemoryAdvise advice, int device))                       \
  X(hipError_t, hipMemPrefetchAsync,                                                               \
    (const void* pointer, size_t bytes, int device, hipStream_t stream))                           \
  X(hipError_t, hipMemRangeGetAttribute,                                                           \
    (void* data, size_t data_bytes, hipMemRangeAttribute attribute, const void* pointer,           \
     size_t bytes))                                                                                \
  X(hipError_t, hipMemRangeGetAttributes,                                                          \
    (void** data, size_t* data_bytes, hipMemRangeAttribute* attributes, size_t count,              \
     const void* pointer, size_t bytes))                                                           \
  X(hipError_t, hipStreamAttachMemAsync,                                                           \
    (hipStream_t stream, void* pointer, size_t bytes, unsigned flags))                             \
  X(hipError_t, hipMemcpyWithStream,                                                               \
    (void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream))            \
  X(hipError_t, hipMemcpyHtoDAsync,                                                                \
    (hipDeviceptr_t to, void* from, size_t bytes, hipStream_t stream))                             \
  X(hipError_t, hipMemcpyDtoHAsync,                                                                \
    (void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream))                             \
  X(hipError_t, hipMemcpyDtoDAsync,                                                                \
    (hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream))                    \
  X(hipError_t, hipMemcpyPeer,                                                                     \
    (void* to, int to_device, const void* from, int from_device, size_t bytes))                    \
  X(hipError_t, hipMemcpyPeerAsync,                                                                \
    (void* to, int to_device, const void* from, int from_device, size_t bytes,                     \
     hipStream_t stream))                                                                          \
  X(hipError_t, hipMemcpy2D,                                                                       \
    (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,  \
     hipMemcpyKind kind))                                                                          \
  X(hipError_t, hipMemcpy2DAsync,                                                                  \
    (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,  \
     hipMemcpyKind kind, hipStream_t stream))                                                      \
  X(hipError_t, hipMemcpyParam2D, (const hip_Memcpy2D* parameters))                                \
  X(hipError_t, hipMemcpyParam2DAsync, (const hip_Memcpy2D* parameters, hipStream_t stream))       \
  X(hipError_t, hipMemcpy3D, (const hipMemcpy3DParms* parameters))                                 \
  X(hipError_t, hipMemcpy3DAsync, (const hipMemcpy3DParms* parameters, hipStream_t stream))        \
  X(hipError_t, hipMemset2D, (void* to, size_t pitch, int value, size_t width, size_t height))     \
  X(hipError_t, hipMemset2DAsync,                                                                  \
    (void* to, size_t pitch, int value, size_t width, size_t height, hipStream_t stream))          \
  X(hipError_t, hipMemset3D, (hipPitchedPtr to, int value, hipExtent extent))                      \
  X(hipError_t, hipMemset3DAsync,                                                                  \
    (hipPitchedPtr to, int value, hipExtent extent, hipStream_t stream))                           \
  X(hipError_t, hipMemsetD8, (hipDeviceptr_t pointer, unsigned char value, size_t count))          \
  X(hipError_t, hipMemsetD8Async,                                                                  \
    (hipDeviceptr_t pointer, unsigned char value, size_t count, hipStream_t stream))               \
  X(hipError_t, hipMemsetD16, (hipDeviceptr_t pointer, unsigned short value, size_t count))        \
  X(hipError_t, hipMemsetD16Async,                                                                 \
    (hipDeviceptr_t pointer, unsigned short value, size_t count, hipStream_t stream))              \
  X(hipError_t, hipMemsetD32Async,                                                                 \
    (hipDeviceptr_t pointer, int value, size_t count, hipStream_t stream))                         \
  X(hipError_t, hipIpcGetMemHandle, (hipIpcMemHandle_t * handle, void* pointer))                   \
  X(hipError_t, hipIpcOpenMemHandle, (void** pointer, hipIpcMemHandle_t handle, unsigned flags))   \
  X(hipError_t, hipIpcCloseMemHandle, (void* pointer))                                             \
  X(hipError_t, hipIpcGetEventHandle, (hipIpcEventHandle_t * handle, hipEvent_t event))            \
  X(hipError_t, hipIpcOpenEventHandle, (hipEvent_t * event, hipIpcEventHandle_t handle))           \
  X(hipError_t, hipStreamCreateWithPriority, (hipStream_t * stream, unsigned flags, int priority)) \
  X(hipError_t, hipStreamGetFlags, (hipStream_t stream, unsigned* flags))                          \
  X(hipError_t, hipStreamGetPriority, (hipStream_t stream, int* priority))                         \
  X(hipError_t, hipStreamGetDevice, (hipStream_t stream, hipDevice_t * device))                    \
  X(hipError_t, hipStreamAddCallback,                                                              \
    (hipStream_t stream, hipStreamCallback_t callback, void* data, unsigned flags))                \
  X(hipError_t, hipLaunchHostFunc, (hipStream_t stream, hipHostFn_t function, void* data))         \
  X(hipError_t, hipEventRecordWithFlags, (hipEvent_t event, hipStream_t stream, unsigned flags))   \
  X(hipError_t, hipModuleLoadDataEx,                                                               \
    (hipModule_t * module, const void* image, unsigned options, int* names, void** values))        \
  X(hipError_t, hipFuncSetAttribute,                                                               \
    (const void* function, hipFuncAttribute attribute, int value))                                 \
  X(hipError_t, hipFuncSetCacheConfig, (const void* function, int config))                         \
  X(hipError_t, hipFuncSetSharedMemConfig, (const void* function, int config))                     \
  X(hipError_t, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,                                \
    (int* blocks, hipFunction_t function, int block_threads, size_t shared_bytes))                 \
  X(hipError_t, hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,                       \
    (int* blocks, hipFunction_t function, int block_threads, size_t shared_bytes, unsigned flags)) \
  X(hipError_t, hipOccupancyMaxActiveBlocksPerMultiprocessor,                                      \
    (int* blocks, const void* function, int block_threads, size_t shared_bytes))                   \
  X(hipError_t, hipModuleOccupancyMaxPotentialBlockSize,                                           \
    (int* blocks, int* block_threads, hipFunction_t function, size_t shared_bytes, int most))      \
  X(hipError_t, hipModuleOccupancyMaxPotentialBlockSizeWithFlags,                                  \
    (int* blocks, int* block_threads, hipFunction_t function, size_t shared_bytes, int most,       \
     unsigned flags))                                                                              \
  X(hipError_t, hipModuleLaunchCooperativeKernel,                                                  \
    (hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, hipStream_t stream,                \
     void** parameters))                                                                           \
  X(hipError_t, hipDrvLaunchKernelEx,                                                              \
    (const HIP_LAUNCH_CONFIG* config, hipFunction_t function, void** parameters, void** extra))    \
  X(hipError_t, hipExtModuleLaunchKernel,                                                          \
    (hipFunction_t function, uint32_t work_x, uint32_t work_y, uint32_t work_z, uint32_t block_x,  \
     uint32_t block_y, uint32_t block_z, size_t shared_bytes, hipStream_t stream,                  \
     void** parameters, void** extra, hipEvent_t start, hipEvent_t stop, uint32_t flags))          \
  X(hipError_t, hipLaunchKernel,                                                                   \
    (const void* function, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,          \
     hipStream_t stream))                                                                          \
  X(hipError_t, hipLaunchCooperativeKernel,                                                        \
    (const void* function, dim3 grid, dim3 block, void** parameters, unsigned shared_bytes,        \
     hipStream_t stream))                                                                          \
  X(hipError_t, hipExtLaunchKernel,                                                                \
    (const void* function, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,          \
     hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags))                            \
  X(hipError_t, hipLaunchKernelExC,                                                                \
    (const hipLaunchConfig_t* config, const void* function, void** parameters))                    \
  X(hipError_t, hipOccupancyMaxPotentialBlockSize,                                                 \
    (int* blocks, int* block_threads, const void* function, size_t shared_bytes, int most))        \
  X(hipError_t, hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,                             \
    (int* blocks, const void* function, int block_threads, size_t shared_bytes, unsigned flags))   \
  X(void**, __hipRegisterFatBinary, (const void* data))                                            \
  X(void, __hipUnregisterFatBinary, (void** binary))                                               \
  X(void, __hipRegisterFunction,                                                                   \
    (void** binary, const void* host, char* also_host, const char* name, unsigned most_threads,    \
     void* thread, void* block, dim3* block_dim, dim3* grid_dim, int* wave_size))                  \
  X(void, __hipRegisterVar,                                                                        \
    (void** binary, void* host, char* also_host, const char* name, int is_extern, size_t bytes,    \
     int is_constant, int is_global))                                                              \
  X(void, __hipRegisterManagedVar,                                                                 \
    (void* binary, void** pointer, void* initial, const char* name, size_t bytes, unsigned align)) \
  X(hipError_t, __hipPushCallConfiguration,                                                        \
    (dim3 grid, dim3 block, size_t shared_bytes, hipStream_t stream))                              \
  X(hipError_t, __hipPopCallConfiguration,                                                         \
    (dim3 * grid, dim3 * block, size_t * shared_bytes, hipStream_t * stream))                      \
  X(hipError_t, hipGetFuncBySymbol, (hipFunction_t * function, const void* symbol))                \
  X(hipError_t, hipGetSymbolAddress, (void** pointer, const void* symbol))                         \
  X(hipError_t, hipGetSymbolSize, (size_t * bytes, const void* symbol))                            \
  X(hipError_t, hipMemcpyToSymbol,                                                                 \
    (const void* symbol, const void* from, size_t bytes, size_t offset, hipMemcpyKind kind))       \
  X(hipError_t, hipMemcpyFromSymbol,                                                               \
    (void* to, const void* symbol, size_t bytes, size_t offset, hipMemcpyKind kind))               \
  X(hipError_t, hipMemcpyToSymbolAsync,                                                            \
    (const void* symbol, const void* from, size_t bytes, size_t offset, hipMemcpyKind kind,        \
     hipStream_t stream))                                                                          \
  X(hipError_t, hipMemcpyFromSymbolAsync,                                                          \
    (void* to, const void* symbol, size_t bytes, size_t offset, hipMemcpyKind kind,                \
     hipStream_t stream))                                                                          \
  WEFT_SIM_HIP_GRAPH_FUNCTIONS(X)

// Under C linkage, so that libweft-amdhip64.so exports them as they are.
#define WEFT_HIP extern "C" __attribute__((visibility("default")))
#define WEFT_HIP_DECLARE(result, name, parameters) WEFT_HIP result name parameters;
WEFT_HIP_FUNCTIONS(WEFT_HIP_DECLARE)
WEFT_SIM_HIP_FUNCTIONS(WEFT_HIP_DECLARE)
#undef WEFT_HIP_DECLARE

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::hip
