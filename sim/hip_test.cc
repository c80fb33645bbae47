// The HIP road: a small program against the module API, through the table and through the shared
// library as a foreign program would open it.
#include "sim/hip.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sim/hip_abi.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: HIP's names

/// All functions that the simulator answers.
struct Api {
#define WEFT_MEMBER(result, name, parameters) result(*name) parameters;
  WEFT_HIP_FUNCTIONS(WEFT_MEMBER) WEFT_SIM_HIP_FUNCTIONS(WEFT_MEMBER)
#undef WEFT_MEMBER
};

const Api* linked_api() {
  static const Api kApi = {
#define WEFT_TAKE(result, name, parameters) .name = &hip::name,
      WEFT_HIP_FUNCTIONS(WEFT_TAKE) WEFT_SIM_HIP_FUNCTIONS(WEFT_TAKE)
#undef WEFT_TAKE
  };
  return &kApi;
}

/// The functions of libweft-amdhip64.so, looked up by name.
const Api* library_api() {
  static const Api* const kApi = []() -> const Api* {
    void* library = dlopen(WEFT_SIM_HIP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << dlerror();
      return nullptr;
    }
    static Api api;
#define WEFT_LOOK_UP(result, name, parameters)                            \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  EXPECT_NE(api.name, nullptr) << #name;
    WEFT_HIP_FUNCTIONS(WEFT_LOOK_UP)
    WEFT_SIM_HIP_FUNCTIONS(WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
    return &api;
  }();
  return kApi;
}

class Hip : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    api_ = GetParam() ? library_api() : linked_api();
    ASSERT_NE(api_, nullptr);
    ASSERT_EQ(api_->hipInit(0), hipSuccess);
  }
  const Api* api_ = nullptr;
};

TEST_P(Hip, Devices) {
  int count = 0;
  ASSERT_EQ(api_->hipGetDeviceCount(&count), hipSuccess);
  ASSERT_GE(count, 2);  // more where other tests asked for nodes
  const char* const names[] = {"gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-"};
  for (int device = 0; device < 2; ++device) {
    hipDeviceProp_t properties;
    ASSERT_EQ(api_->hipGetDevicePropertiesR0600(&properties, device), hipSuccess);
    EXPECT_STREQ(properties.gcnArchName, names[device]);
    EXPECT_EQ(properties.warpSize, 64);
    int units = 0;
    ASSERT_EQ(api_->hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device),
              hipSuccess);
    EXPECT_EQ(units, properties.multiProcessorCount);
    EXPECT_EQ(units, device == 0 ? 304 : 256);
  }
  EXPECT_EQ(api_->hipSetDevice(count), hipErrorInvalidDevice);
  EXPECT_EQ(api_->hipGetLastError(), hipErrorInvalidDevice);
  EXPECT_EQ(api_->hipGetLastError(), hipSuccess);
  EXPECT_STREQ(api_->hipGetErrorString(hipErrorInvalidDevice), "invalid device ordinal");
  EXPECT_STREQ(api_->hipGetErrorName(hipErrorLaunchFailure), "hipErrorLaunchFailure");
}

TEST_P(Hip, Memory) {
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  void* device = nullptr;
  ASSERT_EQ(api_->hipMalloc(&device, 100), hipSuccess);
  std::vector<char> host(100, 'a');
  ASSERT_EQ(api_->hipMemcpy(device, host.data(), 100, hipMemcpyHostToDevice), hipSuccess);
  ASSERT_EQ(api_->hipMemset(device, 'b', 50), hipSuccess);
  ASSERT_EQ(api_->hipMemcpy(host.data(), device, 100, hipMemcpyDeviceToHost), hipSuccess);
  EXPECT_EQ(host[49], 'b');
  EXPECT_EQ(host[50], 'a');
  EXPECT_EQ(api_->hipMemset(device, 0, 101), hipErrorInvalidValue);
  EXPECT_EQ(api_->hipMemcpy(device, host.data(), 101, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(api_->hipFree(host.data()), hipErrorInvalidValue);
  EXPECT_EQ(api_->hipFree(device), hipSuccess);
  EXPECT_EQ(api_->hipFree(device), hipErrorInvalidValue);
  void* too_much = nullptr;
  EXPECT_EQ(api_->hipMalloc(&too_much, size_t{1} << 40), hipErrorOutOfMemory);
}

TEST_P(Hip, ModulesAndLaunches) {
  for (int device = 0; device < 2; ++device) {
    const std::vector<std::byte> code = test_kernels("ordinary", cdna::kTargets[device]);
    if (code.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    ASSERT_EQ(api_->hipSetDevice(device), hipSuccess);
    hipModule_t module = nullptr;
    ASSERT_EQ(api_->hipModuleLoadData(&module, code.data()), hipSuccess);
    hipFunction_t add = nullptr;
    ASSERT_EQ(api_->hipModuleGetFunction(&add, module, "add"), hipSuccess);
    hipFunction_t none = nullptr;
    EXPECT_EQ(api_->hipModuleGetFunction(&none, module, "no_such_kernel"), hipErrorNotFound);
    hipFuncAttributes attributes;
    ASSERT_EQ(api_->hipFuncGetAttributes(&attributes, add), hipSuccess);
    EXPECT_GT(attributes.numRegs, 0);

    constexpr int kCount = 300;
    float* a = nullptr;
    ASSERT_EQ(api_->hipMalloc(reinterpret_cast<void**>(&a), 3 * kCount * sizeof(float)),
              hipSuccess);
    std::vector<float> host(3 * kCount, 1.5F);
    ASSERT_EQ(api_->hipMemcpy(a, host.data(), host.size() * sizeof(float), hipMemcpyHostToDevice),
              hipSuccess);
    hipStream_t stream = nullptr;
    ASSERT_EQ(api_->hipStreamCreate(&stream), hipSuccess);
    hipEvent_t begin = nullptr;
    hipEvent_t end = nullptr;
    ASSERT_EQ(api_->hipEventCreate(&begin), hipSuccess);
    ASSERT_EQ(api_->hipEventCreate(&end), hipSuccess);

    // Once with a pointer for each argument, once with the arguments packed.
    const float* first = a;
    const float* second = a + kCount;
    float* third = a + 2 * kCount;
    int n = kCount;
    void* parameters[] = {&first, &second, &third, &n};
    ASSERT_EQ(api_->hipEventRecord(begin, stream), hipSuccess);
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 2, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
              hipSuccess);
    ASSERT_EQ(api_->hipEventRecord(end, stream), hipSuccess);
    ASSERT_EQ(api_->hipStreamSynchronize(stream), hipSuccess);
    float milliseconds = -1;
    EXPECT_EQ(api_->hipEventElapsedTime(&milliseconds, begin, end), hipSuccess);
    EXPECT_GE(milliseconds, 0);
    EXPECT_EQ(third[kCount - 1], 3.0F);
    struct {
      const float* a;
      const float* b;
      float* c;
      int n;
    } packed{third, second, third, kCount};
    size_t bytes = sizeof packed;
    void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &packed, HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     HIP_LAUNCH_PARAM_END};
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 2, 1, 1, 256, 1, 1, 0, stream, nullptr, extra),
              hipSuccess);
    ASSERT_EQ(api_->hipStreamSynchronize(stream), hipSuccess);
    EXPECT_EQ(third[0], 4.5F);

    // More than there is: who waits for the launch is told and, of the table, why.
    packed.n = kCount + 1;
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 2, 1, 1, 256, 1, 1, 0, stream, nullptr, extra),
              hipSuccess);
    EXPECT_EQ(api_->hipStreamSynchronize(stream), hipErrorLaunchFailure);
    EXPECT_EQ(api_->hipStreamSynchronize(stream), hipSuccess);
    if (!GetParam()) {
      EXPECT_NE(last_findings().find("past the end of an allocation of 3600 bytes"),
                std::string::npos)
          << last_findings();
    }
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 2, 1, 1, 2000, 1, 1, 0, stream, nullptr, extra),
              hipErrorInvalidConfiguration);

    hipDeviceptr_t table = nullptr;
    size_t table_bytes = 0;
    ASSERT_EQ(api_->hipModuleGetGlobal(&table, &table_bytes, module, "table"), hipSuccess);
    EXPECT_EQ(table_bytes, 16U);

    EXPECT_EQ(api_->hipEventDestroy(begin), hipSuccess);
    EXPECT_EQ(api_->hipEventDestroy(end), hipSuccess);
    EXPECT_EQ(api_->hipStreamDestroy(stream), hipSuccess);
    EXPECT_EQ(api_->hipStreamSynchronize(stream), hipErrorInvalidHandle);
    EXPECT_EQ(api_->hipFree(a), hipSuccess);
    EXPECT_EQ(api_->hipModuleUnload(module), hipSuccess);
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr),
              hipErrorInvalidHandle);
  }
}

TEST_P(Hip, RefusesWhatIsNoCode) {
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  hipModule_t module = nullptr;
  const std::vector<char> nonsense(4096, 'x');
  EXPECT_EQ(api_->hipModuleLoadData(&module, nonsense.data()), hipErrorInvalidImage);
  const std::vector<std::byte> other = test_kernels("ordinary", Target::gfx950);
  if (!other.empty()) {
    EXPECT_EQ(api_->hipModuleLoadData(&module, other.data()), hipErrorInvalidImage);
  }
  EXPECT_EQ(api_->hipModuleLoad(&module, "/no/such/file"), hipErrorFileNotFound);
}

TEST_P(Hip, FindsItsFunctionsByName) {
  void* function = nullptr;
  hipDriverProcAddressQueryResult status = HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  ASSERT_EQ(api_->hipGetProcAddress("hipModuleLaunchKernel", &function, 60'200'000, 0, &status),
            hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(api_->hipModuleLaunchKernel));
  EXPECT_EQ(status, HIP_GET_PROC_ADDRESS_SUCCESS);
  // Triton's launcher asks for these.
  for (const char* name : {"hipGetLastError", "hipGetErrorString", "hipModuleLoadDataEx",
                           "hipModuleGetFunction", "hipFuncGetAttribute", "hipDrvLaunchKernelEx",
                           "hipModuleLaunchCooperativeKernel", "hipPointerGetAttribute"}) {
    EXPECT_EQ(api_->hipGetProcAddress(name, &function, 60'200'000, 0, &status), hipSuccess) << name;
    EXPECT_NE(function, nullptr);
  }
  // One name, two structs.
  ASSERT_EQ(api_->hipGetProcAddress("hipGetDeviceProperties", &function, 60'200'000, 0, nullptr),
            hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(api_->hipGetDevicePropertiesR0600));
  ASSERT_EQ(api_->hipGetProcAddress("hipGetDeviceProperties", &function, 500, 0, nullptr),
            hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(api_->hipGetDeviceProperties));
  EXPECT_EQ(api_->hipGetProcAddress("hipNoSuchThing", &function, 60'200'000, 0, &status),
            hipErrorNotFound);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(api_->hipGetProcAddress(nullptr, &function, 0, 0, nullptr), hipErrorInvalidValue);
}

TEST_P(Hip, CapturesNothingUnlessAsked) {
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  auto status = hipStreamCaptureStatusActive;
  EXPECT_EQ(api_->hipStreamIsCapturing(nullptr, &status), hipSuccess);
  EXPECT_EQ(status, hipStreamCaptureStatusNone);
  unsigned long long id = 7;
  status = hipStreamCaptureStatusActive;
  EXPECT_EQ(api_->hipStreamGetCaptureInfo(nullptr, &status, &id), hipSuccess);
  EXPECT_EQ(status, hipStreamCaptureStatusNone);
  EXPECT_EQ(id, 0U);
  EXPECT_EQ(api_->hipStreamIsCapturing(nullptr, nullptr), hipErrorInvalidValue);
  int wrong = 0;
  EXPECT_EQ(api_->hipStreamIsCapturing(reinterpret_cast<hipStream_t>(&wrong), &status),
            hipErrorInvalidHandle);
  auto mode = hipStreamCaptureModeRelaxed;
  EXPECT_EQ(api_->hipThreadExchangeStreamCaptureMode(&mode), hipSuccess);
  EXPECT_EQ(mode, hipStreamCaptureModeGlobal);
  EXPECT_EQ(api_->hipThreadExchangeStreamCaptureMode(&mode), hipSuccess);
  EXPECT_EQ(mode, hipStreamCaptureModeRelaxed);
  unsigned flags = 7;
  int active = 0;
  EXPECT_EQ(api_->hipDevicePrimaryCtxGetState(0, &flags, &active), hipSuccess);
  EXPECT_EQ(active, 1);
  EXPECT_EQ(api_->hipDevicePrimaryCtxGetState(99, &flags, &active), hipErrorInvalidDevice);
}

TEST_P(Hip, KnowsPointers) {
  ASSERT_EQ(api_->hipSetDevice(1), hipSuccess);
  char* device = nullptr;
  char* host = nullptr;
  char* managed = nullptr;
  ASSERT_EQ(api_->hipMalloc(reinterpret_cast<void**>(&device), 1000), hipSuccess);
  ASSERT_EQ(api_->hipHostMalloc(reinterpret_cast<void**>(&host), 1000, hipHostMallocPortable),
            hipSuccess);
  ASSERT_EQ(api_->hipMallocManaged(reinterpret_cast<void**>(&managed), 1000, hipMemAttachGlobal),
            hipSuccess);
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  hipPointerAttribute_t attributes;
  ASSERT_EQ(api_->hipPointerGetAttributes(&attributes, device + 10), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(attributes.devicePointer, device + 10);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  ASSERT_EQ(api_->hipPointerGetAttributes(&attributes, host), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeHost);
  EXPECT_EQ(attributes.hostPointer, host);
  EXPECT_EQ(attributes.allocationFlags, hipHostMallocPortable);
  ASSERT_EQ(api_->hipPointerGetAttributes(&attributes, managed), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeManaged);
  EXPECT_EQ(attributes.isManaged, 1);
  int own = 0;
  ASSERT_EQ(api_->hipPointerGetAttributes(&attributes, &own), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeUnregistered);

  void* pointer = nullptr;
  ASSERT_EQ(api_->hipPointerGetAttribute(&pointer, HIP_POINTER_ATTRIBUTE_DEVICE_POINTER, host + 3),
            hipSuccess);
  EXPECT_EQ(pointer, host + 3);
  EXPECT_EQ(api_->hipPointerGetAttribute(&pointer, HIP_POINTER_ATTRIBUTE_DEVICE_POINTER, &own),
            hipErrorInvalidValue);  // by which launchers tell a tensor of the host
  size_t bytes = 0;
  int ordinal = 0;
  hipPointer_attribute wanted[] = {HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   HIP_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&pointer, &bytes, &ordinal};
  ASSERT_EQ(api_->hipDrvPointerGetAttributes(3, wanted, data, device + 999), hipSuccess);
  EXPECT_EQ(pointer, device);
  EXPECT_EQ(bytes, 1000U);
  EXPECT_EQ(ordinal, 1);
  hipDeviceptr_t base = nullptr;
  ASSERT_EQ(api_->hipMemGetAddressRange(&base, &bytes, managed + 5), hipSuccess);
  EXPECT_EQ(base, managed);
  ASSERT_EQ(api_->hipHostGetDevicePointer(&pointer, host, 0), hipSuccess);
  EXPECT_EQ(pointer, host);
  EXPECT_EQ(api_->hipHostGetDevicePointer(&pointer, &own, 0), hipErrorInvalidValue);
  for (char* each : {device, host, managed}) {
    EXPECT_EQ(api_->hipFree(each), hipSuccess);
  }
}

TEST_P(Hip, CopiesAndFillsInAStream) {
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  hipStream_t stream = nullptr;
  ASSERT_EQ(api_->hipStreamCreateWithFlags(&stream, hipStreamNonBlocking), hipSuccess);
  uint32_t* data = nullptr;
  uint32_t* host = nullptr;
  ASSERT_EQ(api_->hipMallocAsync(reinterpret_cast<void**>(&data), 64, stream), hipSuccess);
  ASSERT_EQ(api_->hipHostMalloc(reinterpret_cast<void**>(&host), 64, 0), hipSuccess);
  EXPECT_EQ(api_->hipMemsetD32Async(data, 0x01020304, 16, stream), hipSuccess);
  EXPECT_EQ(api_->hipMemsetD16Async(data, 0xabcd, 2, stream), hipSuccess);
  EXPECT_EQ(api_->hipMemsetD8Async(data + 1, 0x77, 3, stream), hipSuccess);
  EXPECT_EQ(api_->hipMemsetD8Async(data, 0, 65, stream), hipErrorInvalidValue);
  EXPECT_EQ(api_->hipMemcpyAsync(host, data, 64, hipMemcpyDeviceToHost, stream), hipSuccess);
  ASSERT_EQ(api_->hipStreamSynchronize(stream), hipSuccess);
  EXPECT_EQ(host[0], 0xabcdabcdU);
  EXPECT_EQ(host[1], 0x01777777U);
  EXPECT_EQ(host[15], 0x01020304U);
  // The middle two columns of four rows of 16 bytes.
  ASSERT_EQ(api_->hipMemset(data, 0, 64), hipSuccess);
  EXPECT_EQ(api_->hipMemcpy2D(data + 1, 16, host + 14, 0, 8, 1, hipMemcpyHostToDevice), hipSuccess);
  EXPECT_EQ(api_->hipMemcpy2D(data + 1, 16, host, 8, 8, 4, hipMemcpyHostToDevice), hipSuccess);
  EXPECT_EQ(data[1], host[0]);
  EXPECT_EQ(data[14], host[7]);
  EXPECT_EQ(data[15], 0U);
  EXPECT_EQ(api_->hipMemcpy2D(data + 1, 16, host, 8, 16, 4, hipMemcpyHostToDevice),
            hipErrorInvalidValue);
  EXPECT_EQ(api_->hipFreeAsync(data, stream), hipSuccess);
  EXPECT_EQ(api_->hipFreeAsync(data, stream), hipErrorInvalidValue);
  EXPECT_EQ(api_->hipHostFree(host), hipSuccess);
  EXPECT_EQ(api_->hipStreamDestroy(stream), hipSuccess);
}

TEST_P(Hip, LaunchesInEveryWay) {
  const std::vector<std::byte> code = test_kernels("ordinary", Target::gfx942);
  if (code.empty()) {
    GTEST_SKIP() << "this build has no clang-22";
  }
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  hipModule_t module = nullptr;
  ASSERT_EQ(api_->hipModuleLoadDataEx(&module, code.data(), 0, nullptr, nullptr), hipSuccess);
  hipFunction_t add = nullptr;
  ASSERT_EQ(api_->hipModuleGetFunction(&add, module, "add"), hipSuccess);
  int blocks = 0;
  ASSERT_EQ(api_->hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0),
            hipSuccess);
  EXPECT_EQ(blocks, 8);  // 32 waves of a compute unit, 4 of a workgroup
  ASSERT_EQ(api_->hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 60'000),
            hipSuccess);
  EXPECT_EQ(blocks, 1);
  int threads = 0;
  int grid = 0;
  ASSERT_EQ(api_->hipModuleOccupancyMaxPotentialBlockSize(&grid, &threads, add, 0, 0), hipSuccess);
  EXPECT_EQ(grid / 304 * threads, 2048);
  EXPECT_EQ(api_->hipFuncSetAttribute(add, hipFuncAttributeMaxDynamicSharedMemorySize, 65536),
            hipSuccess);
  EXPECT_EQ(api_->hipFuncSetAttribute(add, hipFuncAttributeMaxDynamicSharedMemorySize, 65537),
            hipErrorInvalidValue);

  float* a = nullptr;
  constexpr unsigned kGroups = 8 * 304;
  int n = 100;
  ASSERT_EQ(api_->hipMallocManaged(reinterpret_cast<void**>(&a), 400, hipMemAttachGlobal),
            hipSuccess);
  std::fill(a, a + n, 1.0F);
  void* parameters[] = {&a, &a, &a, &n};
  EXPECT_EQ(
      api_->hipModuleLaunchCooperativeKernel(add, kGroups, 1, 1, 256, 1, 1, 0, nullptr, parameters),
      hipSuccess);
  ASSERT_EQ(api_->hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(a[99], 2.0F);
  // One more than the device holds at once.
  EXPECT_EQ(api_->hipModuleLaunchCooperativeKernel(add, kGroups + 1, 1, 1, 256, 1, 1, 0, nullptr,
                                                   parameters),
            hipErrorCooperativeLaunchTooLarge);
  if (!GetParam()) {
    EXPECT_NE(last_findings().find("2433 workgroups, but the device holds 2432"), std::string::npos)
        << last_findings();
  }
  hipLaunchAttribute attribute{};
  attribute.id = hipLaunchAttributeCooperative;
  attribute.value.cooperative = 1;
  HIP_LAUNCH_CONFIG config{kGroups + 1, 1, 1, 256, 1, 1, 0, nullptr, &attribute, 1};
  EXPECT_EQ(api_->hipDrvLaunchKernelEx(&config, add, parameters, nullptr),
            hipErrorCooperativeLaunchTooLarge);
  config.gridDimX = 1;
  EXPECT_EQ(api_->hipDrvLaunchKernelEx(&config, add, parameters, nullptr), hipSuccess);
  attribute.id = static_cast<hipLaunchAttributeID>(4);
  EXPECT_EQ(api_->hipDrvLaunchKernelEx(&config, add, parameters, nullptr), hipErrorNotSupported);
  EXPECT_EQ(api_->hipExtModuleLaunchKernel(add, 256, 1, 1, 128, 1, 1, 0, nullptr, parameters,
                                           nullptr, nullptr, nullptr, 0),
            hipSuccess);
  EXPECT_EQ(api_->hipLaunchKernel(add, {1, 1, 1}, {128, 1, 1}, parameters, 0, nullptr), hipSuccess);
  EXPECT_EQ(api_->hipLaunchCooperativeKernel(add, {1, 1, 1}, {128, 1, 1}, parameters, 0, nullptr),
            hipSuccess);
  ASSERT_EQ(api_->hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(a[0], 32.0F);
  // A module is of the device that was current.
  ASSERT_EQ(api_->hipSetDevice(1), hipSuccess);
  EXPECT_EQ(api_->hipModuleLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr),
            hipErrorInvalidHandle);
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  EXPECT_EQ(api_->hipFree(a), hipSuccess);
  EXPECT_EQ(api_->hipModuleUnload(module), hipSuccess);
}

// What clang makes of `add<<<1, 64>>>(a, a, a, n)` and of a variable.
TEST_P(Hip, ProgramsOfHostAndDeviceCode) {
  const std::vector<std::byte> code = test_kernels("ordinary", Target::gfx942);
  if (code.empty()) {
    GTEST_SKIP() << "this build has no clang-22";
  }
  ASSERT_EQ(api_->hipSetDevice(0), hipSuccess);
  const struct {
    uint32_t magic;
    uint32_t version;
    const void* image;
    void* unused;
  } wrapper = {0x48495046, 1, code.data(), nullptr};
  void** binary = api_->__hipRegisterFatBinary(&wrapper);
  char add = 0;
  char table = 0;
  api_->__hipRegisterFunction(binary, &add, nullptr, "add", ~0U, nullptr, nullptr, nullptr, nullptr,
                              nullptr);
  api_->__hipRegisterVar(binary, &table, nullptr, "table", 0, 16, 0, 0);

  float* a = nullptr;
  int n = 64;
  ASSERT_EQ(api_->hipMallocManaged(reinterpret_cast<void**>(&a), 256, hipMemAttachGlobal),
            hipSuccess);
  std::fill(a, a + n, 1.0F);
  void* parameters[] = {&a, &a, &a, &n};
  dim3 grid{};
  dim3 block{};
  size_t shared_bytes = 1;
  hipStream_t stream = nullptr;
  EXPECT_EQ(api_->__hipPushCallConfiguration({1, 1, 1}, {64, 1, 1}, 0, nullptr), hipSuccess);
  EXPECT_EQ(api_->__hipPopCallConfiguration(&grid, &block, &shared_bytes, &stream), hipSuccess);
  EXPECT_EQ(api_->__hipPopCallConfiguration(&grid, &block, &shared_bytes, &stream),
            hipErrorInvalidConfiguration);
  EXPECT_EQ(api_->hipLaunchKernel(&add, grid, block, parameters, shared_bytes, stream), hipSuccess);
  EXPECT_EQ(api_->hipExtLaunchKernel(&add, grid, block, parameters, 0, stream, nullptr, nullptr, 0),
            hipSuccess);
  const hipLaunchConfig_t config{grid, block, 0, stream, nullptr, 0};
  EXPECT_EQ(api_->hipLaunchKernelExC(&config, &add, parameters), hipSuccess);
  ASSERT_EQ(api_->hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(a[63], 8.0F);
  EXPECT_EQ(api_->hipLaunchKernel(&n, grid, block, parameters, 0, nullptr), hipErrorInvalidHandle);
  hipFuncAttributes attributes;
  EXPECT_EQ(api_->hipFuncGetAttributes(&attributes, &add), hipSuccess);
  EXPECT_EQ(api_->hipFuncGetAttributes(&attributes, &n), hipErrorInvalidDeviceFunction);
  int blocks = 0;
  int threads = 0;
  EXPECT_EQ(api_->hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, &add, 256, 0, 0),
            hipSuccess);
  EXPECT_EQ(blocks, 8);
  EXPECT_EQ(api_->hipOccupancyMaxPotentialBlockSize(&blocks, &threads, &add, 0, 0), hipSuccess);
  hipFunction_t function = nullptr;
  EXPECT_EQ(api_->hipGetFuncBySymbol(&function, &add), hipSuccess);
  EXPECT_EQ(
      api_->hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr),
      hipSuccess);

  size_t bytes = 0;
  void* place = nullptr;
  ASSERT_EQ(api_->hipGetSymbolSize(&bytes, &table), hipSuccess);
  ASSERT_EQ(api_->hipGetSymbolAddress(&place, &table), hipSuccess);
  const int value = 77;
  int back = 0;
  EXPECT_EQ(api_->hipMemcpyToSymbol(&table, &value, 4, bytes - 4, hipMemcpyHostToDevice),
            hipSuccess);
  EXPECT_EQ(api_->hipMemcpyFromSymbol(&back, &table, 4, bytes - 4, hipMemcpyDeviceToHost),
            hipSuccess);
  EXPECT_EQ(back, 77);
  EXPECT_EQ(api_->hipMemcpyToSymbolAsync(&table, &back, 4, 0, hipMemcpyHostToDevice, nullptr),
            hipSuccess);
  EXPECT_EQ(
      api_->hipMemcpyFromSymbolAsync(&back, &table, 4, bytes - 3, hipMemcpyDeviceToHost, nullptr),
      hipErrorInvalidValue);
  EXPECT_EQ(api_->hipMemcpyToSymbol(&n, &value, 4, 0, hipMemcpyHostToDevice),
            hipErrorInvalidSymbol);
  ASSERT_EQ(api_->hipDeviceSynchronize(), hipSuccess);
  api_->__hipUnregisterFatBinary(binary);
  EXPECT_EQ(api_->hipLaunchKernel(&add, grid, block, parameters, 0, nullptr),
            hipErrorInvalidHandle);
  EXPECT_EQ(api_->hipFree(a), hipSuccess);
}

TEST_P(Hip, RefusesToShareWithOtherProcesses) {
  hipIpcMemHandle_t memory{};
  hipIpcEventHandle_t event{};
  void* pointer = nullptr;
  hipEvent_t opened = nullptr;
  EXPECT_EQ(api_->hipIpcGetMemHandle(&memory, &memory), hipErrorNotSupported);
  EXPECT_EQ(api_->hipIpcOpenMemHandle(&pointer, memory, 0), hipErrorNotSupported);
  EXPECT_EQ(api_->hipIpcCloseMemHandle(&memory), hipErrorNotSupported);
  EXPECT_EQ(api_->hipIpcGetEventHandle(&event, nullptr), hipErrorNotSupported);
  EXPECT_EQ(api_->hipIpcOpenEventHandle(&opened, event), hipErrorNotSupported);
  if (!GetParam()) {
    EXPECT_NE(last_findings().find("belong to one process"), std::string::npos);
  }
}

/// The attributes that launchers and libraries ask for are known, and agree with the properties.
TEST_P(Hip, KnowsItsAttributes) {
  hipDeviceProp_tR0000 old;
  hipDeviceProp_t properties;
  ASSERT_EQ(api_->hipGetDeviceProperties(&old, 1), hipSuccess);
  ASSERT_EQ(api_->hipGetDevicePropertiesR0600(&properties, 1), hipSuccess);
  EXPECT_STREQ(old.gcnArchName, properties.gcnArchName);
  EXPECT_EQ(old.totalGlobalMem, properties.totalGlobalMem);
  EXPECT_EQ(old.sharedMemPerBlock, 163840U);
  const struct {
    hipDeviceAttribute_t attribute;
    int value;
  } kExpected[] = {{hipDeviceAttributeWarpSize, 64},
                   {hipDeviceAttributeCooperativeLaunch, 1},
                   {hipDeviceAttributeManagedMemory, 1},
                   {hipDeviceAttributeSharedMemPerBlockOptin, 163840},
                   {hipDeviceAttributeMultiprocessorCount, 256},
                   {hipDeviceAttributePciBusId, 2},
                   {hipDeviceAttributeComputeCapabilityMinor, 5}};
  for (const auto& [attribute, expected] : kExpected) {
    int value = -1;
    EXPECT_EQ(api_->hipDeviceGetAttribute(&value, attribute, 1), hipSuccess) << attribute;
    EXPECT_EQ(value, expected) << attribute;
  }
  char id[32];
  int device = -1;
  ASSERT_EQ(api_->hipDeviceGetPCIBusId(id, sizeof id, 1), hipSuccess);
  ASSERT_EQ(api_->hipDeviceGetByPCIBusId(&device, id), hipSuccess);
  EXPECT_EQ(device, 1);
}

/// The library's devices come from the environment, read when it is first used.
TEST(HipEnvironment, NamesTheDevices) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto count_with = [](const char* devices) {
    setenv("WEFT_SIM_DEVICES", devices, 1);
    int count = -1;
    int can = 0;
    const Api* api = library_api();
    const hipError_t error = api->hipGetDeviceCount(&count);
    if (count > 1) {
      (void)api->hipDeviceCanAccessPeer(&can, 0, count - 1);
    }
    std::exit(error == hipSuccess ? 10 * can + count : 100 + static_cast<int>(error));
  };
  EXPECT_EXIT(count_with("gfx942*8"), testing::ExitedWithCode(18), "");
  EXPECT_EXIT(count_with("gfx950,gfx942*3"), testing::ExitedWithCode(4), "");
  EXPECT_EXIT(count_with("gfx942*9"), testing::ExitedWithCode(100 + hipErrorNoDevice),
              "WEFT_SIM_DEVICES=gfx942.9: .gfx942.9. cannot be had; write gfx942, gfx950.8");
}

INSTANTIATE_TEST_SUITE_P(Roads, Hip, testing::Bool(),
                         [](const auto& info) { return info.param ? "Library" : "Table"; });

}  // namespace
}  // namespace weft::sim
