#include "engine/page_pool.h"

#include <algorithm>

#include "base/check.h"
#include "ops/matrix.h"

namespace weft {
namespace {

/// Only finds candidates: contents are compared. FNV-1a over words.
uint64_t hash_of(PagePool::Chain before, std::span<const int32_t> tokens) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = 0xcbf29ce484222325 ^ before;
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * kPrime;
  }
  return hash ^ hash >> 32;
}

template <class Map>
void erase(Map& map, uint64_t key, int32_t page) {
  const auto [first, last] = map.equal_range(key);
  map.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == page; }));
}

// Pages that continue the same chain and are looked at to find a common beginning.
constexpr int kMostCompared = 64;

}  // namespace

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages) + 1) {
  for (int64_t id = pages; id > 0; --id) {
    free_.push_back(static_cast<int32_t>(id));
  }
}

int32_t PagePool::take() {
  WEFT_CHECK(available() > 0);
  if (free_.empty()) {
    const int32_t oldest = unused_.front();
    unused_.pop_front();
    forget(oldest);
    free_.push_back(oldest);
    ++evicted_;
  }
  const int32_t id = free_.back();
  free_.pop_back();
  page(id).users = 1;
  return id;
}

void PagePool::use(int32_t id) {
  if (page(id).users++ == 0) {
    unused_.erase(page(id).place);
  }
}

void PagePool::release(int32_t id) {
  Page& released = page(id);
  WEFT_CHECK(released.users > 0);
  if (--released.users > 0) {
    return;
  }
  if (released.chain == kRoot) {
    free_.push_back(id);
  } else {
    released.place = unused_.insert(unused_.end(), id);
  }
}

int32_t PagePool::publish(int32_t id, Chain before, std::span<const int32_t> tokens) {
  WEFT_CHECK(static_cast<int64_t>(tokens.size()) == kKvPage && page(id).chain == kRoot);
  if (const int32_t there = find(before, tokens); there != kNoPage) {
    use(there);
    release(id);
    return there;
  }
  Page& published = page(id);
  published.chain = next_chain_++;
  published.before = before;
  published.tokens.assign(tokens.begin(), tokens.end());
  by_before_.emplace(before, id);
  by_hash_.emplace(hash_of(before, tokens), id);
  return id;
}

int32_t PagePool::find(Chain before, std::span<const int32_t> tokens) const {
  const auto [first, last] = by_hash_.equal_range(hash_of(before, tokens));
  for (auto entry = first; entry != last; ++entry) {
    const Page& candidate = pages_[static_cast<size_t>(entry->second)];
    if (candidate.before == before &&
        std::equal(tokens.begin(), tokens.end(), candidate.tokens.begin(),
                   candidate.tokens.end())) {
      return entry->second;
    }
  }
  return kNoPage;
}

PagePool::Beginning PagePool::find_beginning(Chain before, std::span<const int32_t> tokens) const {
  Beginning best;
  const auto [first, last] = by_before_.equal_range(before);
  int left = kMostCompared;
  for (auto entry = first; entry != last && left > 0; ++entry, --left) {
    const std::vector<int32_t>& held = pages_[static_cast<size_t>(entry->second)].tokens;
    const auto end = std::mismatch(tokens.begin(), tokens.end(), held.begin(), held.end()).first;
    const int64_t common = end - tokens.begin();
    if (common > best.tokens) {
      best = {entry->second, common};
    }
  }
  return best;
}

void PagePool::forget(int32_t id) {
  Page& forgotten = page(id);
  erase(by_before_, forgotten.before, id);
  erase(by_hash_, hash_of(forgotten.before, forgotten.tokens), id);
  forgotten.chain = kRoot;
  forgotten.tokens.clear();
}

}  // namespace weft
