// An operation of one device, called by threads that have done nothing with CUDA before.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arch/device.h"
#include "ops/gemm_skinny/op.h"

namespace weft {
namespace {

TEST(GemmSkinnyThreads, ThreadsThatAreNewHaveTheDevice) {
  constexpr int64_t kM = 8;
  constexpr int64_t kN = 128;
  constexpr int64_t kK = 256;
  const auto opened = open_device("cuda");
  if (!opened.ok()) {
    GTEST_SKIP() << opened.error().message;
  }
  Device& device = **opened;
  // Ones: each sum is k.
  const std::vector<__nv_bfloat16> ones(kN * kK, __float2bfloat16(1));
  const DeviceMemory a = device.allocate(kM * kK * 2).value();
  const DeviceMemory b = device.allocate(kN * kK * 2).value();
  const DeviceMemory out = device.allocate(kM * kN * 2).value();
  ASSERT_TRUE(device.upload(a.data(), ones.data(), a.size()).ok());
  ASSERT_TRUE(device.upload(b.data(), ones.data(), b.size()).ok());

  const GemmSkinnyArgs args{.m = kM,
                            .n = kN,
                            .k = kK,
                            .a = {a.data(), DType::bf16, kK},
                            .b = {b.data(), DType::bf16, kK},
                            .out = {out.data(), DType::bf16, kN}};
  for (int i = 0; i < 3; ++i) {
    std::string error = "it did not run";
    std::thread([&] {
      const Status status = gemm_skinny(args, device.stream());
      error = status.ok() ? "" : status.error().message;
    }).join();
    ASSERT_EQ(error, "");
  }
  std::vector<__nv_bfloat16> got(kM * kN);
  ASSERT_TRUE(device.download(got.data(), out.data(), out.size()).ok());
  for (const __nv_bfloat16 each : got) {
    ASSERT_EQ(__bfloat162float(each), kK);
  }
}

}  // namespace
}  // namespace weft
