// Products and sums as ptxas takes them: PTX ISA, "add", lets mul and add of no said rounding
// become one fma, and ptxas does so unless told not to (-fmad=false).
#pragma once

#include <cstdint>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"

namespace weft::ptx {

/// Follows a function's statements in their order.
class Fusion {
 public:
  /// Makes an fma of a sum in f32 that adds a product to something or takes one from the other.
  /// `guarded`: it is executed under a predicate.
  void see(Statement& statement, bool guarded);
  /// Others may come here: a label, or behind a call.
  void forget();

 private:
  struct Product {
    Operand a, b;
    bool flushes;
  };
  void fuse(Statement& statement) const;
  void overwrite(const Operand& operand);

  std::unordered_map<uint32_t, Product> products_;         // by the register that has it
  std::unordered_multimap<uint32_t, uint32_t> factor_of_;  // registers of products that it is in
};

/// Of a fused statement, behind its opcode's words: which operand's sign is turned.
inline constexpr std::string_view kMinusProduct = "-product", kMinusAddend = "-addend";

}  // namespace weft::ptx
