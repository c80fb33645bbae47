#include "arch/cdna/code_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

namespace weft::cdna {
namespace {

using Bytes = std::span<const std::byte>;

// ELF64 (System V ABI), the parts that a code object uses.
struct ElfHeader {
  uint8_t ident[16];
  uint16_t type;
  uint16_t machine;
  uint32_t version;
  uint64_t entry;
  uint64_t segments_offset;
  uint64_t sections_offset;
  uint32_t flags;
  uint16_t header_bytes;
  uint16_t segment_bytes;
  uint16_t segment_count;
  uint16_t section_bytes;
  uint16_t section_count;
  uint16_t names_section;
};
struct ElfSegment {
  uint32_t type;
  uint32_t flags;
  uint64_t offset;
  uint64_t address;
  uint64_t physical_address;
  uint64_t file_bytes;
  uint64_t memory_bytes;
  uint64_t align;
};
struct ElfSection {
  uint32_t name;
  uint32_t type;
  uint64_t flags;
  uint64_t address;
  uint64_t offset;
  uint64_t bytes;
  uint32_t link;
  uint32_t info;
  uint64_t align;
  uint64_t entry_bytes;
};
struct ElfSymbol {
  uint32_t name;
  uint8_t info;
  uint8_t other;
  uint16_t section;
  uint64_t value;
  uint64_t bytes;
};
struct ElfRela {
  uint64_t offset;
  uint64_t info;
  int64_t addend;
};
struct ElfNote {
  uint32_t name_bytes;
  uint32_t content_bytes;
  uint32_t type;
};
static_assert(sizeof(ElfHeader) == 64 && sizeof(ElfSegment) == 56 && sizeof(ElfSection) == 64 &&
                  sizeof(ElfSymbol) == 24 && sizeof(ElfRela) == 24 && sizeof(ElfNote) == 12,
              "laid out as in the file");

constexpr uint16_t kElfSharedObject = 3;
constexpr uint16_t kMachineAmdGpu = 224;
constexpr uint8_t kOsAmdHsa = 64;
constexpr uint32_t kMachGfx942 = 0x4c;
constexpr uint32_t kMachGfx950 = 0x4f;
constexpr uint32_t kSegmentLoad = 1;
constexpr uint32_t kSegmentNote = 4;
constexpr uint32_t kSegmentExecutable = 1;
constexpr uint32_t kSegmentWritable = 2;
constexpr uint32_t kSectionNoBits = 8;
constexpr uint32_t kSectionRela = 4;
constexpr uint32_t kSectionDynamicSymbols = 11;
constexpr uint32_t kNoteMetadata = 32;
// No kernel comes near these; what exceeds them is damage.
constexpr uint64_t kMostImageBytes = uint64_t{1} << 31;
constexpr size_t kMostMetadataDepth = 16;

/// A T at an offset of the file; nullopt: it does not lie inside.
template <class T>
std::optional<T> load(Bytes bytes, uint64_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::optional<Bytes> slice(Bytes bytes, uint64_t offset, uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) {
    return std::nullopt;
  }
  return bytes.subspan(offset, size);
}

/// The text at an offset of a string table, up to its zero byte.
std::optional<std::string_view> text_at(Bytes table, uint64_t offset) {
  if (offset >= table.size()) {
    return std::nullopt;
  }
  const auto* begin = reinterpret_cast<const char*>(table.data()) + offset;
  const void* end = std::memchr(begin, 0, table.size() - offset);
  if (end == nullptr) {
    return std::nullopt;
  }
  return std::string_view(begin, static_cast<const char*>(end) - begin);
}

/// Reads MessagePack values one after another. After damage failed() is true and every value that
/// is read is empty, so that a caller may check once.
class MessagePack {
 public:
  explicit MessagePack(Bytes bytes) : rest_(bytes) {}

  bool failed() const { return failed_; }

  /// The number of pairs of a map, or of elements of an array; 0 and failed() when there is none.
  size_t map() { return container(0x80, 0xde); }
  size_t array() { return container(0x90, 0xdc); }

  std::string_view text() {
    const uint8_t tag = byte();
    uint64_t size = 0;
    if ((tag & 0xe0) == 0xa0) {
      size = tag & 0x1f;
    } else if (tag >= 0xd9 && tag <= 0xdb) {
      size = big_endian(1U << (tag - 0xd9));
    } else {
      failed_ = true;
    }
    const Bytes bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// An unsigned integer, or a signed one that is not negative.
  uint64_t number() {
    const uint8_t tag = byte();
    if (tag < 0x80) {
      return tag;
    }
    if (tag >= 0xcc && tag <= 0xcf) {
      return big_endian(1U << (tag - 0xcc));
    }
    if (tag >= 0xd0 && tag <= 0xd3) {
      const unsigned bytes = 1U << (tag - 0xd0);
      const uint64_t value = big_endian(bytes);
      if (value >> (8 * bytes - 1) == 0) {
        return value;
      }
    }
    failed_ = true;
    return 0;
  }

  /// Passes over a value of any kind.
  void skip(size_t depth = 0) {
    if (depth > kMostMetadataDepth || rest_.empty()) {
      failed_ = true;
      return;
    }
    const auto tag = static_cast<uint8_t>(rest_.front());
    const bool is_map = (tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf;
    const bool is_array = (tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd;
    if (is_map || is_array) {
      const size_t count = is_map ? 2 * map() : array();
      for (size_t i = 0; i < count && !failed_; ++i) {
        skip(depth + 1);
      }
    } else if ((tag & 0xe0) == 0xa0 || (tag >= 0xd9 && tag <= 0xdb)) {
      text();
    } else {
      byte();
      if (tag >= 0xc4 && tag <= 0xc6) {  // binary
        take(big_endian(1U << (tag - 0xc4)));
      } else if (tag >= 0xc7 && tag <= 0xc9) {  // extension: length, type, bytes
        take(big_endian(1U << (tag - 0xc7)) + 1);
      } else if (tag == 0xca || tag == 0xcb) {  // float, double
        take(tag == 0xca ? 4 : 8);
      } else if (tag >= 0xcc && tag <= 0xd3) {  // integers
        take(1U << ((tag - 0xcc) % 4));
      } else if (tag >= 0xd4 && tag <= 0xd8) {  // extensions of fixed length
        take((1U << (tag - 0xd4)) + 1);
      } else if (tag == 0xc1) {
        failed_ = true;
      }
    }
  }

 private:
  Bytes take(uint64_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const Bytes taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  uint8_t byte() {
    const Bytes taken = take(1);
    return taken.empty() ? 0 : static_cast<uint8_t>(taken.front());
  }
  uint64_t big_endian(unsigned bytes) {
    uint64_t value = 0;
    for (const std::byte each : take(bytes)) {
      value = value << 8 | static_cast<uint8_t>(each);
    }
    return value;
  }
  size_t container(uint8_t fixed, uint8_t tag16) {
    const uint8_t tag = byte();
    if ((tag & 0xf0) == fixed) {
      return tag & 0xf;
    }
    if (tag != tag16 && tag != tag16 + 1) {
      failed_ = true;
      return 0;
    }
    const uint64_t count = big_endian(tag == tag16 ? 2 : 4);
    if (count > rest_.size()) {  // each element takes a byte at least
      failed_ = true;
      return 0;
    }
    return count;
  }

  Bytes rest_;
  bool failed_ = false;
};

/// What the metadata says of a kernel, before its symbol is looked up.
struct Described {
  Kernel kernel;
  std::string_view symbol;
  uint64_t wavefront = 0;
};

uint32_t small(MessagePack& in) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(in.number(), std::numeric_limits<uint32_t>::max()));
}

KernelArgument read_argument(MessagePack& in) {
  KernelArgument argument;
  for (size_t left = in.map(); left > 0 && !in.failed(); --left) {
    const std::string_view key = in.text();
    if (key == ".offset") {
      argument.offset = in.number();
    } else if (key == ".size") {
      argument.bytes = in.number();
    } else if (key == ".value_kind") {
      argument.kind = in.text();
    } else {
      in.skip();
    }
  }
  return argument;
}

Described read_kernel(MessagePack& in) {
  Described result;
  Kernel& kernel = result.kernel;
  for (size_t left = in.map(); left > 0 && !in.failed(); --left) {
    const std::string_view key = in.text();
    if (key == ".name") {
      kernel.name = in.text();
    } else if (key == ".symbol") {
      result.symbol = in.text();
    } else if (key == ".args") {
      for (size_t arguments = in.array(); arguments > 0 && !in.failed(); --arguments) {
        kernel.arguments.push_back(read_argument(in));
      }
    } else if (key == ".kernarg_segment_size") {
      kernel.argument_bytes = in.number();
    } else if (key == ".vgpr_count") {
      kernel.vgprs = small(in);
    } else if (key == ".agpr_count") {
      kernel.agprs = small(in);
    } else if (key == ".sgpr_count") {
      kernel.sgprs = small(in);
    } else if (key == ".vgpr_spill_count") {
      kernel.vgpr_spills = small(in);
    } else if (key == ".sgpr_spill_count") {
      kernel.sgpr_spills = small(in);
    } else if (key == ".group_segment_fixed_size") {
      kernel.lds_bytes = small(in);
    } else if (key == ".private_segment_fixed_size") {
      kernel.scratch_bytes = small(in);
    } else if (key == ".max_flat_workgroup_size") {
      kernel.max_workgroup_threads = small(in);
    } else if (key == ".wavefront_size") {
      result.wavefront = in.number();
    } else {
      in.skip();
    }
  }
  return result;
}

}  // namespace

/// Fills a CodeObject from the file's bytes.
class CodeObjectParser {
 public:
  CodeObjectParser(Bytes bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  Result<CodeObject> parse() {
    WEFT_TRY(read_header());
    WEFT_TRY(read_segments());
    WEFT_TRY(read_sections());
    WEFT_TRY(read_notes());
    return std::move(object_);
  }

 private:
  Error wrong(std::string_view what) const {
    return input_error(fmt::format("{} is no usable code object: {}", name_, what));
  }

  Status read_header() {
    const auto header = load<ElfHeader>(bytes_, 0);
    if (!header || std::memcmp(header->ident, "\177ELF", 4) != 0) {
      return wrong(fmt::format("its {} bytes do not begin with an ELF header", bytes_.size()));
    }
    header_ = *header;
    if (header_.ident[4] != 2 || header_.ident[5] != 1 || header_.type != kElfSharedObject ||
        header_.machine != kMachineAmdGpu || header_.ident[7] != kOsAmdHsa) {
      return wrong(fmt::format(
          "it is an ELF file of machine {}, type {}, where a shared object for AMD GPUs "
          "(machine {}) is needed",
          header_.machine, header_.type, kMachineAmdGpu));
    }
    const uint32_t mach = header_.flags & 0xff;
    if (mach != kMachGfx942 && mach != kMachGfx950) {
      return wrong(
          fmt::format("it is for the AMD processor number {:#x}, not for gfx942 or gfx950", mach));
    }
    object_.target_ = mach == kMachGfx942 ? Target::gfx942 : Target::gfx950;
    return {};
  }

  Status read_segments() {
    if (header_.segment_bytes != sizeof(ElfSegment)) {
      return wrong(fmt::format("its program headers have {} bytes each, not {}",
                               header_.segment_bytes, sizeof(ElfSegment)));
    }
    for (uint64_t i = 0; i < header_.segment_count; ++i) {
      const auto segment =
          load<ElfSegment>(bytes_, header_.segments_offset + i * sizeof(ElfSegment));
      if (!segment) {
        return wrong(fmt::format("its program header {} lies beyond its end", i));
      }
      const auto content = slice(bytes_, segment->offset, segment->file_bytes);
      if (segment->type == kSegmentLoad) {
        if (!content || segment->memory_bytes < segment->file_bytes ||
            segment->address > kMostImageBytes || segment->memory_bytes > kMostImageBytes) {
          return wrong(fmt::format(
              "its segment {} ({} bytes at {:#x} of the file, {} at {:#x} of "
              "memory) is cut short or too large",
              i, segment->file_bytes, segment->offset, segment->memory_bytes, segment->address));
        }
        object_.segments_.push_back({.address = segment->address,
                                     .bytes = *content,
                                     .memory_bytes = segment->memory_bytes,
                                     .writable = (segment->flags & kSegmentWritable) != 0,
                                     .executable = (segment->flags & kSegmentExecutable) != 0});
        object_.image_bytes_ =
            std::max(object_.image_bytes_, segment->address + segment->memory_bytes);
      } else if (segment->type == kSegmentNote) {
        if (!content) {
          return wrong(fmt::format("its notes ({} bytes at {:#x}) lie beyond its end",
                                   segment->file_bytes, segment->offset));
        }
        notes_.push_back(*content);
      }
    }
    return {};
  }

  Status read_sections() {
    if (header_.section_count == 0) {
      return wrong("it has no sections");
    }
    std::vector<ElfSection> headers;
    for (uint64_t i = 0; i < header_.section_count; ++i) {
      const auto section =
          load<ElfSection>(bytes_, header_.sections_offset + i * sizeof(ElfSection));
      if (!section || header_.section_bytes != sizeof(ElfSection)) {
        return wrong(fmt::format("its section header {} lies beyond its end", i));
      }
      headers.push_back(*section);
    }
    const auto content = [&](uint64_t index) -> std::optional<Bytes> {
      if (index >= headers.size()) {
        return std::nullopt;
      }
      const ElfSection& section = headers[index];
      return section.type == kSectionNoBits ? Bytes{}
                                            : slice(bytes_, section.offset, section.bytes);
    };
    const auto names = content(header_.names_section);
    for (uint64_t i = 0; i < headers.size(); ++i) {
      const auto name = names ? text_at(*names, headers[i].name) : std::nullopt;
      const auto bytes = content(i);
      if (!name || !bytes) {
        return wrong(fmt::format("its section {} has no name or lies beyond its end", i));
      }
      object_.sections_.push_back({*name, {headers[i].address, *bytes}});
      if (headers[i].type == kSectionDynamicSymbols) {
        const auto strings = content(headers[i].link);
        if (!strings) {
          return wrong("its symbols have no names");
        }
        WEFT_TRY(read_symbols(*bytes, *strings));
      }
    }
    for (uint64_t i = 0; i < headers.size(); ++i) {
      if (headers[i].type == kSectionRela) {
        WEFT_TRY(read_relocations(object_.sections_[i].section.bytes));
      }
    }
    return {};
  }

  Status read_symbols(Bytes bytes, Bytes strings) {
    for (uint64_t at = 0; at + sizeof(ElfSymbol) <= bytes.size(); at += sizeof(ElfSymbol)) {
      const auto symbol = *load<ElfSymbol>(bytes, at);
      const auto name = text_at(strings, symbol.name);
      if (!name) {
        return wrong(fmt::format("its symbol {} has no name", at / sizeof(ElfSymbol)));
      }
      const unsigned type = symbol.info & 0xf;
      object_.symbols_.push_back({.name = *name,
                                  .address = symbol.value,
                                  .bytes = symbol.bytes,
                                  .kind = type == 1   ? Symbol::Kind::data
                                          : type == 2 ? Symbol::Kind::code
                                                      : Symbol::Kind::other});
    }
    return {};
  }

  Status read_relocations(Bytes bytes) {
    for (uint64_t at = 0; at + sizeof(ElfRela) <= bytes.size(); at += sizeof(ElfRela)) {
      const auto entry = *load<ElfRela>(bytes, at);
      const uint64_t symbol = entry.info >> 32;
      // The widest that a relocation writes is 8 bytes.
      if (entry.offset > object_.image_bytes_ || object_.image_bytes_ - entry.offset < 8 ||
          (symbol != 0 && symbol >= object_.symbols_.size())) {
        return wrong(
            fmt::format("its relocation at {:#x} lies outside of what is loaded", entry.offset));
      }
      object_.relocations_.push_back(
          {.address = entry.offset,
           .type = static_cast<uint32_t>(entry.info),
           .symbol_address = symbol == 0 ? 0 : object_.symbols_[symbol].address,
           .addend = entry.addend});
    }
    return {};
  }

  /// The bytes at an address, from the file; nullopt: not all of them are there.
  std::optional<Bytes> loaded(uint64_t address, uint64_t size) const {
    for (const Segment& segment : object_.segments_) {
      if (address >= segment.address) {
        if (const auto bytes = slice(segment.bytes, address - segment.address, size)) {
          return bytes;
        }
      }
    }
    return std::nullopt;
  }

  Status read_notes() {
    bool found = false;
    for (Bytes rest : notes_) {
      const auto padded = [](uint64_t size) { return (size + 3) / 4 * 4; };
      while (!rest.empty()) {
        const auto note = load<ElfNote>(rest, 0);
        const auto name = note ? slice(rest, sizeof(ElfNote), note->name_bytes) : std::nullopt;
        const uint64_t start = note ? sizeof(ElfNote) + padded(note->name_bytes) : 0;
        const auto content = note ? slice(rest, start, note->content_bytes) : std::nullopt;
        if (!name || !content) {
          return wrong("a note is longer than the notes");
        }
        if (note->type == kNoteMetadata && text_at(*name, 0) == "AMDGPU") {
          found = true;
          WEFT_TRY(read_metadata(*content));
        }
        rest = rest.subspan(std::min(start + padded(note->content_bytes), rest.size()));
      }
    }
    return found ? Status() : wrong("it has no AMDGPU metadata note");
  }

  Status read_metadata(Bytes bytes) {
    MessagePack in(bytes);
    std::vector<Described> described;
    for (size_t left = in.map(); left > 0 && !in.failed(); --left) {
      const std::string_view key = in.text();
      if (key == "amdhsa.printf") {
        for (size_t formats = in.array(); formats > 0 && !in.failed(); --formats) {
          object_.printf_formats_.push_back(in.text());
        }
      } else if (key == "amdhsa.kernels") {
        for (size_t kernels = in.array(); kernels > 0 && !in.failed(); --kernels) {
          described.push_back(read_kernel(in));
        }
      } else {
        in.skip();
      }
    }
    if (in.failed()) {
      return wrong("its metadata note is damaged");
    }
    for (Described& each : described) {
      WEFT_TRY(add_kernel(each));
    }
    return {};
  }

  Status add_kernel(Described& described) {
    Kernel& kernel = described.kernel;
    const auto complain = [&](std::string_view what) {
      return wrong(fmt::format("the metadata of kernel '{}' {}", kernel.name, what));
    };
    if (described.wavefront != kWaveLanes) {
      return complain(
          fmt::format("says that its waves have {} lanes, not 64", described.wavefront));
    }
    if (kernel.max_workgroup_threads == 0 || kernel.max_workgroup_threads > kMaxWorkgroupThreads) {
      return complain(fmt::format("says that its workgroups have up to {} threads, not 1 to {}",
                                  kernel.max_workgroup_threads, kMaxWorkgroupThreads));
    }
    if (kernel.vgprs > kVectorRegisters || kernel.agprs > kernel.vgprs || kernel.sgprs > 128) {
      return complain(fmt::format("says {} VGPRs, {} AGPRs and {} SGPRs, more than there are",
                                  kernel.vgprs, kernel.agprs, kernel.sgprs));
    }
    if (kernel.lds_bytes > limits_of(object_.target_).lds_bytes) {
      return complain(fmt::format("asks for {} bytes of LDS, of which {} has {}", kernel.lds_bytes,
                                  name_of(object_.target_), limits_of(object_.target_).lds_bytes));
    }
    // Arguments are at most a page; the compiler's own limit is 4 KiB.
    if (kernel.argument_bytes > 65536) {
      return complain(fmt::format("says {} bytes of arguments", kernel.argument_bytes));
    }
    for (const KernelArgument& argument : kernel.arguments) {
      if (argument.offset > kernel.argument_bytes ||
          argument.bytes > kernel.argument_bytes - argument.offset) {
        return complain(fmt::format("puts an argument of {} bytes at {} of {}", argument.bytes,
                                    argument.offset, kernel.argument_bytes));
      }
    }
    const auto symbol = std::find_if(object_.symbols_.begin(), object_.symbols_.end(),
                                     [&](const Symbol& s) { return s.name == described.symbol; });
    const auto bytes =
        symbol == object_.symbols_.end() ? std::nullopt : loaded(symbol->address, 64);
    if (!bytes) {
      return complain(
          fmt::format("names the descriptor '{}', which is not there", described.symbol));
    }
    kernel.descriptor = symbol->address;
    std::memcpy(kernel.descriptor_bytes.data(), bytes->data(), 64);
    const auto entry_offset = *load<int64_t>(*bytes, 16);  // kernel_code_entry_byte_offset
    kernel.entry = kernel.descriptor + static_cast<uint64_t>(entry_offset);
    const bool is_code = std::any_of(
        object_.segments_.begin(), object_.segments_.end(), [&](const Segment& segment) {
          return segment.executable && kernel.entry >= segment.address &&
                 kernel.entry - segment.address < segment.bytes.size();
        });
    if (!is_code || kernel.entry % 4 != 0) {
      return complain(fmt::format("leads to code at {:#x}, where there is none", kernel.entry));
    }
    object_.kernels_.push_back(std::move(kernel));
    return {};
  }

  Bytes bytes_;
  std::string_view name_;
  ElfHeader header_{};
  std::vector<Bytes> notes_;
  CodeObject object_;
};

Result<CodeObject> CodeObject::parse(std::span<const std::byte> bytes, std::string_view name) {
  return CodeObjectParser(bytes, name).parse();
}

const Kernel* CodeObject::kernel(std::string_view name) const {
  const auto found = std::find_if(kernels_.begin(), kernels_.end(),
                                  [&](const Kernel& kernel) { return kernel.name == name; });
  return found == kernels_.end() ? nullptr : &*found;
}

Section CodeObject::section(std::string_view name) const {
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [&](const NamedSection& each) { return each.name == name; });
  return found == sections_.end() ? Section{} : found->section;
}

int waves_per_simd(const Kernel& kernel, Target target, int threads, int64_t dynamic_lds) {
  const Limits limits = limits_of(target);
  const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  const int64_t waves = up(threads, kWaveLanes) / kWaveLanes;  // of a workgroup
  if (waves == 0) {
    return 0;
  }
  // Registers come in eights. 800 SGPRs are shared by a SIMD's waves, in sixteens.
  const int64_t by_vgprs = kVectorRegisters / up(std::max<int64_t>(kernel.vgprs, 1), 8);
  const int64_t by_sgprs = 800 / up(std::max<int64_t>(kernel.sgprs, 1), 16);
  const int64_t by_registers = std::min<int64_t>({kWavesPerSimd, by_vgprs, by_sgprs});
  const int64_t lds = up(kernel.lds_bytes + dynamic_lds, limits.lds_granule);
  const int64_t by_lds = lds == 0 ? kSimds * kWavesPerSimd : limits.lds_bytes / lds;
  // Workgroups are resident whole, and a compute unit spreads their waves over its SIMDs.
  const int64_t groups = std::min(by_registers * kSimds / waves, by_lds);
  return static_cast<int>(up(groups * waves, kSimds) / kSimds);
}

}  // namespace weft::cdna
