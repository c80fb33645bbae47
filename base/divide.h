// Whole pieces of a size.
#pragma once

namespace weft {

/// How many pieces of b it takes to hold a: a / b, rounded up. a >= 0, b > 0; of the operands'
/// common type.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

/// a, rounded up to whole units.
template <class A, class B>
constexpr auto round_up(A a, B unit) {
  return ceil_div(a, unit) * unit;
}

}  // namespace weft
