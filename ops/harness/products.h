// What trials of matrix products share.
#pragma once

#include "ops/harness/parts.h"
#include "ops/harness/trial.h"

namespace weft::trial {

/// Fills an expectation of whole rows from a reference, reference(rows, columns, values,
/// magnitudes): the tolerance is then the sum of the magnitudes of the terms. A single row is
/// computed in parts, for it may be one of a large matrix.
template <class Reference>
void expect_product(Expectation& out, Reference&& reference) {
  double* values = out.value.data();
  double* magnitudes = out.tolerance.data();
  if (out.rows.size() != 1) {
    return reference(out.rows, out.columns, values, magnitudes);
  }
  for_parts(out.columns.size(), [&](Range columns) {
    reference(out.rows, columns, values + columns.begin, magnitudes + columns.begin);
  });
}

}  // namespace weft::trial
