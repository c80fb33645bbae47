// The C interface's view of AMD kernels without an AMD GPU: their code, and the launches that an
// operation makes, recorded by functions of HIP that only write down what they are asked for.
#include <array>
#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "arch/cdna/embedded.h"
#include "arch/cdna/hip.h"
#include "capi/interface.h"
#include "capi/operations.h"

namespace weft::capi {
namespace {

using hip::hipError_t;
using hip::hipSuccess;

struct Recorded {
  std::string kernel;
  std::array<uint32_t, 3> grid{};
  std::array<uint32_t, 3> block{};
  uint32_t lds = 0;
  std::vector<std::byte> arguments;
};

/// What the calling thread's recorder stands for, and what it was asked to launch.
thread_local cdna::Target recorded_target = cdna::Target::gfx942;
thread_local std::vector<Recorded> launches;

/// A kernel's name is its handle.
const std::string* interned(const char* name) {
  thread_local std::set<std::string> names;
  return &*names.insert(name).first;
}

hipError_t launch(hip::hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds,
                  hip::hipStream_t, void**, void** extra) {
  const auto* bytes = static_cast<const std::byte*>(extra[1]);
  const size_t count = *static_cast<const size_t*>(extra[3]);
  launches.push_back({*reinterpret_cast<const std::string*>(function),
                      {grid_x, grid_y, grid_z},
                      {block_x, block_y, block_z},
                      lds,
                      {bytes, bytes + count}});
  return hipSuccess;
}

/// The functions that a HipDevice calls on its way to a launch.
const hip::HipApi& recorder() {
  static const hip::HipApi kApi = [] {
    hip::HipApi api{};
    api.hipInit = [](unsigned) { return hipSuccess; };
    api.hipSetDevice = [](int) { return hipSuccess; };
    api.hipGetDevicePropertiesR0600 = [](hip::hipDeviceProp_t* properties, int) {
      *properties = {};
      const std::string_view name = cdna::name_of(recorded_target);
      std::memcpy(properties->gcnArchName, name.data(), name.size());
      properties->multiProcessorCount = cdna::limits_of(recorded_target).compute_units;
      return hipSuccess;
    };
    api.hipGetErrorString = [](hipError_t) { return "a recorder fails at nothing"; };
    api.hipStreamCreate = [](hip::hipStream_t* stream) {
      *stream = nullptr;
      return hipSuccess;
    };
    api.hipStreamDestroy = [](hip::hipStream_t) { return hipSuccess; };
    api.hipModuleLoadData = [](hip::hipModule_t* module, const void*) {
      *module = nullptr;
      return hipSuccess;
    };
    api.hipModuleUnload = [](hip::hipModule_t) { return hipSuccess; };
    api.hipModuleGetFunction = [](hip::hipFunction_t* function, hip::hipModule_t,
                                  const char* name) {
      *function = reinterpret_cast<hip::hipFunction_t>(const_cast<std::string*>(interned(name)));
      return hipSuccess;
    };
    api.hipModuleLaunchKernel = launch;
    return api;
  }();
  return kApi;
}

Result<cdna::Target> target_of(std::string_view name) {
  const auto target = cdna::target_named(name);
  if (!target) {
    return usage_error(fmt::format("target {} is not known: write gfx942 or gfx950", name));
  }
  return *target;
}

}  // namespace

Result<std::unique_ptr<Device>> open_recorded(std::string_view target) {
  WEFT_ASSIGN(recorded_target, target_of(target));
  WEFT_ASSIGN(std::unique_ptr<Device> device,
              cdna::HipDevice::open(recorder(), 0, fmt::format("recorded:{}", target), nullptr));
  return device;
}

}  // namespace weft::capi

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

weft_status weft_code_object(const char* operation, const char* target, const void** data,
                             size_t* bytes) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(operation, "operation"));
    WEFT_TRY(check_pointer(target, "target"));
    WEFT_TRY(check_pointer(data, "data"));
    WEFT_TRY(check_pointer(bytes, "bytes"));
    WEFT_ASSIGN(const cdna::Target which, target_of(target));
    const cdna::EmbeddedCode* code = cdna::embedded_code(operation, which);
    if (code == nullptr) {
      return usage_error(fmt::format("this build has no {} code of {}", target, operation));
    }
    *data = code->bytes.data();
    *bytes = code->bytes.size();
    return {};
  });
}

weft_status weft_launches(const char* name, const void* args, weft_device* device, weft_launch* out,
                          size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(count, "count"));
    WEFT_TRY(check_pointer(device, "device"));
    if (!device->device->info().id.starts_with("recorded:")) {
      return usage_error(fmt::format("{} launches kernels and records none: open recorded:gfx942",
                                     device->device->info().id));
    }
    WEFT_ASSIGN(const Operation* operation, operation_named(name));
    launches.clear();
    WEFT_TRY(operation->run(args, stream_of(device)));
    for (size_t i = 0; i < std::min(capacity, launches.size()); ++i) {
      const Recorded& each = launches[i];
      out[i] = {.kernel = each.kernel.c_str(),
                .grid = {each.grid[0], each.grid[1], each.grid[2]},
                .block = {each.block[0], each.block[1], each.block[2]},
                .lds = each.lds,
                .reserved = 0,
                .arguments = each.arguments.data(),
                .argument_bytes = each.arguments.size()};
    }
    *count = launches.size();
    return {};
  });
}
