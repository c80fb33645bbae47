#include "sim/hopper/runtime_kernels.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string_view>

namespace weft::ptx {
namespace {

// What nvcc writes (fatbinary_section.h has the first; the others are not documented).
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
};
struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of the entries that follow
};
struct Entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // of what follows the header
  uint32_t compressed_bytes;
  uint32_t unused[5];
  uint64_t flags;
  uint64_t unused_too;
  uint64_t text_bytes;  // of what is compressed
};
constexpr uint32_t kHeaderMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;
constexpr uint64_t kCompressed = 0xf000;
constexpr uint64_t kZstd = 0x8000;

struct Registered {
  std::mutex mutex;
  std::deque<Binary> binaries;
  std::map<const void*, Kernel> kernels;
};
Registered& registered() {
  static Registered all;
  return all;
}

std::chrono::seconds time_limit() {
  const char* text = std::getenv("WEFT_PTX_SECONDS");
  const int64_t seconds = text != nullptr ? std::atoll(text) : 0;
  return std::chrono::seconds(seconds > 0 ? seconds : 600);
}

Landing landing() {
  const char* text = std::getenv("WEFT_PTX_COPIES");
  const std::string_view word = text != nullptr ? text : "";
  return word == "soon" ? Landing::soon : word == "late" ? Landing::late : Landing::either;
}

}  // namespace

Binary* add_binary(const void* wrapper) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.binaries.push_back({static_cast<const Wrapper*>(wrapper)->data, {}});
  return &all.binaries.back();
}

void add_kernel(Binary* binary, const void* function, const char* name) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.kernels[function] = {binary, name};
}

Kernel* find_kernel(const void* function) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto found = all.kernels.find(function);
  return found != all.kernels.end() ? &found->second : nullptr;
}

Result<std::string> ptx_text(const void* fat_binary) {
  Header header;
  std::memcpy(&header, fat_binary, sizeof(header));
  if (header.magic != kHeaderMagic) {
    return input_error(
        fmt::format("a fat binary begins with {:#x}, not {:#x}", header.magic, kHeaderMagic));
  }
  const char* const end = static_cast<const char*>(fat_binary) + header.header_bytes + header.bytes;
  for (const char* at = static_cast<const char*>(fat_binary) + header.header_bytes; at < end;) {
    Entry entry;
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.kind == kPtx) {
      const char* const text = at + entry.header_bytes;
      if ((entry.flags & kCompressed) == 0) {
        return std::string(text, strnlen(text, entry.bytes));
      }
      std::string out(entry.text_bytes, '\0');
      if ((entry.flags & kCompressed) != kZstd ||
          ZSTD_decompress(out.data(), out.size(), text, entry.compressed_bytes) != out.size()) {
        return input_error(
            "a fat binary's PTX is compressed, but not by zstd: compile it with --no-compress");
      }
      out.resize(strnlen(out.data(), out.size()));
      return out;
    }
    at += entry.header_bytes + entry.bytes;
  }
  return input_error(
      "a fat binary has no PTX: compile it for a virtual architecture (code=compute_90a)");
}

Result<Work> Work::create(const Kernel& kernel, const Launch& launch, void** arguments) {
  Binary& binary = *kernel.binary;
  Work work;
  {
    const std::lock_guard lock(registered().mutex);
    if (!binary.module) {
      WEFT_ASSIGN(const std::string text, ptx_text(binary.data));
      WEFT_ASSIGN(binary.module, Module::parse(text, kernel.name));
    }
    work.module_ = *binary.module;
  }
  work.name_ = kernel.name;
  work.launch_ = launch;
  const std::vector<Parameter>* parameters = work.module_.parameters(kernel.name);
  if (parameters == nullptr) {
    return input_error(fmt::format("there is no kernel {} in its module", kernel.name));
  }
  for (size_t i = 0; i < parameters->size(); ++i) {
    const auto* const from = static_cast<const std::byte*>(arguments[i]);
    work.arguments_.emplace_back(from, from + (*parameters)[i].bytes);
  }
  return work;
}

Status Work::run() const {
  std::vector<const void*> arguments;
  for (const auto& argument : arguments_) {
    arguments.push_back(argument.data());
  }
  Launch launch = launch_;
  launch.copies = landing();
  WEFT_TRY(ptx::run(module_, name_, launch, arguments, {.time = time_limit()}));
  return {};
}

}  // namespace weft::ptx
