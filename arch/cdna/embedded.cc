#include "arch/cdna/embedded.h"

#include <vector>

// Begin and end of each code object, from the build's assembly file.
#define WEFT_CODE_OBJECT(operation, target)                      \
  extern "C" const std::byte weft_cdna_##operation##_##target[]; \
  extern "C" const std::byte weft_cdna_##operation##_##target##_end[];
#include "arch/cdna/embedded.inc"
#undef WEFT_CODE_OBJECT

namespace weft::cdna {

std::span<const EmbeddedCode> embedded_code() {
  static const std::vector<EmbeddedCode> kCode = {
#define WEFT_CODE_OBJECT(operation, target) \
  {#operation,                              \
   Target::target,                          \
   {weft_cdna_##operation##_##target, weft_cdna_##operation##_##target##_end}},
#include "arch/cdna/embedded.inc"
#undef WEFT_CODE_OBJECT
  };
  return kCode;
}

const EmbeddedCode* embedded_code(std::string_view operation, Target target) {
  for (const EmbeddedCode& code : embedded_code()) {
    if (code.operation == operation && code.target == target) {
      return &code;
    }
  }
  return nullptr;
}

}  // namespace weft::cdna
