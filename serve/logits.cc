#include "serve/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace weft::serve {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

class Adjuster {
 public:
  Adjuster(const GenerateRequest& request, std::vector<int32_t> ends,
           std::vector<std::vector<int32_t>> banned,
           const std::shared_ptr<grammar::Grammar>& grammar, std::optional<Opening> opening)
      : bias_(request.logit_bias.begin(), request.logit_bias.end()),
        allowed_(request.allowed_token_ids),
        ends_(std::move(ends)),
        banned_(std::move(banned)),
        min_tokens_(request.min_tokens),
        presence_(static_cast<float>(request.presence_penalty)),
        frequency_(static_cast<float>(request.frequency_penalty)) {
    if (grammar) {
      matcher_.emplace(grammar);
      opening_ = std::move(opening);
      open_ = opening_ && !opening_->begins;
    }
    std::sort(allowed_.begin(), allowed_.end());
    allowed_.erase(std::unique(allowed_.begin(), allowed_.end()), allowed_.end());
  }

  void operator()(std::span<const int32_t> generated, std::span<float> logits) {
    for (; seen_ < generated.size(); ++seen_) {
      ++counts_[generated[seen_]];
      if (matcher_) {
        follow(generated.first(seen_ + 1));
      }
    }
    const auto change = [&](int32_t id, float by) {
      if (static_cast<size_t>(id) < logits.size()) {
        logits[static_cast<size_t>(id)] += by;
      }
    };
    if (presence_ != 0 || frequency_ != 0) {
      for (const auto& [id, count] : counts_) {
        change(id, -presence_ - frequency_ * static_cast<float>(count));
      }
    }
    for (const auto& [id, by] : bias_) {
      change(id, by);
    }
    if (open_ || static_cast<int64_t>(generated.size()) < min_tokens_) {
      for (const int32_t id : ends_) {
        change(id, kNever);
      }
    }
    for (const std::vector<int32_t>& ids : banned_) {
      const std::span before(ids.data(), ids.size() - 1);
      if (before.size() <= generated.size() &&
          std::ranges::equal(before, generated.last(before.size()))) {
        change(ids.back(), kNever);
      }
    }
    if (!allowed_.empty()) {
      keep_allowed(logits);
    }
    if (matcher_ && !open_) {
      const bool may_open =
          generated.empty() && opening_ && static_cast<size_t>(*opening_->begins) < logits.size();
      const float opens = may_open ? logits[static_cast<size_t>(*opening_->begins)] : kNever;
      keep_masked(matcher_->mask(), logits);
      if (may_open) {
        logits[static_cast<size_t>(*opening_->begins)] = opens;
      }
    }
  }

 private:
  /// The last of these tokens is new.
  void follow(std::span<const int32_t> generated) {
    if (open_) {
      const std::vector<int32_t>& ends = opening_->ends;
      open_ =
          generated.size() < ends.size() || !std::ranges::equal(generated.last(ends.size()), ends);
    } else if (generated.size() == 1 && opening_ && opening_->begins == generated[0]) {
      open_ = true;
    } else {
      matcher_->accept(generated.back());  // it was allowed
    }
  }

  void keep_allowed(std::span<float> logits) {
    size_t next = 0;
    for (const int32_t id : allowed_) {
      const size_t stop = std::min(static_cast<size_t>(id), logits.size());
      std::fill(logits.begin() + static_cast<std::ptrdiff_t>(std::min(next, stop)),
                logits.begin() + static_cast<std::ptrdiff_t>(stop), kNever);
      next = static_cast<size_t>(id) + 1;
    }
    if (next < logits.size()) {
      std::fill(logits.begin() + static_cast<std::ptrdiff_t>(next), logits.end(), kNever);
    }
  }

  static void keep_masked(std::span<const uint32_t> mask, std::span<float> logits) {
    constexpr size_t kBits = 32;
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t word = i / kBits;
      if (word >= mask.size() || ((mask[word] >> (i % kBits)) & 1U) == 0) {
        logits[i] = kNever;
      }
    }
  }

  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> allowed_, ends_;
  std::vector<std::vector<int32_t>> banned_;  // none is empty
  int64_t min_tokens_;
  float presence_, frequency_;
  std::unordered_map<int32_t, int> counts_;  // of the tokens generated
  std::optional<grammar::Matcher> matcher_;
  std::optional<Opening> opening_;
  bool open_ = false;  // what comes is the opening's
  size_t seen_ = 0;
};

}  // namespace

Adjust adjust_of(const GenerateRequest& request, std::vector<int32_t> ends,
                 std::vector<std::vector<int32_t>> banned,
                 const std::shared_ptr<grammar::Grammar>& grammar, std::optional<Opening> opening) {
  if (!grammar && banned.empty() && request.logit_bias.empty() &&
      request.allowed_token_ids.empty() && request.min_tokens == 0 &&
      request.presence_penalty == 0 && request.frequency_penalty == 0) {
    return {};
  }
  return Adjuster(request, std::move(ends), std::move(banned), grammar, std::move(opening));
}

TokenLogprob logprob_of(std::span<const float> logits, int32_t id, int top) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - most);
  }
  const double log_sum = most + std::log(sum);
  const float own = logits[static_cast<size_t>(id)];
  TokenLogprob result{id, own - log_sum, true, 0, {}};
  result.rank = 1 + std::ranges::count_if(logits, [&](float logit) { return logit > own; });
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size() && top > 0; ++i) {
    ids[i] = static_cast<int32_t>(i);
  }
  const auto count = std::min(static_cast<std::ptrdiff_t>(top), std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    return std::pair(-logits[static_cast<size_t>(a)], a) <
           std::pair(-logits[static_cast<size_t>(b)], b);
  });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const int32_t each = ids[static_cast<size_t>(i)];
    result.top.emplace_back(each, static_cast<float>(logits[static_cast<size_t>(each)] - log_sum));
  }
  return result;
}

Adjust forced(std::vector<int32_t> text, int top, std::shared_ptr<TextScore> score) {
  return [text = std::move(text), top, score = std::move(score)](std::span<const int32_t> generated,
                                                                 std::span<float> logits) {
    const int32_t next = text[generated.size() + 1];
    score->tokens.push_back(logprob_of(logits, next, top));
    std::fill(logits.begin(), logits.end(), kNever);
    logits[static_cast<size_t>(next)] = 0;
  };
}

}  // namespace weft::serve
