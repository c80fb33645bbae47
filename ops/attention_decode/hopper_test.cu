#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(AttentionDecodeHopper, MatchesTheReference) {
  trial::expect_right_on_cuda("attention_decode");
}

}  // namespace
}  // namespace weft
