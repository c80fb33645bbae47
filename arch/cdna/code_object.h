// Reads an AMD GPU code object: the ELF file that the compiler writes for one target, with its
// kernels' descriptors and resource use (LLVM's "User Guide for AMDGPU Backend", sections "ELF Code
// Object" and "Code Object Metadata"). Nothing in the file is trusted: every offset, length and
// address is checked before it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/cdna/target.h"
#include "base/result.h"

namespace weft::cdna {

/// A part of the file that is loaded (PT_LOAD), at an address relative to where the object is put.
struct Segment {
  uint64_t address = 0;
  std::span<const std::byte> bytes;  ///< from the file; zeros follow
  uint64_t memory_bytes = 0;         ///< at least bytes.size()
  bool writable = false;
  bool executable = false;
};

/// A named address (from the dynamic symbol table).
struct Symbol {
  enum class Kind : uint8_t { data, code, other };
  std::string_view name;
  uint64_t address = 0;
  uint64_t bytes = 0;
  Kind kind = Kind::other;
};

/// Something to write when the object is loaded: R_AMDGPU_RELATIVE64 and the like.
struct Relocation {
  uint64_t address = 0;         ///< where
  uint32_t type = 0;            ///< R_AMDGPU_*
  uint64_t symbol_address = 0;  ///< of the symbol it names; 0: none
  int64_t addend = 0;
};

/// A section as the linker named it.
struct Section {
  uint64_t address = 0;
  std::span<const std::byte> bytes;  ///< empty: no such section, or nothing in it
};

/// An argument in a kernel's argument segment.
struct KernelArgument {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string_view kind;  ///< "by_value", "global_buffer", "hidden_block_count_x", ...
};

/// A kernel and what it takes of a compute unit.
struct Kernel {
  std::string_view name;
  uint64_t entry = 0;       ///< address of the first instruction
  uint64_t descriptor = 0;  ///< address of the kernel descriptor
  std::array<std::byte, 64> descriptor_bytes{};
  uint64_t argument_bytes = 0;  ///< of the argument segment
  std::vector<KernelArgument> arguments;
  uint32_t vgprs = 0;  ///< vector registers of a lane, AGPRs among them
  uint32_t agprs = 0;
  uint32_t sgprs = 0;
  uint32_t vgpr_spills = 0;
  uint32_t sgpr_spills = 0;
  uint32_t lds_bytes = 0;      ///< declared; a launch may add to it
  uint32_t scratch_bytes = 0;  ///< of a lane
  uint32_t max_workgroup_threads = 0;
};

/// A parsed code object: a view of the bytes it was parsed from, which must outlive it.
class CodeObject {
 public:
  /// Errors (input): not an ELF file, cut short, for another GPU, or with damaged metadata; the
  /// sentence begins with `name`.
  static Result<CodeObject> parse(std::span<const std::byte> bytes, std::string_view name);

  Target target() const { return target_; }
  std::span<const Kernel> kernels() const { return kernels_; }
  /// nullptr: no such kernel.
  const Kernel* kernel(std::string_view name) const;
  std::span<const Segment> segments() const { return segments_; }
  std::span<const Symbol> symbols() const { return symbols_; }
  std::span<const Relocation> relocations() const { return relocations_; }
  /// Formats of buffered printf, "0:0:<hash>,<format>" (metadata amdhsa.printf).
  std::span<const std::string_view> printf_formats() const { return printf_formats_; }
  /// For example ".text" or ".debug_line".
  Section section(std::string_view name) const;
  /// Bytes of memory that the loaded segments span, from address 0.
  uint64_t image_bytes() const { return image_bytes_; }

 private:
  friend class CodeObjectParser;
  struct NamedSection {
    std::string_view name;
    Section section;
  };
  Target target_ = Target::gfx942;
  std::vector<Kernel> kernels_;
  std::vector<Segment> segments_;
  std::vector<Symbol> symbols_;
  std::vector<Relocation> relocations_;
  std::vector<NamedSection> sections_;
  std::vector<std::string_view> printf_formats_;
  uint64_t image_bytes_ = 0;
};

/// How many waves of a kernel a SIMD holds when its workgroups have `threads` threads and take
/// `dynamic_lds` bytes beside the declared ones; 0: it does not fit at all.
int waves_per_simd(const Kernel& kernel, Target target, int threads, int64_t dynamic_lds = 0);

}  // namespace weft::cdna
