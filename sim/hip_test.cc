// The HIP road: a small program against the module API, through the table and through the shared
// library as a foreign program would open it.
#include "sim/hip.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: HIP's names

/// The functions of libweft-amdhip64.so, looked up by name.
const HipApi* library_api() {
  static const HipApi* const kApi = []() -> const HipApi* {
    void* library = dlopen(WEFT_SIM_HIP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << dlerror();
      return nullptr;
    }
    static HipApi api;
#define WEFT_LOOK_UP(result, name, parameters)                            \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  EXPECT_NE(api.name, nullptr) << #name;
    WEFT_HIP_FUNCTIONS(WEFT_LOOK_UP)
#undef WEFT_LOOK_UP
    return &api;
  }();
  return kApi;
}

class Hip : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    api_ = GetParam() ? library_api() : &hip_api();
    ASSERT_NE(api_, nullptr);
    ASSERT_EQ(api_->hipInit(0), hipSuccess);
  }
  const HipApi* api_ = nullptr;
};

TEST_P(Hip, Devices) {
  int count = 0;
  ASSERT_EQ(api_->hipGetDeviceCount(&count), hipSuccess);
  ASSERT_EQ(count, 2);
  const char* const names[] = {"gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-"};
  for (int device = 0; device < count; ++device) {
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
  EXPECT_EQ(api_->hipSetDevice(2), hipErrorInvalidDevice);
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
    EXPECT_EQ(third[0], 4.5F);

    // More than there is: the launch fails and, of the table, says why.
    packed.n = kCount + 1;
    EXPECT_EQ(api_->hipModuleLaunchKernel(add, 2, 1, 1, 256, 1, 1, 0, stream, nullptr, extra),
              hipErrorLaunchFailure);
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

INSTANTIATE_TEST_SUITE_P(Roads, Hip, testing::Bool(),
                         [](const auto& info) { return info.param ? "Library" : "Table"; });

}  // namespace
}  // namespace weft::sim
