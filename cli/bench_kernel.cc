// weft bench kernel: one kernel of anybody's code object on the simulator, which says what it does
// wrong, what it counts, and how fast the simulator ran it.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "base/number.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "sim/device.h"
#include "sim/instruction.h"

namespace weft::cli {
namespace {

struct KernelFlags {
  std::string file;
  std::string device = "sim:gfx942";
  std::string name;
  std::vector<uint32_t> grid = {1};
  std::vector<uint32_t> block = {64};
  uint32_t lds = 0;
  int runs = 3;
  uint64_t seed = 1;
  bool unchecked = false;
  std::vector<std::string> arguments;
};

sim::Dim3 dimensions(const std::vector<uint32_t>& n) {
  return {n[0], n.size() > 1 ? n[1] : 1, n.size() > 2 ? n[2] : 1};
}

/// A number of a type in its own bytes; empty: there is no such type.
std::vector<std::byte> bytes_of(std::string_view type, double value) {
  const auto raw = [](auto number) {
    std::vector<std::byte> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  };
  const auto whole = static_cast<int64_t>(value);
  return type == "f64"    ? raw(value)
         : type == "f32"  ? raw(static_cast<float>(value))
         : type == "f16"  ? raw(to_f16(static_cast<float>(value)).bits)
         : type == "bf16" ? raw(to_bf16(static_cast<float>(value)).bits)
         : type == "i64"  ? raw(whole)
         : type == "i32"  ? raw(static_cast<int32_t>(whole))
         : type == "i16"  ? raw(static_cast<int16_t>(whole))
         : type == "i8"   ? raw(static_cast<int8_t>(whole))
                          : std::vector<std::byte>();
}

/// Adds "TYPE=VALUE", or "TYPE:COUNT", the address of memory, to packed arguments.
Status add_argument(sim::Device& device, const std::string& text, std::mt19937_64& random,
                    std::vector<std::byte>& packed) {
  const size_t mark = text.find_first_of("=:");
  const std::string type = text.substr(0, mark);
  double number = 0;
  size_t used = 0;
  try {
    number = mark == std::string::npos ? 0 : std::stod(text.substr(mark + 1), &used);
  } catch (const std::exception&) {
    used = 0;
  }
  std::vector<std::byte> value = bytes_of(type, number);
  constexpr double kMost = 1e10;
  const bool memory = mark != std::string::npos && text[mark] == ':';
  if (value.empty() || used == 0 || mark + 1 + used != text.size() || !std::isfinite(number) ||
      (memory && (number < 1 || number > kMost))) {
    return usage_error(
        fmt::format("'{}' is no argument of a kernel: write TYPE=VALUE, or TYPE:COUNT "
                    "for memory, with f64, f32, f16, bf16, i64, i32, i16 or i8",
                    text));
  }
  if (memory) {
    const auto count = static_cast<size_t>(number);
    WEFT_ASSIGN(const uint64_t address, device.allocate(count * value.size()));
    std::normal_distribution<double> normal;
    for (size_t k = 0; type[0] != 'i' && k < count; ++k) {
      const std::vector<std::byte> element = bytes_of(type, normal(random));
      std::memcpy(reinterpret_cast<std::byte*>(address) + k * element.size(), element.data(),
                  element.size());
    }
    value.resize(sizeof address);
    std::memcpy(value.data(), &address, sizeof address);
  }
  packed.resize((packed.size() + value.size() - 1) / value.size() * value.size());
  packed.insert(packed.end(), value.begin(), value.end());
  return {};
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Result<const sim::Kernel*> choose(const sim::Module& module, const cdna::CodeObject& object,
                                  const KernelFlags& flags) {
  std::string names;
  for (const cdna::Kernel& kernel : object.kernels()) {
    names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  }
  const bool only = flags.name.empty() && object.kernels().size() == 1;
  const sim::Kernel* kernel =
      module.kernel(only ? object.kernels().front().name : std::string_view(flags.name));
  if (kernel == nullptr) {
    return usage_error(fmt::format("{} has the kernels {}: name one of them with --name",
                                   flags.file, names.empty() ? "none" : names));
  }
  return kernel;
}

Result<int> bench_kernel(const KernelFlags& flags) {
  const std::string_view device_name = flags.device;
  const auto target =
      device_name.starts_with("sim:") ? cdna::target_named(device_name.substr(4)) : std::nullopt;
  if (!target) {
    return usage_error(fmt::format(
        "weft bench kernel runs on sim:gfx942 and sim:gfx950, not on '{}'", flags.device));
  }
  if (flags.grid.size() > 3 || flags.block.size() > 3) {
    return usage_error("--grid and --block have up to three numbers: X, X,Y or X,Y,Z");
  }
  WEFT_ASSIGN(const std::string code, read_text(flags.file));
  WEFT_ASSIGN(const cdna::CodeObject object,
              cdna::CodeObject::parse(std::as_bytes(std::span(code)), flags.file));
  sim::Device device(*target);
  WEFT_ASSIGN(const std::shared_ptr<sim::Module> module,
              device.load(std::as_bytes(std::span(code))));
  WEFT_ASSIGN(const sim::Kernel* kernel, choose(*module, object, flags));
  std::mt19937_64 random(flags.seed);
  std::vector<std::byte> packed;
  for (const std::string& argument : flags.arguments) {
    WEFT_TRY(add_argument(device, argument, random, packed));
  }
  double best = 0;
  sim::LaunchReport report;
  for (int run = 0; run < flags.runs && report.ok(); ++run) {
    const double begin = processor_seconds();
    WEFT_ASSIGN(report, device.launch(*kernel, dimensions(flags.grid), dimensions(flags.block),
                                      flags.lds, packed, {.sanitize = !flags.unchecked}));
    const double seconds = processor_seconds() - begin;
    best = run == 0 ? seconds : std::min(best, seconds);
  }
  fmt::print("{}", report.text());
  uint64_t vector = 0;
  for (const sim::Class each :
       {sim::Class::valu, sim::Class::valu_slow, sim::Class::mfma, sim::Class::lds,
        sim::Class::vmem_load, sim::Class::vmem_store, sim::Class::vmem_atomic}) {
    vector += report.counters.instructions[static_cast<size_t>(each)];
  }
  fmt::print(
      "  the simulator took {:.2f} ms of processor time, the best of {}: {:.1f} million vector "
      "instructions of waves a second and core\n",
      best * 1e3, flags.runs, static_cast<double>(vector) / best / 1e6);
  for (const sim::Finding& finding : report.findings) {
    fmt::print("{}\n", finding.text());
  }
  return report.ok() ? 0 : 1;
}

}  // namespace

void add_bench_kernel(CLI::App& bench, Action& action) {
  auto flags = std::make_shared<KernelFlags>();
  CLI::App* command = bench.add_subcommand(
      "kernel",
      "Run one kernel of a code object for AMD GPUs on the simulator: findings, counts, and "
      "how fast it was simulated");
  command->add_option("file", flags->file, "The code object")->required();
  command
      ->add_option(
          "argument", flags->arguments,
          "The kernel's arguments: TYPE=VALUE, or TYPE:COUNT for memory of so many elements "
          "(floats: random; integers: 0)")
      ->type_name("TYPE=VALUE|TYPE:COUNT");
  declare_device(*command, flags->device);
  command->add_option("--name", flags->name, "Of the kernel, where there are several");
  command->add_option("--grid", flags->grid, "Workgroups: X, or X,Y or X,Y,Z")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--block", flags->block, "Threads of a workgroup, likewise")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--lds", flags->lds, "Bytes of LDS beyond what the kernel declares");
  command->add_option("--runs", flags->runs, "The best is told")->check(CLI::Range(1, 1000));
  command->add_option("--seed", flags->seed, "Of the random inputs");
  command->add_flag("--unchecked", flags->unchecked, "Without the sanitizers");
  command->callback([flags, &action] { action = [flags] { return bench_kernel(*flags); }; });
}

}  // namespace weft::cli
