#include <algorithm>

#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/vector_integer-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

std::span<const Row> vector_integer_rows() { return WEFT_SIM_PICK(kIntegerRows); }

}  // namespace weft::sim
