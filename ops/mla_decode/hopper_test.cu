#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(MlaDecodeHopper, MatchesTheReference) { trial::expect_right_on_cuda("mla_decode"); }

}  // namespace
}  // namespace weft
