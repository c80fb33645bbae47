// A device for tests of what runs on devices, where there is none.
#pragma once

#include <cstdlib>
#include <cstring>
#include <vector>

#include "arch/device.h"
#include "base/divide.h"

namespace weft::trial {

/// Memory of the host in the place of a device's.
class MadeUpDevice : public Device {
 public:
  explicit MadeUpDevice(int fp8_sum_bits = 24) {
    info_.id = "cuda:0";
    info_.target = "sm_90a";
    info_.arch = Arch::hopper;
    info_.units = 132;
    info_.fp8_sum_bits = fp8_sum_bits;
  }
  const DeviceInfo& info() const override { return info_; }
  Stream stream() override { return {this, nullptr}; }
  Result<DeviceMemory> allocate(size_t bytes) override {
    return DeviceMemory(std::aligned_alloc(256, round_up(bytes, 256)), bytes, std::free);
  }
  Status upload(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status download(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status synchronize() override { return {}; }
  Result<std::vector<double>> time(const Work& work, int runs) override {
    WEFT_TRY(work(stream()));
    return std::vector<double>(static_cast<size_t>(runs), 1e-6);
  }
  Result<Counters> count(const Work& work) override {
    WEFT_TRY(work(stream()));
    return Counters{.entries = {}, .bound = 0, .bound_by = ""};
  }

 private:
  DeviceInfo info_;
};

}  // namespace weft::trial
