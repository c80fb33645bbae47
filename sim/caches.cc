#include "sim/caches.h"

#include <algorithm>
#include <cstring>

namespace weft::sim {

namespace {

/// Parts of an access that lie in one line each: f(line, offset in it, bytes done before, bytes).
template <class F>
void for_each_line(uint64_t address, size_t bytes, size_t line_bytes, F f) {
  for (size_t done = 0; done < bytes;) {
    const size_t offset = (address + done) % line_bytes;
    const size_t part = std::min(bytes - done, line_bytes - offset);
    f(address + done - offset, offset, done, part);
    done += part;
  }
}

}  // namespace

Caches::Line::Line(uint64_t address) {
  // Allocations begin and end, as mapped, at whole lines.
  std::memcpy(bytes.data(), reinterpret_cast<const void*>(address), kLine);
}

void Caches::Line::refresh(uint64_t address) {
  for (size_t k = 0; k < kLine; ++k) {
    if (!dirty[k]) {
      bytes[k] = reinterpret_cast<const std::byte*>(address)[k];
    }
  }
}

void Caches::Line::write_back(uint64_t address) {
  for (size_t k = 0; k < kLine; ++k) {
    if (dirty[k]) {
      reinterpret_cast<std::byte*>(address)[k] = bytes[k];
      dirty[k] = false;
    }
  }
}

Caches::Kept Caches::kept(uint64_t address) {
  if ((address < last_.begin || address >= last_.end) && !memory_.find(address, last_)) {
    return Kept::nowhere;
  }
  const Placement& placement = last_.placement;
  return placement.home == kHost || placement.grain == Grain::uncached ? Kept::nowhere
         : placement.home != device_                                   ? Kept::remote
                                                                       : Kept::everywhere;
}

void Caches::load(Unit unit, Scope scope, uint64_t address, size_t bytes, std::byte* to) {
  const Kept where = kept(address);
  if (where == Kept::nowhere) {
    std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
    return;
  }
  const bool past_l1 = scope >= Scope::agent;
  const bool past_l2 = scope >= (where == Kept::remote ? Scope::system : Scope::agent);
  for_each_line(address, bytes, kLine, [&](uint64_t line, size_t offset, size_t done, size_t part) {
    L1& near = l1(unit);
    if (past_l1) {
      near.erase(line);
    } else if (const auto found = near.find(line); found != near.end()) {
      std::memcpy(to + done, found->second.data() + offset, part);
      return;
    }
    Line& copy = l2(unit).try_emplace(line, line).first->second;
    if (past_l2) {
      copy.refresh(line);
    }
    if (!past_l1) {
      near.emplace(line, copy.bytes);
    }
    std::memcpy(to + done, copy.bytes.data() + offset, part);
  });
}

void Caches::store(Unit unit, Scope scope, uint64_t address, size_t bytes, const std::byte* from) {
  const Kept where = kept(address);
  if (where == Kept::nowhere) {
    std::memcpy(reinterpret_cast<void*>(address), from, bytes);
    return;
  }
  const bool through = scope >= (where == Kept::remote ? Scope::system : Scope::agent);
  for_each_line(address, bytes, kLine, [&](uint64_t line, size_t offset, size_t done, size_t part) {
    L1& near = l1(unit);
    if (const auto found = near.find(line); found != near.end()) {
      std::memcpy(found->second.data() + offset, from + done, part);
    }
    Line& copy = l2(unit).try_emplace(line, line).first->second;
    std::memcpy(copy.bytes.data() + offset, from + done, part);
    std::fill_n(copy.dirty.begin() + static_cast<ptrdiff_t>(offset), part, !through);
    if (through) {
      auto* memory = reinterpret_cast<std::byte*>(line + offset);
      if (part == 4 && offset % 4 == 0) {
        // What other devices may be waiting for: never in pieces.
        uint32_t word = 0;
        std::memcpy(&word, from + done, 4);
        __atomic_store_n(reinterpret_cast<uint32_t*>(memory), word, __ATOMIC_RELAXED);
      } else {
        std::memcpy(memory, from + done, part);
      }
    }
  });
}

void Caches::before_atomic(Unit unit, uint64_t address, size_t bytes) {
  for_each_line(address, bytes, kLine, [&](uint64_t line, size_t, size_t, size_t) {
    l1(unit).erase(line);
    L2& far = l2(unit);
    if (const auto found = far.find(line); found != far.end()) {
      found->second.write_back(line);
      far.erase(found);
    }
  });
}

void Caches::invalidate(Unit unit, Scope scope) {
  if (scope >= Scope::workgroup) {
    l1(unit).clear();
  }
  if (scope >= Scope::agent) {
    for (auto& [line, copy] : l2(unit)) {
      if (scope == Scope::system || kept(line) == Kept::everywhere) {
        copy.refresh(line);
      }
    }
  }
}

void Caches::write_back(Unit unit, Scope scope) {
  for (auto& [line, copy] : l2(unit)) {
    if (scope == Scope::system || (scope == Scope::agent && kept(line) == Kept::everywhere)) {
      copy.write_back(line);
    }
  }
}

const std::byte* Caches::latest(int xcd, uint64_t address) const {
  const L2& far = l2_[static_cast<size_t>(xcd) % l2_.size()];
  const auto found = far.find(address / kLine * kLine);
  return found != far.end() ? &found->second.bytes[address % kLine]
                            : reinterpret_cast<const std::byte*>(address);
}

void Caches::write_back_all() {
  for (L2& far : l2_) {
    for (auto& [line, copy] : far) {
      copy.write_back(line);
    }
    far.clear();
  }
  l1_.clear();
}

}  // namespace weft::sim
