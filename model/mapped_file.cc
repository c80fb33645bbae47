#include "model/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace weft {
namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return input_error(fmt::format("{}: cannot be opened: {}", path.string(), reason()));
  }
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file);
    return input_error(fmt::format("{}: is not a regular file", path.string()));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    ::close(file);
    return MappedFile(nullptr, 0);
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const std::string why = data == MAP_FAILED ? reason() : "";
  ::close(file);  // the mapping holds the file
  if (data == MAP_FAILED) {
    return input_error(fmt::format("{}: {} bytes cannot be mapped: {}", path.string(), size, why));
  }
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::prefetch() const {
  if (data_ == nullptr) {
    return;
  }
  void* data = const_cast<std::byte*>(data_);
  ::madvise(data, size_, MADV_HUGEPAGE);
  ::madvise(data, size_, MADV_WILLNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
  WEFT_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > limit) {
    return input_error(fmt::format("{}: is {} bytes long, at most {} are read", path.string(),
                                   bytes.size(), limit));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace weft
