// Of the simulated HIP runtime: modules, their kernels, and launches.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/hip_runtime.h"
#include "sim/offload_bundle.h"

namespace weft::sim {

using namespace weft::hip;  // NOLINT: this is HIP's other side

namespace {

/// The arguments of a launch, packed: given so in `extra`, or one pointer for each in `parameters`.
bool pack_arguments(const cdna::Kernel& kernel, void** parameters, void** extra,
                    std::vector<std::byte>& packed) {
  if (extra != nullptr) {
    const std::byte* from = nullptr;
    size_t bytes = 0;
    for (; *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
        from = static_cast<const std::byte*>(extra[1]);
      } else if (*extra == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
        bytes = *static_cast<const size_t*>(extra[1]);
      } else {
        return false;
      }
    }
    if (from == nullptr && bytes != 0) {
      return false;
    }
    packed.assign(from, from + bytes);
    return true;
  }
  packed.assign(kernel.argument_bytes, std::byte{0});
  size_t index = 0;
  for (const cdna::KernelArgument& a : kernel.arguments) {
    if (a.kind.starts_with("hidden_")) {
      continue;
    }
    if (parameters == nullptr || parameters[index] == nullptr || a.offset > packed.size() ||
        packed.size() - a.offset < a.bytes) {
      return false;
    }
    std::memcpy(packed.data() + a.offset, parameters[index++], a.bytes);
  }
  return true;
}

}  // namespace

hipError_t prepare(const LaunchRequest& request, PreparedLaunch& launch) {
  const hipFunction_t function = request.function;
  if (!known(runtime().functions, function)) {
    return refuse(hipErrorInvalidHandle, "", "What is to be launched is no function of a module.");
  }
  const cdna::Kernel& info = *function->kernel->info;
  const int on = function->module->device;
  auto arguments = std::make_shared<std::vector<std::byte>>();
  if (!pack_arguments(info, request.parameters, request.extra, *arguments)) {
    return refuse(hipErrorInvalidValue, info.name,
                  "The arguments of kernel " + std::string(info.name) + " are not all there.");
  }
  Device& device = *gpu(on).device;
  const auto shared = static_cast<uint32_t>(std::min<uint64_t>(request.shared_bytes, ~0U));
  const Status possible = device.check(*function->kernel, request.grid, request.block, shared,
                                       arguments->size(), request.cooperative);
  if (!possible.ok()) {
    return refuse(
        request.cooperative ? hipErrorCooperativeLaunchTooLarge : hipErrorInvalidConfiguration,
        info.name, possible.error().message);
  }
  launch.arguments = arguments;
  launch.run = [=, &device, kernel = function->kernel, module = function->module->module,
                grid = request.grid, block = request.block,
                cooperative = request.cooperative](LaunchReport& report) {
    LaunchOptions options;
    options.sanitize = runtime().sanitize;
    options.stack_bytes = runtime().stack_bytes;
    options.hang_seconds = runtime().hang_seconds;
    if (runtime().next_seed != 0) {
      options.seed = runtime().next_seed++;
    }
    options.cooperative = cooperative;
    Result<LaunchReport> done = device.launch(*kernel, grid, block, shared, *arguments, options);
    if (done.ok()) {
      report = std::move(done).value();
    } else {
      Finding finding;
      finding.kernel = kernel->info->name;
      finding.message = done.error().message;
      report.findings.push_back(std::move(finding));
    }
    tell(report);
    if (!report.ok()) {
      gpu(on).failed = hipErrorLaunchFailure;
    }
  };
  return hipSuccess;
}

}  // namespace weft::sim

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

hipError_t load(hipModule_t* module, std::span<const std::byte> image) {
  if (!known_device(current_device())) {
    return result(hipErrorNoDevice);
  }
  Device& device = *gpu().device;
  std::vector<std::byte> storage;
  const Result<std::span<const std::byte>> code = code_object_in(image, device.target(), storage);
  if (!code.ok()) {
    return refuse(hipErrorInvalidImage, "", code.error().message);
  }
  Result<std::shared_ptr<Module>> loaded = device.load(code.value());
  if (!loaded.ok()) {
    return refuse(
        loaded.error().kind == ErrorKind::input ? hipErrorInvalidImage : hipErrorOutOfMemory, "",
        loaded.error().message);
  }
  auto made = std::make_unique<ihipModule_t>();
  made->device = current_device();
  made->module = std::move(loaded).value();
  *module = keep(runtime().modules, std::move(made));
  return hipSuccess;
}

/// A captured launch.
hipGraphNode kernel_node(const LaunchRequest& request, const PreparedLaunch& launch) {
  return graph_node({.blockDim = {request.block.x, request.block.y, request.block.z},
                     .extra = nullptr,
                     .func = request.function,
                     .gridDim = {request.grid.x, request.grid.y, request.grid.z},
                     .kernelParams = nullptr,
                     .sharedMemBytes = static_cast<unsigned>(request.shared_bytes)},
                    launch);
}

/// A launch in a stream's order.
hipError_t launch(const LaunchRequest& request) {
  ihipStream_t* stream = stream_of(request.stream);
  if (stream == nullptr) {
    return refuse(hipErrorInvalidHandle, "", "The stream to launch in is none.");
  }
  PreparedLaunch prepared;
  if (const hipError_t error = prepare(request, prepared); error != hipSuccess) {
    return error;
  }
  const int on = request.function->module->device;
  if (stream->device != on) {
    const std::string name(request.function->kernel->info->name);
    return refuse(hipErrorInvalidHandle, name,
                  "Kernel " + name + " was loaded for device " + std::to_string(on) +
                      ", but the stream is device " + std::to_string(stream->device) +
                      "'s: load its module with device " + std::to_string(stream->device) +
                      " current.");
  }
  if (const auto captured = capture(*stream, kernel_node(request, prepared))) {
    return result(*captured);
  }
  const auto record = std::make_shared<LaunchRecord>();
  latest_launch() = record;
  record->work = submit(*stream, [record, run = prepared.run] { run(record->report); });
  if (runtime().blocking) {
    wait_for(record->work);
    return result(take_failure(on));
  }
  return hipSuccess;
}

/// Of a kernel that is named by a handle or by what stands for it on the host.
LaunchRequest request_of(const void* function, dim3 grid, dim3 block, void** parameters,
                         size_t shared_bytes, hipStream_t stream) {
  const ihipStream_t* in = stream_of(stream);
  return {.function = function_of(function, in != nullptr ? in->device : current_device()),
          .grid = {grid.x, grid.y, grid.z},
          .block = {block.x, block.y, block.z},
          .shared_bytes = shared_bytes,
          .stream = stream,
          .parameters = parameters};
}

hipError_t launch_as_asked(LaunchRequest request, const hipLaunchAttribute* attributes,
                           unsigned count) {
  for (unsigned k = 0; k < count; ++k) {
    const hipLaunchAttribute& attribute = attributes[k];
    if (attribute.id == hipLaunchAttributeCooperative) {
      request.cooperative = attribute.value.cooperative != 0;
    } else if (attribute.id != hipLaunchAttributePriority &&
               attribute.id != hipLaunchAttributeAccessPolicyWindow) {
      return refuse(hipErrorNotSupported, "",
                    "Launch attribute " + std::to_string(attribute.id) +
                        " is none that gfx942 or gfx950 has.");
    }
  }
  return launch(request);
}

/// Between two events, where they are wanted.
hipError_t launch_between(const LaunchRequest& request, hipEvent_t start, hipEvent_t stop) {
  if (start != nullptr) {
    const hipError_t error = hipEventRecord(start, request.stream);
    if (error != hipSuccess) {
      return error;
    }
  }
  const hipError_t error = launch(request);
  return error == hipSuccess && stop != nullptr ? hipEventRecord(stop, request.stream) : error;
}

}  // namespace

WEFT_HIP hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  if (module == nullptr || path == nullptr) {
    return result(hipErrorInvalidValue);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return result(hipErrorFileNotFound);
  }
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return load(module, std::as_bytes(std::span(bytes)));
}
WEFT_HIP hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  if (module == nullptr || image == nullptr) {
    return result(hipErrorInvalidValue);
  }
  return load(module, image_at(readable_from(image)));
}
WEFT_HIP hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, int*,
                                        void**) {
  return hipModuleLoadData(module, image);  // the options are for a compiler that does not run
}
WEFT_HIP hipError_t hipModuleUnload(hipModule_t module) {
  {
    const std::lock_guard lock(runtime().mutex);
    std::erase_if(runtime().functions,
                  [&](const auto& entry) { return entry.second->module == module; });
  }
  return result(take(runtime().modules, module) != nullptr ? hipSuccess : hipErrorInvalidHandle);
}
WEFT_HIP hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                         const char* name) {
  if (function == nullptr || name == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().modules, module)) {
    return result(hipErrorInvalidHandle);
  }
  const Kernel* kernel = module->module->kernel(name);
  if (kernel == nullptr) {
    return result(hipErrorNotFound);
  }
  auto made = std::make_unique<ihipModuleSymbol_t>();
  made->module = module;
  made->kernel = kernel;
  *function = keep(runtime().functions, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipModuleGetGlobal(hipDeviceptr_t* pointer, size_t* bytes, hipModule_t module,
                                       const char* name) {
  if (name == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().modules, module)) {
    return result(hipErrorInvalidHandle);
  }
  const auto global = module->module->global(name);
  if (!global) {
    return result(hipErrorNotFound);
  }
  if (pointer != nullptr) {
    *pointer = reinterpret_cast<void*>(global->address);
  }
  if (bytes != nullptr) {
    *bytes = global->bytes;
  }
  return hipSuccess;
}

WEFT_HIP hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* function) {
  if (attributes == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipFunction_t handle = function_of(function, current_device());
  if (handle == nullptr) {
    return result(hipErrorInvalidDeviceFunction);
  }
  const cdna::Kernel& kernel = *handle->kernel->info;
  const Target target = gpu(handle->module->device).device->target();
  std::memset(attributes, 0, sizeof *attributes);
  attributes->binaryVersion = target == Target::gfx942 ? 94 : 95;
  attributes->localSizeBytes = kernel.scratch_bytes;
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(cdna::limits_of(target).lds_bytes - kernel.lds_bytes);
  attributes->maxThreadsPerBlock = static_cast<int>(kernel.max_workgroup_threads);
  attributes->numRegs = static_cast<int>(kernel.vgprs);
  attributes->sharedSizeBytes = kernel.lds_bytes;
  return hipSuccess;
}
WEFT_HIP hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute,
                                        hipFunction_t function) {
  hipFuncAttributes all;
  if (value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipError_t error = hipFuncGetAttributes(&all, function);
  if (error != hipSuccess) {
    return error;
  }
  switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = all.maxThreadsPerBlock;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(all.sharedSizeBytes);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = 0;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(all.localSizeBytes);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS:
      *value = all.numRegs;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = all.maxDynamicSharedSizeBytes;
      return hipSuccess;
  }
  return result(hipErrorInvalidValue);
}

WEFT_HIP hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute attribute,
                                        int value) {
  hipFuncAttributes all;
  const hipError_t error = hipFuncGetAttributes(&all, function);
  if (error != hipSuccess) {
    return error;
  }
  // A launch may ask for all LDS that there is, whatever was set.
  const bool possible = attribute == hipFuncAttributePreferredSharedMemoryCarveout ||
                        (attribute == hipFuncAttributeMaxDynamicSharedMemorySize && value >= 0 &&
                         value <= all.maxDynamicSharedSizeBytes);
  return result(possible ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipFuncSetCacheConfig(const void*, int) { return hipSuccess; }
WEFT_HIP hipError_t hipFuncSetSharedMemConfig(const void*, int) { return hipSuccess; }

WEFT_HIP hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                       hipFunction_t function,
                                                                       int block_threads,
                                                                       size_t shared_bytes) {
  if (blocks == nullptr || block_threads <= 0) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().functions, function)) {
    return result(hipErrorInvalidDeviceFunction);
  }
  const Device& device = *gpu(function->module->device).device;
  *blocks = block_threads > cdna::kMaxWorkgroupThreads
                ? 0
                : device.groups_per_unit(*function->kernel, block_threads, shared_bytes);
  return hipSuccess;
}
WEFT_HIP hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, hipFunction_t function, int block_threads, size_t shared_bytes, unsigned) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads,
                                                            shared_bytes);
}
WEFT_HIP hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                                 int block_threads,
                                                                 size_t shared_bytes) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, function_of(function, current_device()), block_threads, shared_bytes);
}
WEFT_HIP hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_threads, size_t shared_bytes, unsigned) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads,
                                                      shared_bytes);
}
WEFT_HIP hipError_t hipModuleOccupancyMaxPotentialBlockSize(int* blocks, int* block_threads,
                                                            hipFunction_t function,
                                                            size_t shared_bytes, int most) {
  if (blocks == nullptr || block_threads == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().functions, function)) {
    return result(hipErrorInvalidDeviceFunction);
  }
  const Device& device = *gpu(function->module->device).device;
  const auto allowed = static_cast<int>(function->kernel->info->max_workgroup_threads);
  int limit =
      allowed > 0 ? std::min(allowed, cdna::kMaxWorkgroupThreads) : cdna::kMaxWorkgroupThreads;
  limit = most > 0 ? std::min(most, limit) : limit;
  int best = 0;
  // Of the sizes with the most threads on a compute unit, the largest.
  for (int threads = limit; threads > 0; threads = (threads - 1) / kLanes * kLanes) {
    const int groups = device.groups_per_unit(*function->kernel, threads, shared_bytes);
    if (groups * threads > best) {
      best = groups * threads;
      *block_threads = threads;
      *blocks = groups * cdna::limits_of(device.target()).compute_units;
    }
  }
  return result(best > 0 ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int* blocks,
                                                                     int* block_threads,
                                                                     hipFunction_t function,
                                                                     size_t shared_bytes, int most,
                                                                     unsigned) {
  return hipModuleOccupancyMaxPotentialBlockSize(blocks, block_threads, function, shared_bytes,
                                                 most);
}

WEFT_HIP hipError_t hipOccupancyMaxPotentialBlockSize(int* blocks, int* block_threads,
                                                      const void* function, size_t shared_bytes,
                                                      int most) {
  return hipModuleOccupancyMaxPotentialBlockSize(
      blocks, block_threads, function_of(function, current_device()), shared_bytes, most);
}

WEFT_HIP hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                          unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared_bytes,
                                          hipStream_t stream, void** parameters, void** extra) {
  return launch({.function = function,
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .shared_bytes = shared_bytes,
                 .stream = stream,
                 .parameters = parameters,
                 .extra = extra});
}
WEFT_HIP hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x,
                                                     unsigned grid_y, unsigned grid_z,
                                                     unsigned block_x, unsigned block_y,
                                                     unsigned block_z, unsigned shared_bytes,
                                                     hipStream_t stream, void** parameters) {
  return launch({.function = function,
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .shared_bytes = shared_bytes,
                 .stream = stream,
                 .parameters = parameters,
                 .cooperative = true});
}
WEFT_HIP hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* config, hipFunction_t function,
                                         void** parameters, void** extra) {
  if (config == nullptr || (config->attrs == nullptr && config->numAttrs != 0)) {
    return result(hipErrorInvalidValue);
  }
  const LaunchRequest request{.function = function,
                              .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                              .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                              .shared_bytes = config->sharedMemBytes,
                              .stream = config->hStream,
                              .parameters = parameters,
                              .extra = extra};
  return launch_as_asked(request, config->attrs, config->numAttrs);
}
WEFT_HIP hipError_t hipLaunchKernelExC(const hipLaunchConfig_t* config, const void* function,
                                       void** parameters) {
  if (config == nullptr || (config->attrs == nullptr && config->numAttrs != 0)) {
    return result(hipErrorInvalidValue);
  }
  return launch_as_asked(request_of(function, config->gridDim, config->blockDim, parameters,
                                    config->dynamicSmemBytes, config->stream),
                         config->attrs, config->numAttrs);
}
WEFT_HIP hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t work_x,
                                             uint32_t work_y, uint32_t work_z, uint32_t block_x,
                                             uint32_t block_y, uint32_t block_z,
                                             size_t shared_bytes, hipStream_t stream,
                                             void** parameters, void** extra, hipEvent_t start,
                                             hipEvent_t stop, uint32_t) {
  const auto divides = [](uint32_t block, uint32_t work) {
    return block != 0 && work % block == 0;
  };
  if (!divides(block_x, work_x) || !divides(block_y, work_y) || !divides(block_z, work_z)) {
    return refuse(hipErrorInvalidConfiguration, "",
                  "hipExtModuleLaunchKernel takes a grid in threads, which must be multiples of "
                  "the workgroup's.");
  }
  return launch_between({.function = function,
                         .grid = {work_x / block_x, work_y / block_y, work_z / block_z},
                         .block = {block_x, block_y, block_z},
                         .shared_bytes = shared_bytes,
                         .stream = stream,
                         .parameters = parameters,
                         .extra = extra},
                        start, stop);
}
WEFT_HIP hipError_t hipExtLaunchKernel(const void* function, dim3 grid, dim3 block,
                                       void** parameters, size_t shared_bytes, hipStream_t stream,
                                       hipEvent_t start, hipEvent_t stop, int) {
  return launch_between(request_of(function, grid, block, parameters, shared_bytes, stream), start,
                        stop);
}
WEFT_HIP hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** parameters,
                                    size_t shared_bytes, hipStream_t stream) {
  return launch(request_of(function, grid, block, parameters, shared_bytes, stream));
}
WEFT_HIP hipError_t hipLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                               void** parameters, unsigned shared_bytes,
                                               hipStream_t stream) {
  LaunchRequest request = request_of(function, grid, block, parameters, shared_bytes, stream);
  request.cooperative = true;
  return launch(request);
}

}  // namespace weft::hip
