#include "base/pages.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace weft {

void release_pages(std::span<const std::byte> memory) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(memory.data() + memory.size()) / page * page;
  if (begin < end) {
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

Result<Pages> Pages::allocate(size_t bytes, bool huge) {
  Pages pages;
  if (bytes == 0) {
    return pages;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return device_error(fmt::format("cannot reserve {:.1f} MB of memory: {}",
                                    static_cast<double>(bytes) / 1e6, std::strerror(errno)));
  }
  (void)madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // a refusal only costs speed
  pages.data_ = static_cast<std::byte*>(data);
  pages.size_ = bytes;
  return pages;
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

}  // namespace weft
