// Of the simulated HIP runtime: programs that a compiler made of host and device code in one. What
// it adds to them registers their code objects and says which address of the host's stands for
// which kernel or variable (Clang, lib/CodeGen/CGCUDANV.cpp); HIP's functions take those addresses.
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/hip_runtime.h"

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

/// What __hipRegisterFatBinary is given.
struct FatBinary {
  uint32_t magic;
  uint32_t version;
  const void* image;
  void* unused;
};
constexpr uint32_t kFatBinaryMagic = 0x48495046;  // "HIPF"

/// A variable that host and devices share. The code of either has a pointer to it.
struct Managed {
  std::string name;  ///< of the devices' pointer
  void* place = nullptr;
};

/// A program's or a library's device code. Its address is the handle.
struct Binary {
  const void* image = nullptr;
  std::vector<Managed> managed;
  std::unordered_map<int, hipModule_t> modules;  ///< loaded so far, by device
};

struct Symbol {
  Binary* binary = nullptr;
  std::string name;  ///< in the code object
  std::unordered_map<int, hipFunction_t> functions;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<void**, std::unique_ptr<Binary>> binaries;
  std::unordered_map<const void*, Symbol> symbols;
};
Registry& registry() {
  static auto* const kRegistry = new Registry();  // a program unregisters while it exits
  return *kRegistry;
}

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  hipStream_t stream;
};
/// Of the calling thread's launches that are being prepared.
std::vector<CallConfiguration>& configurations() {
  thread_local std::vector<CallConfiguration> pushed;
  return pushed;
}

void add_symbol(void** binary, const void* address, const char* name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.binaries.find(binary);
  if (found != all.binaries.end() && address != nullptr && name != nullptr) {
    all.symbols[address] = {found->second.get(), name, {}};
  }
}

/// Tells a module where the variables are that it shares.
void share_variables(const Binary& binary, hipModule_t module) {
  for (const Managed& each : binary.managed) {
    const auto pointer = module->module->global(each.name);
    if (pointer && pointer->bytes == sizeof each.place) {
      std::memcpy(reinterpret_cast<void*>(pointer->address), &each.place, sizeof each.place);
    }
  }
}

/// The module of a symbol's binary on a device, loaded if it was not yet. The registry is locked.
hipError_t module_of(Symbol& symbol, int device, hipModule_t& module) {
  hipModule_t& loaded = symbol.binary->modules[device];
  hipError_t error = hipSuccess;
  if (loaded == nullptr) {
    const int current = std::exchange(current_device(), device);
    error = hipModuleLoadData(&loaded, symbol.binary->image);
    current_device() = current;
    if (error == hipSuccess) {
      share_variables(*symbol.binary, loaded);
    }
  }
  module = loaded;
  return error;
}

/// Address and size of a variable on the current device.
hipError_t find_variable(const void* address, hipDeviceptr_t& pointer, size_t& bytes) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.symbols.find(address);
  if (found == all.symbols.end()) {
    return refuse(hipErrorInvalidSymbol, "", "What is named is no variable of a device's.");
  }
  hipModule_t module = nullptr;
  const hipError_t error = module_of(found->second, current_device(), module);
  return error != hipSuccess
             ? error
             : hipModuleGetGlobal(&pointer, &bytes, module, found->second.name.c_str());
}

/// Where bytes of a variable are on the current device.
hipError_t find_part(const void* symbol, size_t bytes, size_t offset, std::byte*& place) {
  hipDeviceptr_t pointer = nullptr;
  size_t size = 0;
  if (const hipError_t error = find_variable(symbol, pointer, size); error != hipSuccess) {
    return error;
  }
  if (offset > size || bytes > size - offset) {
    return refuse(hipErrorInvalidValue, "",
                  "A variable of " + std::to_string(size) + " bytes has no " +
                      std::to_string(bytes) + " from byte " + std::to_string(offset) + " on.");
  }
  place = static_cast<std::byte*>(pointer) + offset;
  return hipSuccess;
}

}  // namespace
}  // namespace weft::hip

namespace weft::sim {

hip::hipFunction_t function_of(const void* handle, int device) {
  auto* function = static_cast<hip::hipFunction_t>(const_cast<void*>(handle));
  if (known(runtime().functions, function)) {
    return function;
  }
  hip::Registry& all = hip::registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.symbols.find(handle);
  if (found == all.symbols.end()) {
    return nullptr;
  }
  hip::hipFunction_t& kernel = found->second.functions[device];
  hip::hipModule_t module = nullptr;
  if (kernel == nullptr && hip::module_of(found->second, device, module) == hip::hipSuccess) {
    (void)hip::hipModuleGetFunction(&kernel, module, found->second.name.c_str());
  }
  return kernel;
}

}  // namespace weft::sim

namespace weft::hip {

// NOLINTBEGIN(bugprone-reserved-identifier): clang's names
WEFT_HIP void** __hipRegisterFatBinary(const void* data) {
  FatBinary given{};
  std::memcpy(&given, data, sizeof given);
  auto made = std::make_unique<Binary>();
  made->image = given.magic == kFatBinaryMagic ? given.image : nullptr;
  auto* handle = reinterpret_cast<void**>(made.get());
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.binaries[handle] = std::move(made);
  return handle;
}
WEFT_HIP void __hipUnregisterFatBinary(void** binary) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.binaries.find(binary);
  if (found == all.binaries.end()) {
    return;
  }
  std::erase_if(all.symbols,
                [&](const auto& each) { return each.second.binary == found->second.get(); });
  for (const Managed& each : found->second->managed) {
    (void)hipFree(each.place);
  }
  for (const auto& [device, module] : found->second->modules) {
    if (module != nullptr) {
      (void)hipModuleUnload(module);
    }
  }
  all.binaries.erase(found);
}
WEFT_HIP void __hipRegisterFunction(void** binary, const void* host, char*, const char* name,
                                    unsigned, void*, void*, dim3*, dim3*, int*) {
  add_symbol(binary, host, name);
}
WEFT_HIP void __hipRegisterVar(void** binary, void* host, char*, const char* name, int, size_t, int,
                               int) {
  add_symbol(binary, host, name);
}
WEFT_HIP void __hipRegisterManagedVar(void* binary, void** pointer, void* initial, const char* name,
                                      size_t bytes, unsigned) {
  *pointer = nullptr;
  if (hipMallocManaged(pointer, bytes, hipMemAttachGlobal) != hipSuccess) {
    return;
  }
  std::memcpy(*pointer, initial, bytes);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.binaries.find(static_cast<void**>(binary));
  if (found != all.binaries.end()) {
    found->second->managed.push_back({name, *pointer});
  }
}
WEFT_HIP hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                               hipStream_t stream) {
  configurations().push_back({grid, block, shared_bytes, stream});
  return hipSuccess;
}
WEFT_HIP hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                              hipStream_t* stream) {
  if (configurations().empty()) {
    return result(hipErrorInvalidConfiguration);
  }
  const CallConfiguration last = configurations().back();
  configurations().pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *stream = last.stream;
  return hipSuccess;
}
// NOLINTEND(bugprone-reserved-identifier)

WEFT_HIP hipError_t hipGetFuncBySymbol(hipFunction_t* function, const void* symbol) {
  if (function == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *function = function_of(symbol, current_device());
  return result(*function != nullptr ? hipSuccess : hipErrorInvalidDeviceFunction);
}
WEFT_HIP hipError_t hipGetSymbolAddress(void** pointer, const void* symbol) {
  size_t bytes = 0;
  return pointer == nullptr ? result(hipErrorInvalidValue) : find_variable(symbol, *pointer, bytes);
}
WEFT_HIP hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol) {
  hipDeviceptr_t pointer = nullptr;
  return bytes == nullptr ? result(hipErrorInvalidValue) : find_variable(symbol, pointer, *bytes);
}
WEFT_HIP hipError_t hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes,
                                      size_t offset, hipMemcpyKind kind) {
  std::byte* place = nullptr;
  const hipError_t error = find_part(symbol, bytes, offset, place);
  return error != hipSuccess ? error : hipMemcpy(place, from, bytes, kind);
}
WEFT_HIP hipError_t hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                        hipMemcpyKind kind) {
  std::byte* place = nullptr;
  const hipError_t error = find_part(symbol, bytes, offset, place);
  return error != hipSuccess ? error : hipMemcpy(to, place, bytes, kind);
}
WEFT_HIP hipError_t hipMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                           size_t offset, hipMemcpyKind kind, hipStream_t stream) {
  std::byte* place = nullptr;
  const hipError_t error = find_part(symbol, bytes, offset, place);
  return error != hipSuccess ? error : hipMemcpyAsync(place, from, bytes, kind, stream);
}
WEFT_HIP hipError_t hipMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes,
                                             size_t offset, hipMemcpyKind kind,
                                             hipStream_t stream) {
  std::byte* place = nullptr;
  const hipError_t error = find_part(symbol, bytes, offset, place);
  return error != hipSuccess ? error : hipMemcpyAsync(to, place, bytes, kind, stream);
}

}  // namespace weft::hip
