#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/vector_packed-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

std::span<const Row> vector_packed_rows() { return WEFT_SIM_PICK(kPackedRows); }

}  // namespace weft::sim
