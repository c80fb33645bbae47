// PTX as nvcc writes it for sm_90a, interpreted on the CPU: CUDA kernels run, slowly and exactly as
// the PTX ISA manual says, on machines without an NVIDIA GPU. (PTX ISA 9.0; what ptxas does later,
// registers and order of loads, is not seen.)
//
// Generic addresses are the host's own: global memory is what the host has allocated, a CTA's
// shared memory and a thread's local memory are blocks of the interpreter's, so `cvta` and generic
// loads work. Warps are executed in lockstep where their threads are at the same place, each thread
// with a place of its own (as since Volta); all CTAs of a launch are resident and take turns, so
// grids may wait for one another. A launch ends with an error, not a hang: see Limits.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::ptx {

/// One kernel's parameter in the order of its declaration: bytes and alignment.
struct Parameter {
  int32_t bytes = 0;
  int32_t alignment = 1;
};

struct Program;  // of the implementation: the functions and variables of a module, decoded

class Module {
 public:
  /// Parses a module's text. Error (input): what is no PTX, with its line. An instruction that the
  /// interpreter does not know is refused when it is executed. `name` is for messages.
  static Result<Module> parse(std::string_view text, std::string name);

  /// The parameters of a kernel (.entry) by its mangled name; null: there is none.
  const std::vector<Parameter>* parameters(std::string_view kernel) const;
  /// The address of a .global or .const variable and its bytes; empty: there is none.
  std::span<std::byte> variable(std::string_view name) const;

  const Program& program() const { return *program_; }

 private:
  std::shared_ptr<Program> program_;
};

/// When copies that run beside the threads land: as soon as they are asked for, as late as whoever
/// waits for them lets them, or one or the other by chance (the same in every run). What is right
/// is right with each.
enum class Landing : uint8_t { either, soon, late };

struct Launch {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t cluster = 1;       ///< CTAs along x
  uint32_t shared_bytes = 0;  ///< dynamic
  Landing copies = Landing::either;
};

struct Limits {
  std::chrono::seconds time{
      120};  ///< after which a launch ends with an error that says where its warps are
};

struct Counts {
  uint64_t warp_instructions = 0;
};

/// Executes a kernel until all threads have ended. `arguments`: the address of each parameter's
/// value. Errors (device): a trap, an address outside of the CTA's shared memory, a barrier that
/// nobody can complete, too long a run; with kernel, PTX line and thread.
Result<Counts> run(const Module& module, std::string_view kernel, const Launch& launch,
                   std::span<const void* const> arguments, const Limits& limits = {});

}  // namespace weft::ptx
