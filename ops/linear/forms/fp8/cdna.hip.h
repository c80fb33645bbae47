// Weights in e4m3fn as a resident kernel on CDNA reads them (engine/cdna/layout.h).
#pragma once

#include "arch/cdna/gpu.hip.h"
#include "ops/linear/forms/fp8/words.h"

namespace weft::cdna {

/// Four registers of the operand A of a lane's two words: 2^-120 of bf16 numbers.
WEFT_GPU u32x4 fp8_operand(u32x4 words) {
  using namespace fp8_words;
  return {first_pair(words[0]), second_pair(words[0]), first_pair(words[1]), second_pair(words[1])};
}

}  // namespace weft::cdna
