#include "engine/page_pool.h"

#include <algorithm>
#include <utility>

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

PagePool::PagePool(int64_t pages, int64_t outside)
    : size_(pages), pages_(static_cast<size_t>(pages + outside) + 1) {
  for (int64_t id = pages + outside; id > 0; --id) {
    (id > pages ? free_outside_ : free_).push_back(static_cast<int32_t>(id));
  }
}

PagePool::Taken PagePool::take() {
  WEFT_CHECK(available() > 0);
  Taken taken;
  if (free_.empty()) {
    const int32_t oldest = unused_.front();
    unused_.pop_front();
    if (free_outside_.empty() && !outside_.empty()) {
      const int32_t last = outside_.front();
      outside_.pop_front();
      forget(last);
      free_outside_.push_back(last);
    }
    if (free_outside_.empty()) {
      forget(oldest);
    } else {
      taken.moved_to = free_outside_.back();
      free_outside_.pop_back();
      move(oldest, taken.moved_to);
      page(taken.moved_to).place = outside_.insert(outside_.end(), taken.moved_to);
    }
    free_.push_back(oldest);
    ++evicted_;
  }
  taken.page = free_.back();
  free_.pop_back();
  page(taken.page).users = 1;
  return taken;
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
  if (const int32_t outside = find_outside(before, tokens); outside != kNoPage) {
    bring(outside, id);  // what continues it goes on being found
  } else {
    hold(id, next_chain_++, before, {tokens.begin(), tokens.end()});
  }
  return id;
}

void PagePool::want(int32_t outside) {
  outside_.splice(outside_.end(), outside_, page(outside).place);
}

void PagePool::bring(int32_t outside, int32_t id) {
  WEFT_CHECK(outside > size_ && page(id).chain == kRoot);
  outside_.erase(page(outside).place);
  move(outside, id);
  free_outside_.push_back(outside);
  ++brought_;
}

int32_t PagePool::find(Chain before, std::span<const int32_t> tokens, bool outside) const {
  const auto [first, last] = by_hash_.equal_range(hash_of(before, tokens));
  for (auto entry = first; entry != last; ++entry) {
    const Page& candidate = pages_[static_cast<size_t>(entry->second)];
    if ((entry->second > size_) == outside && candidate.before == before &&
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

void PagePool::hold(int32_t id, Chain chain, Chain before, std::vector<int32_t> tokens) {
  by_before_.emplace(before, id);
  by_hash_.emplace(hash_of(before, tokens), id);
  Page& holder = page(id);
  holder.chain = chain;
  holder.before = before;
  holder.tokens = std::move(tokens);
}

void PagePool::move(int32_t from, int32_t to) {
  const Page moved = page(from);
  forget(from);
  hold(to, moved.chain, moved.before, moved.tokens);
}

void PagePool::forget(int32_t id) {
  Page& forgotten = page(id);
  erase(by_before_, forgotten.before, id);
  erase(by_hash_, hash_of(forgotten.before, forgotten.tokens), id);
  forgotten.chain = kRoot;
  forgotten.tokens.clear();
}

}  // namespace weft
