// The C interface's simulator. A build without it says so.
#include "capi/interface.h"
#ifdef WEFT_WITH_SIM

#include <cstring>
#include <string>
#include <vector>

#include "arch/cdna/code_object.h"
#include "arch/cpu/dispatch.h"
#include "sim/device.h"
#include "sim/offload_bundle.h"

struct weft_sim {
  std::shared_ptr<weft::sim::Device> device;
};

struct weft_sim_kernel {
  std::shared_ptr<weft::sim::Device> device;  // outlives the module
  std::shared_ptr<weft::sim::Module> module;
  const weft::sim::Kernel* kernel = nullptr;
  std::string name;
  std::vector<weft::cdna::KernelArgument> arguments;  ///< explicit ones
  uint32_t argument_bytes = 0;
  // Of the last launch.
  std::vector<std::string> findings;
  std::vector<const char*> finding_texts;
  std::vector<std::string> counter_names;
  std::vector<weft_sim_count> counters;
  std::string bound_by;
};

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

namespace {

void count_all(const sim::Counters& c, weft_sim_kernel& into) {
  into.counter_names.clear();
  std::vector<double> values;
  const auto add = [&](std::string name, uint64_t value) {
    into.counter_names.push_back(std::move(name));
    values.push_back(static_cast<double>(value));
  };
  for (int k = 0; k < sim::kClasses; ++k) {
    add(std::string(name_of(static_cast<sim::Class>(k))) + "_instructions",
        c.instructions[static_cast<size_t>(k)]);
  }
  add("waves", c.waves);
  add("workgroups", c.workgroups);
  add("barriers", c.barriers);
  add("matrix_cycles", c.matrix_cycles);
  add("vector_cycles", c.vector_cycles);
  add("lds_cycles", c.lds_cycles);
  add("lds_conflict_cycles", c.lds_conflict_cycles);
  add("lds_bytes_read", c.lds_bytes_read);
  add("lds_bytes_written", c.lds_bytes_written);
  add("global_bytes_read", c.global_bytes_read);
  add("global_bytes_written", c.global_bytes_written);
  add("global_requests", c.global_requests);
  add("global_requests_least", c.global_requests_least);
  add("hbm_bytes_read", c.hbm_bytes_read);
  add("hbm_bytes_written", c.hbm_bytes_written);
  add("scratch_bytes", c.scratch_bytes);
  into.counters.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    std::string& name = into.counter_names[i];
    std::replace(name.begin(), name.end(), ' ', '_');
    into.counters.push_back({name.c_str(), values[i]});
  }
}

/// Which kernel of a code object is meant. Errors (input): none, or several and no name.
Result<std::string> choose_kernel(const cdna::CodeObject& object, const char* name) {
  std::string known;
  for (const cdna::Kernel& each : object.kernels()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
  }
  if (name == nullptr && object.kernels().size() == 1) {
    return std::string(object.kernels().front().name);
  }
  if (name == nullptr || object.kernel(name) == nullptr) {
    return input_error(name == nullptr
                           ? fmt::format("the code object has the kernels {}: say which", known)
                           : fmt::format("the code object has no kernel {}, only {}", name, known));
  }
  return std::string(name);
}

}  // namespace

weft_status weft_sim_open(const char* target, weft_sim** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(target, "target"));
    WEFT_TRY(check_pointer(out, "out"));
    const auto which = cdna::target_named(target);
    if (!which) {
      return usage_error(fmt::format("target {} is not known: write gfx942 or gfx950", target));
    }
    if (cpu::detected_isa() < cpu::Isa::avx2) {
      return device_error("the simulator needs a processor with AVX2");
    }
    *out = new weft_sim{std::make_shared<sim::Device>(*which)};
    return {};
  });
}

void weft_sim_close(weft_sim* sim) { delete sim; }

weft_status weft_sim_allocate(weft_sim* sim, size_t bytes, void** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(sim, "sim"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(const uint64_t address, sim->device->allocate(bytes));
    *out = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    return {};
  });
}

weft_status weft_sim_free(weft_sim* sim, void* data) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(sim, "sim"));
    return sim->device->free(reinterpret_cast<uint64_t>(data));
  });
}

weft_status weft_sim_load(weft_sim* sim, const void* code, size_t bytes, const char* name,
                          weft_sim_kernel** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(sim, "sim"));
    WEFT_TRY(check_pointer(code, "code"));
    WEFT_TRY(check_pointer(out, "out"));
    std::vector<std::byte> storage;
    WEFT_ASSIGN(const std::span<const std::byte> image,
                sim::code_object_in({static_cast<const std::byte*>(code), bytes},
                                    sim->device->target(), storage));
    WEFT_ASSIGN(const cdna::CodeObject object, cdna::CodeObject::parse(image, "the code object"));
    auto kernel = std::make_unique<weft_sim_kernel>();
    kernel->device = sim->device;
    WEFT_ASSIGN(kernel->name, choose_kernel(object, name));
    WEFT_ASSIGN(kernel->module, sim->device->load(image));
    kernel->kernel = kernel->module->kernel(kernel->name);
    for (const cdna::KernelArgument& each : kernel->kernel->info->arguments) {
      if (!each.kind.starts_with("hidden_")) {
        kernel->arguments.push_back(each);
        kernel->argument_bytes =
            std::max(kernel->argument_bytes, static_cast<uint32_t>(each.offset + each.bytes));
      }
    }
    *out = kernel.release();
    return {};
  });
}

void weft_sim_kernel_close(weft_sim_kernel* kernel) { delete kernel; }

weft_status weft_sim_kernel_describe(const weft_sim_kernel* kernel, weft_sim_kernel_info* out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(kernel, "kernel"));
    WEFT_TRY(check_pointer(out, "out"));
    const cdna::Kernel& info = *kernel->kernel->info;
    *out = {.name = kernel->name.c_str(),
            .argument_bytes = kernel->argument_bytes,
            .arguments = static_cast<uint32_t>(kernel->arguments.size()),
            .vgprs = info.vgprs,
            .agprs = info.agprs,
            .sgprs = info.sgprs,
            .vgpr_spills = info.vgpr_spills,
            .sgpr_spills = info.sgpr_spills,
            .lds_bytes = info.lds_bytes,
            .scratch_bytes = info.scratch_bytes,
            .max_threads = info.max_workgroup_threads};
    return {};
  });
}

weft_status weft_sim_kernel_argument(const weft_sim_kernel* kernel, uint32_t index,
                                     uint32_t* offset, uint32_t* bytes, const char** kind) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(kernel, "kernel"));
    if (index >= kernel->arguments.size()) {
      return usage_error(fmt::format("{} has {} arguments, none numbered {}", kernel->name,
                                     kernel->arguments.size(), index));
    }
    const cdna::KernelArgument& argument = kernel->arguments[index];
    *offset = static_cast<uint32_t>(argument.offset);
    *bytes = static_cast<uint32_t>(argument.bytes);
    *kind = argument.kind == "by_value" ? "by_value" : "global_buffer";
    return {};
  });
}

weft_status weft_sim_run(weft_sim_kernel* kernel, const weft_sim_launch_args* given,
                         weft_sim_report* out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(kernel, "kernel"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(const weft_sim_launch_args args, read(given, "args"));
    sim::LaunchOptions options;
    options.sanitize = args.sanitize != 0;
    options.seed = args.seed;
    WEFT_ASSIGN(const sim::LaunchReport report,
                kernel->device->launch(
                    *kernel->kernel, {args.grid[0], args.grid[1], args.grid[2]},
                    {args.block[0], args.block[1], args.block[2]}, args.lds,
                    {static_cast<const std::byte*>(args.arguments), args.argument_bytes}, options));
    kernel->findings.clear();
    kernel->finding_texts.clear();
    for (const sim::Finding& each : report.findings) {
      kernel->findings.push_back(each.text());
    }
    for (const std::string& each : kernel->findings) {
      kernel->finding_texts.push_back(each.c_str());
    }
    count_all(report.counters, *kernel);
    const sim::Bound bound = report.bound();
    kernel->bound_by = bound.limit();
    *out = {.findings = kernel->finding_texts.data(),
            .finding_count = kernel->finding_texts.size(),
            .counters = kernel->counters.data(),
            .counter_count = kernel->counters.size(),
            .bound = bound.seconds(),
            .bound_by = kernel->bound_by.c_str()};
    return {};
  });
}

#else

namespace {

weft_status none() {
  return weft::capi::failed(weft::device_error(
      "this build has no simulator (llvm-22-dev was not there when it was configured)"));
}

}  // namespace

weft_status weft_sim_open(const char*, weft_sim**) { return none(); }
void weft_sim_close(weft_sim*) {}
weft_status weft_sim_allocate(weft_sim*, size_t, void**) { return none(); }
weft_status weft_sim_free(weft_sim*, void*) { return none(); }
weft_status weft_sim_load(weft_sim*, const void*, size_t, const char*, weft_sim_kernel**) {
  return none();
}
void weft_sim_kernel_close(weft_sim_kernel*) {}
weft_status weft_sim_kernel_describe(const weft_sim_kernel*, weft_sim_kernel_info*) {
  return none();
}
weft_status weft_sim_kernel_argument(const weft_sim_kernel*, uint32_t, uint32_t*, uint32_t*,
                                     const char**) {
  return none();
}
weft_status weft_sim_run(weft_sim_kernel*, const weft_sim_launch_args*, weft_sim_report*) {
  return none();
}

#endif
