// Conversions between f32, f16, bf16 and the formats of eight bits and fewer, with and without
// block scales, as functions over a wave's registers. Sources: CDNA3 and CDNA4 Instruction Set
// Architecture, section "BF8 / FP8 and smaller formats and conversions" and the instructions' text.
//
// What the manuals leave open is chosen so:
// - Overflow is judged after rounding. To fp8 and bf8 it gives the largest number if MODE.FP16_OVFL
//   is set, otherwise infinity, or NaN where the format has no infinity (in the fnuz formats of
//   gfx942 also for bf8).
// - NaN becomes the format's positive NaN; in fp4 and fp6, which have none, the largest number.
// - Stochastic rounding adds the high bits of the random number, as many as the conversion drops
// from
//   a normal f32 mantissa, below the result's last place and cuts off; a carry goes on into the
//   exponent. Below the smallest normal number the f32 is first shifted to the last place.
// - A scale of exponent 255 gives NaN.
// - f32 inputs and results keep denormals (MODE's f32 denormals are on, as compilers set it).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/target.h"

namespace weft::sim {

/// Registers and modifiers of one execution. All lanes are converted: the caller applies EXEC.
struct ConvertOperands {
  Lanes* d;  ///< holds the old contents, part of which some instructions keep
  const Lanes*
      src[3];      ///< neg, abs and the choice of bytes by SDWA are applied already; unused: null
  uint8_t op_sel;  ///< the instruction's OPSEL field, encoding bits 14:11; bit 3: destination
  bool fp16_ovfl;  ///< MODE.FP16_OVFL
};

struct ConvertOp {
  std::string_view name;  ///< mnemonic without _e32, _e64, _sdwa, _dpp
  uint8_t d_regs;
  uint8_t src_regs[3];
  bool on_gfx942;
  bool on_gfx950;
  void (*run)(const ConvertOperands&, Target);
};

/// nullptr when the target has no such instruction.
const ConvertOp* find_convert_op(std::string_view mnemonic, Target target);
std::span<const ConvertOp> convert_ops();

}  // namespace weft::sim
