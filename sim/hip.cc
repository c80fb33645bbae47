#include "sim/hip.h"

#include <string_view>

#include "sim/hip_runtime.h"

namespace weft::hip {

WEFT_HIP hipError_t hipGetProcAddress(const char* symbol, void** function, int version, uint64_t,
                                      hipDriverProcAddressQueryResult* status) {
  static const struct {
    std::string_view name;
    void* function;
  } kFunctions[] = {
#define WEFT_HIP_ENTRY(result, name, parameters) {#name, reinterpret_cast<void*>(&name)},
      WEFT_HIP_FUNCTIONS(WEFT_HIP_ENTRY) WEFT_SIM_HIP_FUNCTIONS(WEFT_HIP_ENTRY)
#undef WEFT_HIP_ENTRY
  };
  if (symbol == nullptr || function == nullptr) {
    return sim::result(hipErrorInvalidValue);
  }
  std::string_view name(symbol);
  // Since HIP 6 the name stands for the function with the new struct.
  if (name == "hipGetDeviceProperties" && version >= 600) {
    name = "hipGetDevicePropertiesR0600";
  }
  *function = nullptr;
  for (const auto& each : kFunctions) {
    if (each.name == name) {
      *function = each.function;
    }
  }
  if (status != nullptr) {
    *status =
        *function != nullptr ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr
             ? hipSuccess
             : sim::refuse(hipErrorNotFound, "",
                           "The simulator has no function " + std::string(symbol) + " of HIP's.");
}

}  // namespace weft::hip

namespace weft::sim {

const hip::HipApi& hip_api() {
  static const hip::HipApi kApi = {
#define WEFT_HIP_ANSWER(result, name, parameters) .name = &hip::name,
      WEFT_HIP_FUNCTIONS(WEFT_HIP_ANSWER)
#undef WEFT_HIP_ANSWER
  };
  return kApi;
}

}  // namespace weft::sim
