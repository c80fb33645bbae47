#include "ops/harness/select.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "ops/harness/registry.h"

namespace weft::trial {

namespace {

/// The selected operation's cases of these shapes.
Result<std::vector<SelectedCase>> read_shapes(const Selection& selection, Use use) {
  if (selection.operations.size() != 1) {
    return usage_error(fmt::format("a shape is one operation's, but {} are named: say which",
                                   selection.operations.empty() ? "none" : "several"));
  }
  const auto all = operations();
  const auto operation = std::find_if(all.begin(), all.end(), [&](const Operation& each) {
    return each.name == selection.operations.front();
  });
  std::vector<SelectedCase> result;
  for (const std::string& shape : selection.shapes) {
    WEFT_ASSIGN(CaseInfo info, operation->read(shape, use));
    result.push_back({&*operation, std::move(info), /*listed=*/false});
  }
  return result;
}

}  // namespace

Result<std::vector<SelectedCase>> select_cases(const Selection& selection,
                                               const std::set<Use>& uses) {
  for (const std::string& wanted : selection.operations) {
    const auto all = operations();
    if (std::none_of(all.begin(), all.end(), [&](const auto& op) { return op.name == wanted; })) {
      if (!selection.shapes.empty() && wanted.find('=') != std::string::npos) {
        return usage_error(
            fmt::format("'{}' is no operation: give each shape a --shape of its own", wanted));
      }
      std::string known;
      for (const Operation& operation : all) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", operation.name);
      }
      return usage_error(fmt::format("unknown operation '{}': known are {}", wanted, known));
    }
  }
  if (!selection.shapes.empty()) {
    return read_shapes(selection, *uses.begin());
  }
  std::vector<SelectedCase> result;
  for (const Operation& operation : operations()) {
    const auto& names = selection.operations;
    if (!names.empty() && std::find(names.begin(), names.end(), operation.name) == names.end()) {
      continue;
    }
    for (const CaseInfo& info : operation.cases) {
      if (uses.contains(info.use) && fnmatch(selection.cases.c_str(), info.name.c_str(), 0) == 0) {
        result.push_back({&operation, info});
      }
    }
  }
  if (result.empty()) {
    return usage_error(fmt::format("no case matches '{}'", selection.cases));
  }
  return result;
}

Random random_for(const SelectedCase& selected, uint64_t seed) {
  uint64_t hash = seed;
  const auto mix = [&](std::string_view text) {
    for (const char c : text) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
  };
  mix(selected.operation->name);
  mix(selected.name());
  return Random(hash);
}

}  // namespace weft::trial
