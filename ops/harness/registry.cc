#include "ops/harness/registry.h"

namespace weft::trial {

// ops/NAME/trial.cc defines NAME().
#define WEFT_OPERATION(name) Operation name();
#include "ops/operations.inc"
#undef WEFT_OPERATION

std::span<const Operation> operations() {
  static const Operation kOperations[] = {
#define WEFT_OPERATION(name) name(),
#include "ops/operations.inc"
#undef WEFT_OPERATION
  };
  return kOperations;
}

}  // namespace weft::trial
