// All operations. The build writes ops/operations.inc from the folders that have an op.h
// (cmake/Operations.cmake), so that a new operation is a new folder and nothing else.
#pragma once

#include <span>

#include "ops/harness/trial.h"

namespace weft::trial {

std::span<const Operation> operations();

}  // namespace weft::trial
