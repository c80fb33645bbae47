// Anonymous memory from the system: zeroed, page-aligned, backed by RAM only where it is touched,
// so a KV cache can be as long as the model allows and cost what the sequence uses.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace weft {

/// Gives the whole pages of this memory back to the system: a mapped file's are read again when
/// they are touched, others are zeros then.
void release_pages(std::span<const std::byte> memory);

class Pages {
 public:
  Pages() = default;
  /// `huge`: ask for 2 MiB pages: fewer TLB misses on streams, but a touch costs 2 MiB of RAM.
  /// Error (device): the system has no such range left; the sentence says how much was asked for.
  static Result<Pages> allocate(size_t bytes, bool huge = false);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
