#include "serve/tools/thinking.h"

#include <utility>

#include "serve/tools/format.h"
#include "serve/tools/markers.h"

namespace weft::serve {

void Thinking::push(std::string_view text, std::string& reasoning, std::string& content) {
  for (const char c : text) {
    if (at_ == At::content) {
      content += c;
      continue;
    }
    if (at_ == At::behind) {
      if (kBlank.find(c) == std::string_view::npos) {
        content += c;
        at_ = At::content;
      }
      continue;
    }
    pending_ += c;
    if (at_ == At::start) {
      const size_t begins = pending_.find_first_not_of(kBlank);
      const std::string_view word =
          begins == std::string::npos ? "" : std::string_view(pending_).substr(begins);
      if (word == kThinkOpen) {
        pending_.clear();
        at_ = At::thought;
      } else if (!kThinkOpen.starts_with(word)) {
        content += std::exchange(pending_, {});
        at_ = At::content;
      }
    } else {
      const bool ends = pending_.ends_with(kThinkClose);
      const size_t held = ends ? kThinkClose.size() : begun_of(pending_, kThinkClose);
      // White space goes out with what follows it.
      std::string_view out = std::string_view(pending_).substr(0, pending_.size() - held);
      out = out.substr(0, out.find_last_not_of(kBlank) + 1);
      const size_t taken = out.size();
      if (fresh_) {
        out = out.substr(std::min(out.size(), out.find_first_not_of(kBlank)));
        fresh_ = out.empty();
      }
      reasoning += out;
      pending_.erase(0, taken);
      if (ends) {
        pending_.clear();
        at_ = At::behind;
      }
    }
  }
}

void Thinking::finish(std::string& reasoning, std::string& content) {
  if (at_ == At::start) {
    content += pending_;
  } else if (at_ == At::thought) {
    const size_t begins = fresh_ ? pending_.find_first_not_of(kBlank) : 0;
    const size_t end = pending_.find_last_not_of(kBlank) + 1;
    reasoning += begins < end ? pending_.substr(begins, end - begins) : "";
  }
  pending_.clear();
  at_ = At::content;
}

}  // namespace weft::serve
