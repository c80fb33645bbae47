#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/vector_convert-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

std::span<const Row> vector_convert_rows() { return WEFT_SIM_PICK(kConvertRows); }

}  // namespace weft::sim
