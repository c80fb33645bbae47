#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(MoeHopper, MatchesTheReference) { trial::expect_right_on_cuda("moe"); }

}  // namespace
}  // namespace weft
