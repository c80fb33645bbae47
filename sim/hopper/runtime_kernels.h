// The kernels of a program that nvcc compiled, as its host code registers them: fat binaries with
// PTX as text (nvcc --generate-code=arch=compute_90a,code=compute_90a --no-compress), and functions
// that stand for kernels in host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/hopper/ptx.h"

namespace weft::ptx {

/// The PTX of a fat binary, parsed when its first kernel is launched.
struct Binary {
  const void* data = nullptr;
  std::optional<Module> module;
};

/// A kernel as host code names it.
struct Kernel {
  Binary* binary = nullptr;
  std::string name;  ///< mangled
  /// Dynamic; more must be asked for (CUDA C++ Programming Guide, "Shared Memory").
  uint32_t most_shared_bytes = 48 << 10;
  uint32_t most_cluster = 8;  ///< blocks
};

/// Registration, which happens before main(). The binary: of __cudaRegisterFatBinary.
Binary* add_binary(const void* wrapper);
void add_kernel(Binary* binary, const void* function, const char* name);

/// The kernel that a function of the host stands for; null: none.
Kernel* find_kernel(const void* function);

/// The PTX in a fat binary. Error (input): it has none, or one that is compressed otherwise than by
/// zstd.
Result<std::string> ptx_text(const void* fat_binary);

/// A launch with arguments of its own.
class Work {
 public:
  /// Copies the arguments. Error (input): the module is no PTX that can be run, or has no such
  /// kernel.
  static Result<Work> create(const Kernel& kernel, const Launch& launch, void** arguments);

  /// Runs it to its end. Error (device): run()'s.
  Status run() const;

 private:
  Module module_;
  std::string name_;
  Launch launch_;
  std::vector<std::vector<std::byte>> arguments_;
};

}  // namespace weft::ptx
