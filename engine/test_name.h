// Names of tests that run over models, or over AMD targets and models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace weft {

/// "olmo2-bf16" as googletest takes it: "olmo2_bf16".
inline std::string test_name(const testing::TestParamInfo<std::string>& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// "gfx942_olmo2" of a target and a model.
inline std::string target_test_name(
    const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  const auto& [target, model] = info.param;
  return test_name({target + "_" + model, info.index});
}

}  // namespace weft
