#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/vector_float-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

std::span<const Row> vector_float_rows() { return WEFT_SIM_PICK(kFloatRows); }

}  // namespace weft::sim
