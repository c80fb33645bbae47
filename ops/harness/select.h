// Which cases a command line asks for.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/harness/trial.h"

namespace weft::trial {

struct Selection {
  std::vector<std::string> operations;  ///< empty: all
  std::string cases = "*";              ///< a glob (fnmatch) over case names
};

struct SelectedCase {
  const Operation* operation;
  size_t index;
  const std::string& name() const { return operation->cases[index].name; }
};

/// In the order of the operations. Error (usage): an unknown operation, or no case at all.
Result<std::vector<SelectedCase>> select_cases(const Selection& selection,
                                               const std::set<Use>& uses);

/// The random numbers of a case: they depend on the seed and the case's name alone.
Random random_for(const SelectedCase& selected, uint64_t seed);

}  // namespace weft::trial
