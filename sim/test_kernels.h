// For the simulator's tests: code objects of sim/testdata/, and arrays in a device's memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/device.h"

namespace weft::sim {

/// The bytes of a compiled file of sim/testdata/; none when this build has no clang-22.
inline std::vector<std::byte> test_kernels(const std::string& name, Target target) {
  std::ifstream file(
      std::string(WEFT_SIM_KERNELS) + "/" + name + "." + std::string(cdna::name_of(target)) + ".co",
      std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const auto view = std::as_bytes(std::span(bytes));
  return {view.begin(), view.end()};
}

/// A device with one module, for both targets in turn.
class KernelTest : public testing::TestWithParam<Target> {
 protected:
  /// Skips the test where kernels cannot be compiled.
  void load(const std::string& name) {
    const std::vector<std::byte> bytes = test_kernels(name, GetParam());
    if (bytes.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    Result<std::shared_ptr<Module>> module = device_.load(bytes);
    ASSERT_TRUE(module.ok()) << module.error().message;
    module_ = module.value();
  }

  /// An array of the device with these contents.
  template <class T>
  std::span<T> array(const std::vector<T>& values) {
    const std::span<T> to = array<T>(values.size());
    std::copy(values.begin(), values.end(), to.begin());
    return to;
  }
  template <class T>
  std::span<T> array(size_t count) {
    const Result<uint64_t> address = device_.allocate(count * sizeof(T));
    EXPECT_TRUE(address.ok());
    return {reinterpret_cast<T*>(address.value()), count};
  }

  /// Runs a kernel whose parameters are `arguments` in this order, laid out as C lays out a struct.
  template <class... Arguments>
  LaunchReport run(const char* name, Dim3 grid, Dim3 block, Arguments... arguments) {
    std::vector<std::byte> packed;
    (pack(packed, arguments), ...);
    const Kernel* kernel = module_->kernel(name);
    if (kernel == nullptr) {
      ADD_FAILURE() << "no kernel " << name;
      return {};
    }
    Result<LaunchReport> report =
        device_.launch(*kernel, grid, block, dynamic_lds_, packed, options_);
    if (!report.ok()) {
      ADD_FAILURE() << report.error().message;
      return {};
    }
    return std::move(report).value();
  }
  static std::string findings(const LaunchReport& report) {
    std::string text;
    for (const Finding& finding : report.findings) {
      text += finding.text() + "\n";
    }
    return text;
  }

  Device device_{GetParam()};
  std::shared_ptr<Module> module_;
  LaunchOptions options_;
  uint32_t dynamic_lds_ = 0;  ///< bytes of the next launch

 private:
  template <class T>
  static void pack(std::vector<std::byte>& packed, T value) {
    packed.resize((packed.size() + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T));
    std::memcpy(packed.data() + packed.size() - sizeof(T), &value, sizeof(T));
  }
};

inline std::string target_name(const testing::TestParamInfo<Target>& info) {
  return std::string(cdna::name_of(info.param));
}

}  // namespace weft::sim
