#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(MlaLayerHopper, MatchesTheReference) { trial::expect_right_on_cuda("mla_layer"); }

}  // namespace
}  // namespace weft
