// Which cases a command line asks for.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/harness/trial.h"

namespace weft::trial {

struct Selection {
  std::vector<std::string> operations = {};  ///< empty: all
  std::string cases = "*";                   ///< a glob (fnmatch) over case names
  std::vector<std::string> shapes = {};      ///< of the one operation, instead of its cases
};

struct SelectedCase {
  const Operation* operation = nullptr;
  CaseInfo info;
  bool listed = true;  ///< one of the operation's cases, not a shape
  const std::string& name() const { return info.name; }
};

/// In the order of the operations; or the shapes, each for the first of the uses. Error (usage): an
/// unknown operation, no case at all, a shape that the operation cannot have, shapes of several
/// operations.
Result<std::vector<SelectedCase>> select_cases(const Selection& selection,
                                               const std::set<Use>& uses);

/// The random numbers of a case: they depend on the seed and the case's name alone.
Random random_for(const SelectedCase& selected, uint64_t seed);

}  // namespace weft::trial
