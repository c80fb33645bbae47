#include "sim/offload_bundle.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::sim {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kElf(
    "\x7f"
    "ELF");
constexpr std::string_view kBundle("__CLANG_OFFLOAD_BUNDLE__");
constexpr std::string_view kCompressed("CCOB");
// No program's code comes near these; what exceeds them is damage.
constexpr uint64_t kMostEntries = 1024;
constexpr uint64_t kMostNameBytes = 4096;
constexpr uint64_t kMostDecompressed = uint64_t{1} << 30;

bool begins(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

/// A T at an offset; nullopt: it does not lie inside.
template <class T>
std::optional<T> load(Bytes bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) {
    return std::nullopt;
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// offset + bytes, or the largest number where that is none.
uint64_t end_of(uint64_t offset, uint64_t bytes) {
  return bytes > std::numeric_limits<uint64_t>::max() - offset
             ? std::numeric_limits<uint64_t>::max()
             : offset + bytes;
}

/// Where an ELF file ends: the furthest of its header, its tables, and what they name.
uint64_t elf_bytes(Bytes readable) {
  constexpr uint64_t kHeader = 64;
  constexpr uint32_t kNoBits = 8;
  const auto segments = load<uint64_t>(readable, 32);
  const auto sections = load<uint64_t>(readable, 40);
  const auto counts = load<std::array<uint16_t, 4>>(readable, 54);  // size and number of either
  if (!segments || !sections || !counts) {
    return readable.size();
  }
  uint64_t end = kHeader;
  const auto table = [&](uint64_t offset, uint64_t each, uint64_t count, auto end_of_entry) {
    if (count == 0 || offset == 0) {
      return;
    }
    end = std::max(end, end_of(offset, each * count));
    for (uint64_t k = 0; k < count; ++k) {
      end = std::max(end, end_of_entry(end_of(offset, k * each)));
    }
  };
  table(*segments, (*counts)[0], (*counts)[1], [&](uint64_t at) {
    const auto offset = load<uint64_t>(readable, end_of(at, 8));
    const auto bytes = load<uint64_t>(readable, end_of(at, 32));
    return offset && bytes ? end_of(*offset, *bytes) : 0;
  });
  table(*sections, (*counts)[2], (*counts)[3], [&](uint64_t at) {
    const auto type = load<uint32_t>(readable, end_of(at, 4));
    const auto offset = load<uint64_t>(readable, end_of(at, 24));
    const auto bytes = load<uint64_t>(readable, end_of(at, 32));
    return type && offset && bytes && *type != kNoBits ? end_of(*offset, *bytes) : 0;
  });
  return end;
}

struct Entry {
  std::string_view name;  ///< "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-"
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
/// The table at the beginning of a bundle; false: it does not lie inside.
bool read_entries(Bytes bundle, std::vector<Entry>& entries) {
  const auto count = load<uint64_t>(bundle, kBundle.size());
  if (!count || *count > kMostEntries) {
    return false;
  }
  uint64_t at = kBundle.size() + 8;
  for (uint64_t k = 0; k < *count; ++k) {
    const auto header = load<std::array<uint64_t, 3>>(bundle, at);
    if (!header || (*header)[2] > kMostNameBytes || bundle.size() - at - 24 < (*header)[2]) {
      return false;
    }
    const auto* name = reinterpret_cast<const char*>(bundle.data() + at + 24);
    entries.push_back({{name, (*header)[2]}, (*header)[0], (*header)[1]});
    at += 24 + (*header)[2];
  }
  return true;
}

/// The header of a compressed bundle, versions 1 to 3.
struct CompressedHeader {
  uint16_t method = 0;
  uint64_t file_bytes = 0;  ///< 0: version 1 does not say
  uint64_t bytes = 0;       ///< decompressed
  uint64_t header_bytes = 0;
};
std::optional<CompressedHeader> read_compressed(Bytes image) {
  const auto version = load<uint16_t>(image, 4);
  const auto method = load<uint16_t>(image, 6);
  if (!version || !method || *version < 1 || *version > 3) {
    return std::nullopt;
  }
  CompressedHeader header;
  header.method = *method;
  if (*version == 3) {
    const auto sizes = load<std::array<uint64_t, 2>>(image, 8);
    header.file_bytes = sizes ? (*sizes)[0] : 0;
    header.bytes = sizes ? (*sizes)[1] : 0;
    header.header_bytes = 32;
  } else if (*version == 2) {
    const auto sizes = load<std::array<uint32_t, 2>>(image, 8);
    header.file_bytes = sizes ? (*sizes)[0] : 0;
    header.bytes = sizes ? (*sizes)[1] : 0;
    header.header_bytes = 24;
  } else {
    header.bytes = load<uint32_t>(image, 8).value_or(0);
    header.header_bytes = 20;
  }
  if (image.size() < header.header_bytes) {
    return std::nullopt;
  }
  return header;
}

/// Both append what comes out, at most `most` bytes; false: the data are damaged or longer.
bool decompress_zlib(Bytes from, uint64_t most, std::vector<std::byte>& to) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) {
    return false;
  }
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> owner(&stream, &inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(from.data()));
  stream.avail_in = static_cast<uInt>(std::min<size_t>(from.size(), 1U << 31));
  std::vector<std::byte> chunk(1 << 16);
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    state = inflate(&stream, Z_NO_FLUSH);
    const size_t made = chunk.size() - stream.avail_out;
    if (made > most - to.size()) {
      return false;
    }
    to.insert(to.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(made));
  }
  return state == Z_STREAM_END;
}
bool decompress_zstd(Bytes from, uint64_t most, std::vector<std::byte>& to) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  if (stream == nullptr) {
    return false;
  }
  ZSTD_inBuffer in{from.data(), from.size(), 0};
  std::vector<std::byte> chunk(1 << 16);
  for (size_t left = 1; left != 0;) {
    ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
    const size_t before = in.pos;
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0 || out.pos > most - to.size() ||
        (left != 0 && out.pos == 0 && in.pos == before)) {
      return false;
    }
    to.insert(to.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(out.pos));
  }
  return true;
}

/// The bundle in a compressed one.
Result<Bytes> decompress(Bytes image, std::vector<std::byte>& storage) {
  enum : uint16_t { kZlib = 0, kZstd = 1 };  // llvm::compression::Format
  const auto header = read_compressed(image);
  if (!header || (header->method != kZlib && header->method != kZstd)) {
    return input_error(
        "The compressed offload bundle has a header that is damaged or of an unknown version.");
  }
  if (header->bytes > kMostDecompressed) {
    return input_error(fmt::format(
        "The compressed offload bundle says that it holds {} bytes; at most {} are possible.",
        header->bytes, kMostDecompressed));
  }
  const Bytes data = image.subspan(header->header_bytes);
  storage.clear();
  const bool whole = header->method == kZlib ? decompress_zlib(data, header->bytes, storage)
                                             : decompress_zstd(data, header->bytes, storage);
  if (!whole || storage.size() != header->bytes) {
    return input_error(
        "The compressed offload bundle is damaged: its data do not decompress to as many bytes as "
        "its header says.");
  }
  return Bytes(storage);
}

/// Whether an entry's code runs on the target: its processor, without replayed page faults.
bool is_for(std::string_view entry, Target target) {
  const size_t begin = entry.rfind("--");
  if (!entry.starts_with("hip") || begin == std::string_view::npos) {
    return false;
  }
  const std::string_view id = entry.substr(begin + 2);
  return id.substr(0, id.find(':')) == cdna::name_of(target) &&
         id.find(":xnack+") == std::string_view::npos;
}

}  // namespace

std::span<const std::byte> image_at(std::span<const std::byte> readable) {
  uint64_t bytes = 0;
  if (begins(readable, kElf)) {
    bytes = elf_bytes(readable);
  } else if (begins(readable, kBundle)) {
    std::vector<Entry> entries;
    bytes = read_entries(readable, entries) ? kBundle.size() + 8 : readable.size();
    for (const Entry& entry : entries) {
      const auto names = static_cast<uint64_t>(
          reinterpret_cast<const std::byte*>(entry.name.data() + entry.name.size()) -
          readable.data());
      bytes = std::max({bytes, names, end_of(entry.offset, entry.bytes)});
    }
  } else if (begins(readable, kCompressed)) {
    const auto header = read_compressed(readable);
    bytes = header && header->file_bytes != 0 ? header->file_bytes : readable.size();
  }
  return readable.first(std::min<uint64_t>(bytes, readable.size()));
}

std::span<const std::byte> readable_from(const void* address) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  uint64_t end = begin;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {  // "7f12a000-7f12b000 r-xp ...", in the order of addresses
    char* rest = nullptr;
    const uint64_t from = std::strtoull(line.c_str(), &rest, 16);
    if (*rest != '-') {
      continue;
    }
    const uint64_t to = std::strtoull(rest + 1, &rest, 16);
    if (to <= end) {
      continue;
    }
    if (from > end || rest[0] != ' ' || rest[1] != 'r') {
      break;
    }
    end = to;
  }
  return {static_cast<const std::byte*>(address), static_cast<size_t>(end - begin)};
}

Result<std::span<const std::byte>> code_object_in(std::span<const std::byte> image, Target target,
                                                  std::vector<std::byte>& storage) {
  if (begins(image, kCompressed)) {
    WEFT_ASSIGN(image, decompress(image, storage));
  }
  if (!begins(image, kBundle)) {
    return image;
  }
  std::vector<Entry> entries;
  if (!read_entries(image, entries)) {
    return input_error("The offload bundle is damaged: its table of entries reaches beyond it.");
  }
  std::string names;
  for (const Entry& entry : entries) {
    if (!is_for(entry.name, target)) {
      names += (names.empty() ? "" : ", ") + std::string(entry.name);
      continue;
    }
    if (entry.offset > image.size() || image.size() - entry.offset < entry.bytes) {
      return input_error(
          fmt::format("The offload bundle is damaged: its entry for {} reaches beyond it.",
                      cdna::name_of(target)));
    }
    return image.subspan(entry.offset, entry.bytes);
  }
  return input_error(fmt::format("The offload bundle has no code for {}, only {}.",
                                 cdna::name_of(target), names.empty() ? "nothing" : names));
}

}  // namespace weft::sim
