// LLVM's part in the simulator: machine code to assembler text, and addresses to source lines. The
// only file that includes LLVM is disassembler.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/target.h"

namespace weft::sim {

/// One instruction as LLVM prints it, for example "v_add_f32_e32 v0, s1, v2".
struct AssemblerLine {
  uint64_t address = 0;
  uint32_t bytes = 0;  ///< 4, 8, ...
  std::string text;    ///< empty: these four bytes are no instruction
};

/// Disassembles `code`, which lies at `address`, for a target.
/// Errors (device): LLVM has no AMDGPU target.
Result<std::vector<AssemblerLine>> disassemble(std::span<const std::byte> code, uint64_t address,
                                               Target target);

/// "file.hip:12" for addresses of a code object's text, from its DWARF line table.
class SourceLines {
 public:
  /// `code_object`: a whole ELF file, copied. A file without line table yields empty names.
  explicit SourceLines(std::span<const std::byte> code_object);
  ~SourceLines();
  SourceLines(SourceLines&&) noexcept;
  SourceLines& operator=(SourceLines&&) noexcept;

  /// "" when nothing is known of the address.
  std::string at(uint64_t address) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::sim
