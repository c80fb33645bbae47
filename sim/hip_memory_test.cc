// Memory that HIP gives in other ways than by hipMalloc: pools, rows of a pitch, boxes, managed
// variables.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "sim/hip.h"
#include "sim/hip_abi.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: HIP's names

TEST(HipMemory, ComesFromPools) {
  ASSERT_EQ(hipSetDevice(1), hipSuccess);
  hipMemPool_t own = nullptr;
  hipMemPool_t now = nullptr;
  ASSERT_EQ(hipDeviceGetDefaultMemPool(&own, 1), hipSuccess);
  ASSERT_EQ(hipDeviceGetMemPool(&now, 1), hipSuccess);
  EXPECT_EQ(own, now);
  hipMemPoolProps properties{};
  hipMemPool_t pool = nullptr;
  EXPECT_EQ(hipMemPoolCreate(&pool, &properties), hipErrorInvalidValue);
  properties.allocType = hipMemAllocationTypePinned;
  properties.location = {hipMemLocationTypeDevice, 1};
  properties.maxSize = 1000;
  ASSERT_EQ(hipMemPoolCreate(&pool, &properties), hipSuccess);
  properties.handleTypes = 1;
  EXPECT_EQ(hipMemPoolCreate(&now, &properties), hipErrorNotSupported);

  uint64_t value = 1 << 20;
  EXPECT_EQ(hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &value), hipSuccess);
  value = 0;
  EXPECT_EQ(hipMemPoolGetAttribute(pool, hipMemPoolAttrReleaseThreshold, &value), hipSuccess);
  EXPECT_EQ(value, 1U << 20);
  int reuse = 0;
  EXPECT_EQ(hipMemPoolGetAttribute(pool, hipMemPoolReuseAllowOpportunistic, &reuse), hipSuccess);
  EXPECT_EQ(reuse, 1);
  EXPECT_EQ(hipMemPoolSetAttribute(pool, hipMemPoolAttrUsedMemCurrent, &value),
            hipErrorInvalidValue);
  const auto told = [&](hipMemPoolAttr attribute) {
    uint64_t is = ~uint64_t{0};
    EXPECT_EQ(hipMemPoolGetAttribute(pool, attribute, &is), hipSuccess);
    return is;
  };

  void* a = nullptr;
  void* b = nullptr;
  ASSERT_EQ(hipMallocFromPoolAsync(&a, 600, pool, nullptr), hipSuccess);
  EXPECT_EQ(hipMallocFromPoolAsync(&b, 600, pool, nullptr), hipErrorOutOfMemory);
  EXPECT_EQ(told(hipMemPoolAttrUsedMemCurrent), 600U);
  hipPointerAttribute_t attributes{};
  ASSERT_EQ(hipPointerGetAttributes(&attributes, a), hipSuccess);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(hipFreeAsync(a, nullptr), hipSuccess);
  ASSERT_EQ(hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(told(hipMemPoolAttrUsedMemCurrent), 0U);
  EXPECT_EQ(told(hipMemPoolAttrUsedMemHigh), 600U);
  EXPECT_EQ(hipFreeAsync(a, nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipMallocFromPoolAsync(&a, 1, reinterpret_cast<hipMemPool_t>(&value), nullptr),
            hipErrorInvalidValue);

  // The device's pool from now on; hipFree gives back to it, too.
  EXPECT_EQ(hipDeviceSetMemPool(0, pool), hipErrorInvalidValue);
  ASSERT_EQ(hipDeviceSetMemPool(1, pool), hipSuccess);
  ASSERT_EQ(hipMallocAsync(&a, 1000, nullptr), hipSuccess);
  EXPECT_EQ(told(hipMemPoolAttrReservedMemCurrent), 1000U);
  EXPECT_EQ(hipFree(a), hipSuccess);
  EXPECT_EQ(told(hipMemPoolAttrUsedMemCurrent), 0U);
  EXPECT_EQ(hipMemPoolTrimTo(pool, 0), hipSuccess);
  hipMemAccessFlags access{};
  hipMemLocation place{hipMemLocationTypeDevice, 1};
  EXPECT_EQ(hipMemPoolGetAccess(&access, pool, &place), hipSuccess);
  EXPECT_EQ(access, hipMemAccessFlagsProtReadWrite);
  hipMemAccessDesc wanted{{hipMemLocationTypeDevice, 0}, hipMemAccessFlagsProtReadWrite};
  EXPECT_EQ(hipMemPoolSetAccess(pool, &wanted, 1), hipErrorInvalidValue);  // of another node
  wanted.location.id = 1;
  EXPECT_EQ(hipMemPoolSetAccess(pool, &wanted, 1), hipSuccess);

  // A pool lasts until nothing of it is used.
  ASSERT_EQ(hipMallocAsync(&a, 10, nullptr), hipSuccess);
  EXPECT_EQ(hipMemPoolDestroy(pool), hipSuccess);
  EXPECT_EQ(hipMemPoolDestroy(pool), hipErrorInvalidValue);
  EXPECT_EQ(hipMemPoolDestroy(own), hipErrorInvalidValue);
  ASSERT_EQ(hipDeviceGetMemPool(&now, 1), hipSuccess);
  EXPECT_EQ(own, now);
  EXPECT_EQ(hipFree(a), hipSuccess);
}

TEST(HipMemory, HasRowsAndBoxes) {
  ASSERT_EQ(hipSetDevice(0), hipSuccess);
  std::byte* rows = nullptr;
  size_t pitch = 0;
  ASSERT_EQ(hipMallocPitch(reinterpret_cast<void**>(&rows), &pitch, 300, 4), hipSuccess);
  EXPECT_EQ(pitch, 512U);
  EXPECT_EQ(hipMemset(rows, 1, 4 * pitch), hipSuccess);
  EXPECT_EQ(hipMemset2D(rows + 10, pitch, 7, 20, 3), hipSuccess);
  EXPECT_EQ(rows[9], std::byte{1});
  EXPECT_EQ(rows[2 * pitch + 29], std::byte{7});
  EXPECT_EQ(rows[2 * pitch + 30], std::byte{1});
  EXPECT_EQ(rows[3 * pitch + 10], std::byte{1});
  EXPECT_EQ(hipMemset2DAsync(rows, pitch, 0, pitch, 5, nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset2D(rows, 8, 0, 9, 2), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset2D(rows, SIZE_MAX / 2, 0, 9, 4), hipErrorInvalidValue);
  hip_Memcpy2D part{};
  std::array<std::byte, 6> host{};
  part.srcXInBytes = 8;
  part.srcY = 1;
  part.srcMemoryType = hipMemoryTypeDevice;
  part.srcDevice = rows;
  part.srcPitch = pitch;
  part.dstMemoryType = hipMemoryTypeHost;
  part.dstHost = host.data();
  part.dstPitch = 3;
  part.WidthInBytes = 3;
  part.Height = 2;
  EXPECT_EQ(hipMemcpyParam2D(&part), hipSuccess);
  EXPECT_EQ(host, (std::array<std::byte, 6>{std::byte{1}, std::byte{1}, std::byte{7}, std::byte{1},
                                            std::byte{1}, std::byte{7}}));
  EXPECT_EQ(hipFree(rows), hipSuccess);
  EXPECT_EQ(hipMallocPitch(reinterpret_cast<void**>(&rows), &pitch, SIZE_MAX, 4),
            hipErrorOutOfMemory);

  // A box of 3 x 2 x 2 bytes from the middle of one of 4 x 3 x 3.
  std::vector<uint8_t> numbers(36);
  std::iota(numbers.begin(), numbers.end(), uint8_t{0});
  hipPitchedPtr box{};
  ASSERT_EQ(hipMalloc3D(&box, {3, 2, 2}), hipSuccess);
  EXPECT_EQ(box.pitch, 256U);
  hipMemcpy3DParms copy{};
  copy.srcPtr = {numbers.data(), 4, 4, 3};
  copy.srcPos = {1, 1, 1};
  copy.dstPtr = box;
  copy.extent = {3, 2, 2};
  copy.kind = hipMemcpyHostToDevice;
  EXPECT_EQ(hipMemcpy3D(&copy), hipSuccess);
  const auto* there = static_cast<const uint8_t*>(box.ptr);
  EXPECT_EQ(there[0], 17);
  EXPECT_EQ(there[2], 19);
  EXPECT_EQ(there[256], 21);
  EXPECT_EQ(there[512], 29);
  EXPECT_EQ(hipMemset3D(box, 5, {1, 2, 2}), hipSuccess);
  EXPECT_EQ(there[768], 5);
  EXPECT_EQ(there[769], 34);
  copy.extent = {3, 2, 3};
  EXPECT_EQ(hipMemcpy3DAsync(&copy, nullptr), hipErrorInvalidValue);
  copy.srcArray = box.ptr;
  EXPECT_EQ(hipMemcpy3D(&copy), hipErrorNotSupported);
  EXPECT_EQ(hipFree(box.ptr), hipSuccess);
}

TEST(HipMemory, TellsOfRanges) {
  ASSERT_EQ(hipSetDevice(0), hipSuccess);
  char* managed = nullptr;
  ASSERT_EQ(hipMallocManaged(reinterpret_cast<void**>(&managed), 100, hipMemAttachGlobal),
            hipSuccess);
  EXPECT_EQ(hipMemPrefetchAsync(managed, 100, 0, nullptr), hipSuccess);
  EXPECT_EQ(hipMemPrefetchAsync(managed, 101, 0, nullptr), hipErrorInvalidValue);
  int value = 7;
  EXPECT_EQ(hipMemRangeGetAttribute(&value, 4, hipMemRangeAttributeCoherencyMode, managed, 100),
            hipSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(hipMemRangeGetAttribute(&value, 8, hipMemRangeAttributeReadMostly, managed, 100),
            hipErrorInvalidValue);
  EXPECT_EQ(hipStreamAttachMemAsync(nullptr, managed, 0, 4), hipSuccess);
  EXPECT_EQ(hipStreamAttachMemAsync(nullptr, managed, 101, 4), hipErrorInvalidValue);
  EXPECT_EQ(hipFree(managed), hipSuccess);
}

// What clang makes of `__managed__ int counter = 41`: a pointer that the host's code goes through,
// and one in the code object.
TEST(HipMemory, HasManagedVariables) {
  for (int device = 0; device < 2; ++device) {
    const std::vector<std::byte> code = test_kernels("ordinary", cdna::kTargets[device]);
    if (code.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    ASSERT_EQ(hipSetDevice(device), hipSuccess);
    const struct {
      uint32_t magic;
      uint32_t version;
      const void* image;
      void* unused;
    } wrapper = {0x48495046, 1, code.data(), nullptr};
    void** binary = __hipRegisterFatBinary(&wrapper);
    int initial = 41;
    int* counter = nullptr;
    char count_up = 0;
    __hipRegisterFunction(binary, &count_up, nullptr, "count_up", ~0U, nullptr, nullptr, nullptr,
                          nullptr, nullptr);
    __hipRegisterManagedVar(static_cast<void*>(binary), reinterpret_cast<void**>(&counter),
                            &initial, "counter", sizeof initial, 4);
    ASSERT_NE(counter, nullptr);
    EXPECT_EQ(*counter, 41);
    void* none = nullptr;
    EXPECT_EQ(hipLaunchKernel(&count_up, {1, 1, 1}, {1, 1, 1}, &none, 0, nullptr), hipSuccess);
    EXPECT_EQ(hipDeviceSynchronize(), hipSuccess) << last_findings();
    EXPECT_EQ(*counter, 42);
    __hipUnregisterFatBinary(binary);
  }
}

TEST(HipMemory, HasLimits) {
  size_t bytes = 0;
  EXPECT_EQ(hipDeviceSetLimit(hipLimitMallocHeapSize, 1 << 22), hipSuccess);
  EXPECT_EQ(hipDeviceGetLimit(&bytes, hipLimitMallocHeapSize), hipSuccess);
  EXPECT_EQ(bytes, size_t{1} << 22);
  EXPECT_EQ(hipDeviceGetLimit(&bytes, static_cast<hipLimit_t>(3)), hipErrorNotSupported);
  EXPECT_EQ(hipDeviceSetLimit(static_cast<hipLimit_t>(3), 1), hipErrorNotSupported);
}

TEST(HipContext, IsADevice) {
  ASSERT_EQ(hipSetDevice(0), hipSuccess);
  hipCtx_t context = nullptr;
  hipCtx_t now = nullptr;
  ASSERT_EQ(hipDevicePrimaryCtxRetain(&context, 1), hipSuccess);
  EXPECT_EQ(hipDevicePrimaryCtxRetain(&now, 99), hipErrorInvalidDevice);
  EXPECT_EQ(hipCtxPushCurrent(context), hipSuccess);
  int device = 0;
  EXPECT_EQ(hipCtxGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(hipCtxPopCurrent(&now), hipSuccess);
  EXPECT_EQ(now, context);
  EXPECT_EQ(hipCtxPopCurrent(&now), hipErrorInvalidContext);
  EXPECT_EQ(hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(hipCtxSetCurrent(reinterpret_cast<hipCtx_t>(&device)), hipErrorInvalidDevice);
}

}  // namespace
}  // namespace weft::sim
