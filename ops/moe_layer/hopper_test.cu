#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(MoeLayerHopper, MatchesTheReference) { trial::expect_right_on_cuda("moe_layer"); }

}  // namespace
}  // namespace weft
