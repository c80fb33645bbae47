#include "sim/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "base/check.h"
#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGap = 64 << 10;  // after each allocation, never accessible
constexpr uint64_t kLine = 128;
constexpr uint64_t kHostCapacity = uint64_t{2} << 40;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Where Memory counts the bytes of a home.
size_t slot_of(int home) {
  const int slot = home - kHost;
  return static_cast<size_t>(slot);
}

}  // namespace

Memory::~Memory() {
  for (const auto& [begin, allocation] : live_) {
    unmap(allocation.mapping);
  }
}

void Memory::unmap(const Mapping& mapping) {
  ::munmap(reinterpret_cast<void*>(mapping.begin), mapping.bytes);
}

int Memory::add_device(uint64_t capacity) {
  const std::unique_lock lock(mutex_);
  WEFT_CHECK(devices_ < kMaxDevices);
  capacity_[static_cast<size_t>(devices_)] = capacity;
  return devices_++;
}

Result<uint64_t> Memory::allocate(size_t bytes, Placement placement) {
  const size_t size = std::max<size_t>(bytes, 1);
  const std::unique_lock lock(mutex_);
  const bool on_host = placement.home == kHost;
  const uint64_t capacity =
      on_host ? kHostCapacity : capacity_[static_cast<size_t>(placement.home)];
  uint64_t& used = used_[slot_of(placement.home)];
  if (size > capacity - std::min(used, capacity)) {
    return device_error(
        (on_host ? "The host of the simulated GPU has " : "The simulated GPU has ") +
        std::to_string(capacity) + " bytes of memory, " + std::to_string(used) +
        " are in use and " + std::to_string(bytes) + " more do not fit.");
  }
  // The bytes, a gap, their shadow, a gap.
  const size_t pages = whole_pages(size);
  const size_t shadow = whole_pages(shadow_bytes(size));
  const size_t mapped = pages + kGap + shadow + kGap;
  void* place =
      ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto opened = [&](size_t at, size_t length) {
    return ::mprotect(static_cast<std::byte*>(place) + at, length, PROT_READ | PROT_WRITE) == 0;
  };
  if (place == MAP_FAILED || !opened(0, pages) || !opened(pages + kGap, shadow)) {
    if (place != MAP_FAILED) {
      ::munmap(place, mapped);
    }
    return device_error("The host has no " + std::to_string(bytes) +
                        " bytes of memory left for the simulated GPU.");
  }
  const auto begin = reinterpret_cast<uint64_t>(place);
  void* shadow_begin = static_cast<std::byte*>(place) + pages + kGap;
  live_.emplace(
      begin, Allocation{begin + size, {begin, mapped}, shadow_at(shadow_begin, size), placement});
  used += size;
  return begin;
}

Status Memory::add(uint64_t address, size_t bytes, Placement placement) {
  const std::unique_lock lock(mutex_);
  const auto after = live_.upper_bound(address);
  if (bytes == 0 || address + bytes < address ||
      (after != live_.end() && after->first < address + bytes) ||
      (after != live_.begin() && std::prev(after)->second.end > address)) {
    return usage_error("Part of the " + std::to_string(bytes) +
                       " bytes to be made memory of the simulated GPU is that already.");
  }
  // It may begin and end within a line.
  const size_t mapped = whole_pages(shadow_bytes(bytes + kLine));
  void* shadow = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (shadow == MAP_FAILED) {
    return device_error("The host has no memory left to watch " + std::to_string(bytes) +
                        " bytes of its own.");
  }
  live_.emplace(address, Allocation{address + bytes,
                                    {reinterpret_cast<uint64_t>(shadow), mapped},
                                    shadow_at(shadow, bytes + kLine),
                                    placement});
  used_[slot_of(placement.home)] += bytes;
  return {};
}

Status Memory::free(uint64_t address) {
  const std::unique_lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) {
    return device_error("No allocation of the simulated GPU begins at the address to free.");
  }
  const Allocation& allocation = found->second;
  if (uses_ == 0) {
    unmap(allocation.mapping);
  } else {
    freed_.push_back(allocation.mapping);
  }
  used_[slot_of(allocation.placement.home)] -= allocation.end - address;
  live_.erase(found);
  return {};
}

Memory::Use::Use(Memory& memory) : memory_(memory) {
  const std::unique_lock lock(memory_.mutex_);
  ++memory_.uses_;
}

Memory::Use::~Use() {
  const std::unique_lock lock(memory_.mutex_);
  if (--memory_.uses_ == 0) {
    for (const Mapping& mapping : memory_.freed_) {
      unmap(mapping);
    }
    memory_.freed_.clear();
  }
}

bool Memory::find(uint64_t address, Range& range) const {
  const std::shared_lock lock(mutex_);
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) {
    return false;
  }
  --after;
  if (address >= after->second.end) {
    return false;
  }
  range = {after->first, after->second.end, after->second.placement, after->second.shadow};
  return true;
}

bool Memory::set_peer(int device, int home, bool reached) {
  std::atomic<uint32_t>& peers = peers_[static_cast<size_t>(device)];
  const uint32_t bit = 1U << home;
  const uint32_t before = reached ? peers.fetch_or(bit) : peers.fetch_and(~bit);
  return ((before & bit) != 0) != reached;
}

bool Memory::set_grain(uint64_t address, Grain grain) {
  const std::unique_lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) {
    return false;
  }
  found->second.placement.grain = grain;
  return true;
}

uint64_t Memory::capacity(int device) const {
  const std::shared_lock lock(mutex_);
  return capacity_[static_cast<size_t>(device)];
}

uint64_t Memory::used(int home) const {
  const std::shared_lock lock(mutex_);
  return used_[slot_of(home)];
}

std::string Memory::describe(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const auto after = live_.upper_bound(address);
  constexpr uint64_t kNear = 1 << 30;
  if (after != live_.begin()) {
    const auto before = std::prev(after);
    const uint64_t size = before->second.end - before->first;
    if (address < before->second.end) {
      return "at byte " + std::to_string(address - before->first) + " of an allocation of " +
             std::to_string(size) + " bytes";
    }
    if (address - before->second.end < kNear &&
        (after == live_.end() || address - before->second.end < after->first - address)) {
      return std::to_string(address - before->second.end) +
             " bytes past the end of an allocation of " + std::to_string(size) + " bytes";
    }
  }
  if (after != live_.end() && after->first - address < kNear) {
    return std::to_string(after->first - address) + " bytes before an allocation of " +
           std::to_string(after->second.end - after->first) + " bytes";
  }
  return "in no allocation";
}

Touched::Lines Touched::of(const Memory::Range& range) {
  const auto lines = [](const Bytes& bytes) {
    return Lines{bytes.read.get(), bytes.written.get()};
  };
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = allocations_.find(range.begin); found != allocations_.end()) {
      return lines(found->second);
    }
  }
  const std::unique_lock lock(mutex_);
  Bytes& bytes = allocations_[range.begin];
  if (bytes.read == nullptr) {
    bytes.count = static_cast<size_t>((range.end - 1) / kLine - range.begin / kLine + 1);
    // Pages of it that nobody touches are never there.
    for (auto* each : {&bytes.read, &bytes.written}) {
      each->reset(static_cast<uint8_t*>(std::calloc(bytes.count, 1)));
      if (*each == nullptr) {
        throw std::bad_alloc();
      }
    }
  }
  return lines(bytes);
}

void Touched::count(uint64_t& read, uint64_t& written) const {
  const std::shared_lock lock(mutex_);
  for (const auto& allocation : allocations_) {
    const Bytes& bytes = allocation.second;
    // In bytes that cannot overflow, which the compiler sums 64 at a time.
    constexpr size_t kAtOnce = 128;
    const auto count = [&](const uint8_t* lines) {
      uint64_t all = 0;
      for (size_t k = 0; k < bytes.count; k += kAtOnce) {
        uint8_t some = 0;
        const size_t end = std::min(bytes.count, k + kAtOnce);
        for (size_t line = k; line < end; ++line) {
          some = static_cast<uint8_t>(some + lines[line]);
        }
        all += some;
      }
      return all;
    };
    read += count(bytes.read.get()) * kLine;
    written += count(bytes.written.get()) * kLine;
  }
}

namespace {

constexpr uint64_t kEachByte = 0x0101010101010101;
/// Lines whose bytes are looked at together: as many as lanes in a row reach, as a rule.
constexpr uint64_t kTogether = 8;

/// Sets bytes that are 0 or 1 to 1. How many were 0.
uint64_t set_bytes(uint8_t* bytes, uint64_t count) {
  if (count == kTogether) [[likely]] {
    uint64_t eight = 0;
    std::memcpy(&eight, bytes, kTogether);
    if (eight == kEachByte) {
      return 0;
    }
    std::memcpy(bytes, &kEachByte, kTogether);
    return kTogether - static_cast<uint64_t>(std::popcount(eight));
  }
  uint64_t fresh = 0;
  for (uint64_t k = 0; k < count; ++k) {
    fresh += bytes[k] ^ 1U;
    bytes[k] = 1;
  }
  return fresh;
}

/// Whether one of some bytes has a value. Those behind the last one are there, too.
bool any_byte_is(uint8_t value, const uint8_t* bytes, uint64_t count) {
  for (;; bytes += kTogether, count -= kTogether) {
    uint64_t eight = 0;
    std::memcpy(&eight, bytes, kTogether);
    const uint64_t apart = eight ^ kEachByte * value;
    // The lowest of these bits is that of a byte which is 0.
    const uint64_t zero = (apart - kEachByte) & ~apart & 0x80 * kEachByte;
    if (count <= kTogether) {
      return (zero & (~uint64_t{0} >> (64 - 8 * count))) != 0;
    }
    if (zero != 0) {
      return true;
    }
  }
}

/// Marks lines as touched, and notes whether this launch stored in one of them.
inline void touch(Wave& wave, const ThreadCounts::Range& range, uint64_t address, size_t bytes,
                  bool read, bool write) {
  ThreadCounts& counts = *wave.group->counts;
  const uint64_t first = address / kLine - range.begin / kLine;
  const uint64_t lines = (address + bytes - 1) / kLine - address / kLine + 1;
  if (read) {
    counts.first_touches += set_bytes(range.touched.read + first, lines);
  }
  if (write) {
    counts.first_touches += set_bytes(range.touched.written + first, lines);
  }
  if (const LaunchOrder* order = wave.group->launch->order.get()) {
    for (uint64_t k = lines; write && k < 2 * lines; k += kTogether) {
      // The next wave's, as in reach_row().
      __builtin_prefetch(&range.shadow.writes[first + k], 1);
    }
    counts.written |= any_byte_is(order->era, range.shadow.written + first, lines);
  }
}

std::string hex(uint64_t x) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (; x != 0; x >>= 4) {
    text.insert(text.begin(), kDigits[x & 15]);
  }
  return "0x" + (text.empty() ? "0" : text);
}

/// Finds the allocation around an address that the launch's device reaches.
[[gnu::noinline]] bool search(Wave& wave, uint64_t address, ThreadCounts::Range& range) {
  Launch& launch = *wave.group->launch;
  Memory::Range found;
  if (!launch.memory->find(address, found) ||
      !launch.memory->reaches(launch.device, found.placement.home)) {
    return false;
  }
  static_cast<Memory::Range&>(range) = found;
  range.touched = launch.touched.of(found);
  return true;
}

/// The allocation around an address, if the launch's device reaches it: the one this instruction
/// last met, or a search. `read`: an aligned word that is read may be the last one's rest, as
/// compilers' atomics on bytes and halves take it.
inline bool range_of(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes,
                     bool read, ThreadCounts::Range*& range) {
  range = &wave.group->counts->ranges[instruction.ordinal % 64];
  if ((address < range->begin || address >= range->end) && !search(wave, address, *range))
      [[unlikely]] {
    return false;
  }
  return address + bytes <= range->end || (read && bytes == 4 && address % 4 == 0);
}

/// Says why range_of() found nothing. Scalar accesses are reported for the first lane.
void report_unreached(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes,
                      int lane) {
  const Launch& launch = *wave.group->launch;
  Memory::Range range;
  if (launch.memory->find(address, range) &&
      !launch.memory->reaches(launch.device, range.placement.home)) {
    const std::string home = std::to_string(range.placement.home);
    const std::string device = std::to_string(launch.device);
    report(wave, instruction, FindingKind::no_peer_access, lane,
           "address " + hex(address) + " is " + launch.memory->describe(address) + " in device " +
               home + ", which device " + device +
               " does not reach: call hipDeviceEnablePeerAccess(" + home + ", 0) with device " +
               device + " current");
    return;
  }
  report(wave, instruction, FindingKind::out_of_bounds, lane,
         "address " + hex(address) + " (" + std::to_string(bytes) + " bytes) is " +
             launch.memory->describe(address));
}

/// Lanes of `reached` one by one; those that reach nothing are taken out. The 64-byte segments
/// asked for: a lane that continues the lane before it asks for no new one.
uint64_t reach_each(Wave& wave, const Instruction& instruction, const uint64_t* addresses,
                    size_t size, bool read, bool write, uint64_t& reached) {
  ThreadCounts::Range* range = nullptr;
  uint64_t segments = 0;
  uint64_t last_segment = ~uint64_t{0};
  uint64_t last_line = ~uint64_t{0};
  for (uint64_t rest = reached; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t address = addresses[l];
    // An address near 2^64 is beyond the end, though its last byte's would not be.
    if ((range == nullptr || address < range->begin || address >= range->end ||
         address + size > range->end) &&
        !range_of(wave, instruction, address, size, read, range)) [[unlikely]] {
      report_unreached(wave, instruction, address, size, l);
      reached &= ~(uint64_t{1} << l);
      range = nullptr;
      continue;
    }
    const uint64_t first = address / 64;
    const uint64_t end = (address + size - 1) / 64;
    segments += end - first + (first == last_segment ? 0 : 1);
    last_segment = end;
    const uint64_t line = (address + size - 1) / kLine;
    if (line != last_line || address / kLine != line) {
      touch(wave, *range, address, size, read, write);
      last_line = line;
    }
  }
  return segments;
}

}  // namespace

void* reach_scalar(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes,
                   bool write) {
  ThreadCounts::Range* range = nullptr;
  if (!range_of(wave, instruction, address, bytes, !write, range)) {
    report_unreached(wave, instruction, address, bytes, 0);
    return nullptr;
  }
  wave.group->counts->written = false;
  touch(wave, *range, address, bytes, !write, write);
  watch_read(wave, &address, 1, bytes);
  if (!write) {
    note_scalar_load(wave, instruction, address, bytes);
  }
  return reinterpret_cast<void*>(address);
}

namespace {

void count_reached(Wave& wave, uint64_t lanes, uint64_t segments, int bytes, bool read,
                   bool write) {
  Counters& counters = wave.group->counts->counters;
  const auto count = static_cast<uint64_t>(~lanes == 0 ? kLanes : std::popcount(lanes));
  const uint64_t total = count * static_cast<uint64_t>(bytes);
  counters.global_bytes_read += read ? total : 0;
  counters.global_bytes_written += write ? total : 0;
  counters.global_requests += segments;
  counters.global_requests_least += std::min(segments, (total + 63) / 64);
}

}  // namespace

bool reach_row(Wave& wave, const Instruction& instruction, const LaneRow& row, int bytes, bool read,
               bool write) {
  ThreadCounts::Range* range = nullptr;
  if (!range_of(wave, instruction, row.begin, row.end - row.begin, read, range)) {
    return false;
  }
  // Waves come one after the other, and what the next one reaches mostly lies behind.
  const uint64_t behind = 2 * row.end - row.begin;
  if (write) {
#pragma GCC unroll 4
    for (uint64_t at = row.end; at < behind; at += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(at), 1);
    }
  } else {
#pragma GCC unroll 4
    for (uint64_t at = row.end; at < behind; at += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(at), 0);
    }
  }
  // Every line and segment between the first and the last is some lane's.
  touch(wave, *range, row.begin, row.end - row.begin, read, write);
  count_reached(wave, row.mask, (row.end - 1) / 64 - row.begin / 64 + 1, bytes, read, write);
  return true;
}

uint64_t reach_lanes(Wave& wave, const Instruction& instruction, const uint64_t* addresses,
                     uint64_t mask, int bytes, bool read, bool write, LaneRow& row) {
  row = {};
  if (mask == 0) {
    return 0;
  }
  const auto size = static_cast<size_t>(bytes);
  uint64_t reached = mask;
  row = row_of(addresses, mask, size);
  if (!row.describes(mask) || !reach_row(wave, instruction, row, bytes, read, write)) {
    row = {};
    const uint64_t segments = reach_each(wave, instruction, addresses, size, read, write, reached);
    count_reached(wave, reached, segments, bytes, read, write);
  }
  if (read) {
    watch_read(wave, addresses, reached, size);
  }
  return reached;
}

}  // namespace weft::sim
