// The softmax of attention's references.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace weft::reference {

/// Of attention that has none.
inline constexpr double kNoSink = -std::numeric_limits<double>::infinity();

/// Scores become weights, whose sum is 1, or less by what the sink takes. Returns the logarithm of
/// the sum of the exponentials; -infinity where there are no scores.
inline double softmax(std::span<double> scores, double sink = kNoSink) {
  if (scores.empty()) {
    return -std::numeric_limits<double>::infinity();
  }
  double best = sink;
  for (const double score : scores) {
    best = std::max(best, score);
  }
  double sum = std::exp(sink - best);
  for (double& score : scores) {
    score = std::exp(score - best);
    sum += score;
  }
  for (double& weight : scores) {
    weight /= sum;
  }
  return best + std::log(sum);
}

}  // namespace weft::reference
