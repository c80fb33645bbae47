// Who has which page of a KV cache that is kept in pages (ops/matrix.h, kKvPage): pages have users,
// those with a known content can be found again by what they hold, and those that nobody uses any
// more are kept as long as nobody needs the room. What loses its page may go on in one outside of
// the pool (host memory), from where it is brought back.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace weft {

class PagePool {
 public:
  /// A page's content together with all that is before it; kRoot: nothing is before it.
  using Chain = uint64_t;
  static constexpr Chain kRoot = 0;
  /// No page: its number is never handed out, so that what lies there may be anything.
  static constexpr int32_t kNoPage = 0;

  /// Pages 1 to `pages`, and `outside` further ones that have no users.
  explicit PagePool(int64_t pages, int64_t outside = 0);

  struct Taken {
    int32_t page = kNoPage;
    /// Where the page's former content goes on: copied there before the page is written. kNoPage:
    /// nowhere.
    int32_t moved_to = kNoPage;
  };
  /// A page for one user, with no content, where none is free that of the content that was longest
  /// unused. There is one while available() > 0.
  Taken take();
  /// One user more, or one less. A page without users keeps its content until its room is needed.
  void use(int32_t page);
  void release(int32_t page);

  /// Makes a page found by its content: kKvPage tokens after what `before` names. Returns the page
  /// that has that content from now on, another one if it was there already, with the user moved to
  /// it.
  int32_t publish(int32_t page, Chain before, std::span<const int32_t> tokens);
  /// The page that holds these kKvPage tokens after `before`, or kNoPage; the page outside that
  /// does.
  int32_t find(Chain before, std::span<const int32_t> tokens) const {
    return find(before, tokens, false);
  }
  int32_t find_outside(Chain before, std::span<const int32_t> tokens) const {
    return find(before, tokens, true);
  }
  /// A page outside is wanted: it is now the last to make room.
  void want(int32_t outside);
  /// Gives a page with no content that of a page outside, copied by then, which is free again.
  void bring(int32_t outside, int32_t page);
  /// Of pages after `before`, outside too, one that begins with most of `tokens`.
  struct Beginning {
    int32_t page = kNoPage;
    int64_t tokens = 0;
  };
  Beginning find_beginning(Chain before, std::span<const int32_t> tokens) const;
  /// What a page that is found stands for.
  Chain chain(int32_t page) const { return pages_[static_cast<size_t>(page)].chain; }

  int64_t size() const { return size_; }
  /// Pages that can be taken: free ones and those with content but no users.
  int64_t available() const { return static_cast<int64_t>(free_.size() + unused_.size()); }
  int64_t used() const { return size() - available(); }
  /// Pages with content and no users.
  int64_t cached() const { return static_cast<int64_t>(unused_.size()); }
  /// Contents that lost their pages so far; those that are outside; those that were brought back.
  int64_t evicted() const { return evicted_; }
  int64_t outside() const { return static_cast<int64_t>(outside_.size()); }
  int64_t brought() const { return brought_; }

 private:
  struct Page {
    int32_t users = 0;
    Chain chain = kRoot;   // kRoot: not found by content
    Chain before = kRoot;  // the chain that it continues
    std::vector<int32_t> tokens;
    std::list<int32_t>::iterator place;  // in unused_ or outside_, while it is there
  };
  Page& page(int32_t id) { return pages_[static_cast<size_t>(id)]; }
  int32_t find(Chain before, std::span<const int32_t> tokens, bool outside) const;
  /// Makes a page found by a content.
  void hold(int32_t id, Chain chain, Chain before, std::vector<int32_t> tokens);
  void forget(int32_t id);
  /// A content goes on in another page.
  void move(int32_t from, int32_t to);

  const int64_t size_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_, free_outside_;
  std::list<int32_t> unused_, outside_;                 // longest unused first
  std::unordered_multimap<Chain, int32_t> by_before_;   // [Page::before]
  std::unordered_multimap<uint64_t, int32_t> by_hash_;  // [hash of before and tokens]
  Chain next_chain_ = kRoot + 1;
  int64_t evicted_ = 0, brought_ = 0;
};

}  // namespace weft
