#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "ops/sample/op.h"

namespace weft::reference {

int32_t sample(const SampleArgs& args, double uniform) {
  const SamplingOptions& options = args.options;
  struct Token {
    int32_t id;
    double logit;
    double probability;
  };
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
    return tokens.front().id;
  }

  if (options.top_k > 0 && options.top_k < args.vocabulary) {
    tokens.resize(options.top_k);
  }
  double sum = 0;
  size_t kept = 0;
  for (Token& token : tokens) {
    token.probability = std::exp((token.logit - best) / options.temperature);
    if (token.probability >= options.min_p) {
      sum += token.probability;
      ++kept;
    }
  }
  tokens.resize(kept);
  if (options.top_p < 1) {
    double reached = 0;
    kept = 0;
    while (kept < tokens.size() && (kept == 0 || reached < options.top_p * sum)) {
      reached += tokens[kept++].probability;
    }
    tokens.resize(kept);
    sum = reached;
  }

  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.id < b.id; });
  double reached = 0;
  for (const Token& token : tokens) {
    reached += token.probability;
    if (reached > uniform * sum) {
      return token.id;
    }
  }
  return tokens.back().id;
}

}  // namespace weft::reference
