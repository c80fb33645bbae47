// The safetensors format: 8 bytes of little-endian header length, a JSON header that names each
// tensor's dtype, shape and place, then the tensors' bytes. Files are taken to be hostile.
// Source: github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"

namespace weft {

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;      ///< the format's name: "BF16", "F8_E4M3", "I64", ...
  std::vector<int64_t> shape;  ///< no dimension: a scalar
  uint64_t offset = 0;         ///< of its first byte in the file; need not be aligned
  uint64_t bytes = 0;          ///< as dtype and shape make it
};

/// The tensors of a file, in the order of their bytes. `name` is for messages.
/// What is accepted is what the format's own library accepts. Errors (input): a file too short for
/// its header, a header longer than 100 MB or the file; not JSON, an unknown, missing or repeated
/// key or tensor, an unknown dtype (those known are listed), more than 16 dimensions, a size that
/// overflows 64 bits; a place that is reversed, outside the file, not the size that dtype and shape
/// make, overlapping another or leaving a hole; bytes after the last tensor.
Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                        const std::string& name);

/// Header of a file with these tensors, one behind the other in this order (offsets are ignored):
/// length, JSON, and spaces up to a multiple of 64 bytes, so that the data starts aligned.
std::string make_safetensors_header(std::span<const SafetensorsEntry> tensors);

/// A mapped file and its tensors.
class SafetensorsFile {
 public:
  /// Errors (input): as MappedFile::open and parse_safetensors.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  /// Null when there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const;
  const std::byte* data(const SafetensorsEntry& entry) const {
    return file_.bytes().data() + entry.offset;
  }
  /// By name.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::string& name() const { return name_; }
  const MappedFile& file() const { return file_; }

 private:
  SafetensorsFile(std::string name, MappedFile file, std::vector<SafetensorsEntry> entries)
      : name_(std::move(name)), file_(std::move(file)), entries_(std::move(entries)) {}

  std::string name_;
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;  // by name
};

}  // namespace weft
