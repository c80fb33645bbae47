#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "ops/sample/op.h"

namespace weft::reference {
namespace {

struct Token {
  int32_t id;
  double logit;
  double probability;  ///< of the best one's
};

/// What top-k leaves, best first.
std::vector<Token> best_tokens(const SampleArgs& args) {
  const SamplingOptions& options = args.options;
  std::vector<Token> tokens;
  const std::set<int32_t> seen(args.history.begin(), args.history.end());
  for (int32_t id = 0; id < args.vocabulary; ++id) {
    double logit = args.logits[id];
    if (std::isnan(logit)) {
      logit = -std::numeric_limits<double>::infinity();
    } else if (seen.contains(id)) {
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    }
    tokens.push_back({id, logit, 0});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.logit > b.logit; });
  const double best = tokens.front().logit;
  if (options.temperature <= 0 || std::isinf(best)) {
    tokens.resize(1);
    tokens.front().probability = 1;
    return tokens;
  }
  if (options.top_k > 0 && options.top_k < args.vocabulary) {
    tokens.resize(static_cast<size_t>(options.top_k));
  }
  for (Token& token : tokens) {
    token.probability = std::exp((token.logit - best) / options.temperature);
  }
  return tokens;
}

/// How many of them min-p leaves.
size_t left_by_min_p(std::span<const Token> tokens, double min_p) {
  const auto end = std::find_if(tokens.begin() + 1, tokens.end(),
                                [&](const Token& token) { return token.probability < min_p; });
  return static_cast<size_t>(end - tokens.begin());
}

double sum_of(std::span<const Token> tokens) {
  double sum = 0;
  for (const Token& token : tokens) {
    sum += token.probability;
  }
  return sum;
}

/// How many of them top-p leaves.
size_t left_by_top_p(std::span<const Token> tokens, double top_p) {
  const double wanted = top_p * sum_of(tokens);
  double reached = 0;
  size_t kept = 0;
  while (kept < tokens.size() && (kept == 0 || reached < wanted)) {
    reached += tokens[kept++].probability;
  }
  return kept;
}

/// The tokens whose share of the probabilities, in rising id, has a number of [least, most] in it.
void draw(std::span<const Token> kept, double least, double most, std::set<int32_t>& drawn) {
  std::vector<Token> tokens(kept.begin(), kept.end());
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.id < b.id; });
  const double sum = sum_of(tokens);
  double before = 0;
  for (const Token& token : tokens) {
    const double reached = before + token.probability;
    if (reached > least * sum && before <= most * sum && token.probability > 0) {
      drawn.insert(token.id);
    }
    before = reached;
  }
  if (most * sum >= before || drawn.empty()) {
    drawn.insert(tokens.back().id);
  }
}

}  // namespace

std::vector<int32_t> right_tokens(const SampleArgs& args, double uniform, double near) {
  const SamplingOptions& options = args.options;
  const std::vector<Token> tokens = best_tokens(args);
  std::set<int32_t> drawn;
  const size_t most_by_min_p = left_by_min_p(tokens, options.min_p * (1 - near));
  for (size_t i = left_by_min_p(tokens, options.min_p * (1 + near)); i <= most_by_min_p; ++i) {
    const std::span<const Token> left = std::span(tokens).first(i);
    const bool all = options.top_p >= 1;
    const size_t fewest = all ? i : left_by_top_p(left, options.top_p - near);
    const size_t most = all ? i : left_by_top_p(left, options.top_p + near);
    for (size_t kept = fewest; kept <= most; ++kept) {
      draw(left.first(kept), uniform - near, uniform + near, drawn);
    }
  }
  return {drawn.begin(), drawn.end()};
}

int32_t sample(const SampleArgs& args, double uniform) {
  return right_tokens(args, uniform, 0).front();
}

}  // namespace weft::reference
