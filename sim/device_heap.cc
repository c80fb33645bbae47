#include "sim/device_heap.h"

#include "base/divide.h"
#include "sim/memory.h"

namespace weft::sim {
namespace {

constexpr size_t kBookkeepingBytes = 128 << 10;
constexpr Placement kPlacement{kHost, Grain::fine};
constexpr uint64_t kPieceAlignment = 2 << 20;  // by which the library knows a piece's beginning

}  // namespace

DeviceHeap::~DeviceHeap() {
  for (const auto& [piece, allocation] : pieces_) {
    (void)memory_.free(allocation);
  }
  if (bookkeeping_ != 0) {
    (void)memory_.free(bookkeeping_);
  }
}

Result<uint64_t> DeviceHeap::bookkeeping() {
  const std::lock_guard lock(mutex_);
  if (bookkeeping_ == 0) {
    WEFT_ASSIGN(bookkeeping_, memory_.allocate(kBookkeepingBytes, kPlacement));
  }
  return bookkeeping_;
}

uint64_t DeviceHeap::give(uint64_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX - kPieceAlignment) {
    return 0;
  }
  const Result<uint64_t> allocation = memory_.allocate(bytes + kPieceAlignment, kPlacement);
  if (!allocation.ok()) {
    return 0;
  }
  const uint64_t piece = round_up(allocation.value(), kPieceAlignment);
  const std::lock_guard lock(mutex_);
  pieces_[piece] = allocation.value();
  return piece;
}

void DeviceHeap::take(uint64_t address) {
  const std::lock_guard lock(mutex_);
  if (const auto found = pieces_.find(address); found != pieces_.end()) {
    (void)memory_.free(found->second);
    pieces_.erase(found);
  }
}

}  // namespace weft::sim
