// Files: read whole as text, or mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace weft {

/// A regular file mapped read-only; unmapped when the last owner lets go. Pages come from the page
/// cache, so processes that map the same weights share them. A file that somebody truncates while
/// it is mapped takes the process down on the next access (SIGBUS), as with every mapping.
class MappedFile {
 public:
  /// Errors (input): no such file, not a regular file, not readable, address space exhausted.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Tells the kernel that all of the file is read soon and again and again: starts reading what is
  /// not cached, and asks for huge pages where the file system has them. Only advice: never fails.
  void prefetch() const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;  // null when the file is empty
  size_t size_ = 0;
};

/// Reads a regular file of at most `limit` bytes. Errors (input): as MappedFile::open; too long.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit);

}  // namespace weft
