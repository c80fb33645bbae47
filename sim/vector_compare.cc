#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/vector_compare-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

std::span<const Row> vector_compare_rows() { return WEFT_SIM_PICK(kCompareRows); }

}  // namespace weft::sim
