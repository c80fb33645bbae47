// The matrix instructions (MFMA, SMFMAC and scaled MFMA) of both targets as functions over a wave's
// registers. Which exist, their layouts and passes: arch/cdna/matrix_layout.h.
//
// Arithmetic. The manuals (CDNA3 and CDNA4, chapter 7) fix rounding (nearest even), that denormals
// of formats below 32 bits are kept whatever MODE says, and the modifiers; they leave open in which
// order and with what intermediate precision products are summed. Chosen here:
// - f32, f64, f16, bf16, fp8, bf8, and their sparse forms: from C, one fused multiply-add after the
//   other in ascending k (sparse: over the stored elements), each rounded to nearest even.
// - xf32: A and B are first cut to a mantissa of 10 bits.
// - f8f6f4, scaled or not: each block of 32 along k is summed like that from zero; its sum times
//   both scales is added to the result so far with one rounding.
// - i8: exact, wrapping at 32 bits.
// Hardware sums several products of formats below 32 bits before it rounds (of the MI300X: Xie et
// al., MMA-Sim, arXiv:2511.10909), so the last bits of a result may differ from it.
// - A NaN in the result is the quiet NaN 0x7fc00000 (f64: 0x7ff8000000000000).
// - f32 inputs are never flushed: MODE's f32 denormals are on, as compilers set it.
// - MODE.FP16_OVFL does not clamp results.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/target.h"

namespace weft::cdna {
struct MatrixInstruction;
}

namespace weft::sim {

/// Registers and modifiers of one execution. Everything is read before anything is written, so d
/// may overlap any of them.
struct MatrixOperands {
  Lanes* d;                        ///< d_regs registers
  const Lanes* a;                  ///< a_regs
  const Lanes* b;                  ///< b_regs
  const Lanes* c;                  ///< d_regs, never null; of a sparse instruction the same as d
  const Lanes* index = nullptr;    ///< sparse instructions: the register with the indices
  const Lanes* scale_a = nullptr;  ///< scaled instructions: one register; else null
  const Lanes* scale_b = nullptr;
  uint8_t cbsz = 0;
  uint8_t abid = 0;
  uint8_t blgp = 0;      ///< of f64: neg:[a,b,c] in bits 0 to 2
  uint8_t op_sel_a = 0;  ///< scaled: which byte of scale_a, op_sel | op_sel_hi << 1
  uint8_t op_sel_b = 0;
};

struct MatrixOp {
  std::string_view name;  ///< as LLVM prints it
  const cdna::MatrixInstruction* instruction;
  uint8_t m;
  uint8_t n;
  uint8_t k;
  uint8_t blocks;
  uint8_t a_regs;  ///< of f8f6f4: for formats of 8 bits; 6 for those of 6, 4 for those of 4
  uint8_t b_regs;
  uint8_t d_regs;
  bool sparse;
  bool scaled;
  uint8_t passes_gfx942;  ///< of four cycles; 0: not on this target
  uint8_t passes_gfx950;
  uint8_t passes_f4;  ///< of f8f6f4, when neither A nor B has 8 bits

  /// What an instruction with these modifiers takes.
  int passes(Target target, int a_format, int b_format) const {
    // Formats 0 and 1 have eight bits.
    return passes_f4 != 0 && a_format >= 2 && b_format >= 2 ? passes_f4
           : target == Target::gfx942                       ? passes_gfx942
                                                            : passes_gfx950;
  }
  void run(const MatrixOperands& operands, Target target) const;
};

/// nullptr when the target has no such instruction.
const MatrixOp* find_matrix_op(std::string_view mnemonic, Target target);
std::span<const MatrixOp> matrix_ops();

}  // namespace weft::sim
