// A module decoded: what the parser makes and the interpreter follows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/hopper/ptx.h"

namespace weft::ptx {

struct Warp;
struct Instruction;

constexpr int kLanes = 32;

/// What becomes of a group of threads after an instruction.
enum class Step : uint8_t {
  next,   ///< goes on behind it
  jump,   ///< all go to Warp::pc, which it has set
  moved,  ///< the places of its threads have been set
  yield,  ///< goes on behind it, but others first: it looked for something that is not there yet
  again,  ///< stays there; others first
  fault,  ///< Warp::fault() has said why
};
/// Executes an instruction for the lanes of `mask`, which is not empty.
using Handler = Step (*)(Warp& warp, const Instruction& in, uint32_t mask);

/// Where the values of an operand are: bytes in the warp's frame or, with the highest bit, in the
/// program's constants. 32 lanes of 4 bytes (registers of up to 32 bits), 8 or 16; a predicate is
/// one word, a bit a lane.
struct Slot {
  static constexpr uint32_t kConstant = 1u << 31;
  static constexpr uint32_t kNone = ~0u;  ///< `_`
  uint32_t offset = kNone;

  bool none() const { return offset == kNone; }
};

/// Where threads may go behind an instruction.
enum class Flow : uint8_t { on, branch, table, end };

struct Instruction {
  Handler run = nullptr;
  const Slot* o = nullptr;  ///< operands in the order of the text, vectors spread
  int64_t immediate = 0;    ///< the first address's displacement; a branch's place
  int64_t second_displacement = 0;
  uint32_t guard = 0;   ///< the predicate's offset in the frame
  uint32_t invert = 0;  ///< ~0: where the predicate is false
  uint32_t line = 0;
  uint32_t modifier = 0;  ///< of the handler
  uint8_t count = 1;      ///< elements of the first vector
  uint8_t wide = 0;       ///< a bit an address: its register has 64 bits
  uint8_t bytes = 0;      ///< of an element of what is loaded or stored
  uint8_t flags = 0;      ///< of the handler
  Flow flow = Flow::on;
};

/// What every frame begins with.
namespace frame {
constexpr uint32_t kAlways = 0;         ///< a predicate that is true
constexpr uint32_t kNever = 4;          ///< and one that is not
constexpr uint32_t kZero = 256;         ///< 64 bits a lane each: 0,
constexpr uint32_t kShared = 512;       ///< where the CTA's shared memory begins in the window,
constexpr uint32_t kDynamic = 768;      ///< and its dynamic part,
constexpr uint32_t kLocal = 1024;       ///< the thread's local memory,
constexpr uint32_t kParameters = 1280;  ///< the kernel's parameters
constexpr uint32_t kRegisters = 1536;
}  // namespace frame

/// A formal parameter, or what a function returns: its place in the thread's local memory, or for a
/// kernel in the launch's block of parameters.
struct Formal {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

struct Function {
  std::string name;
  bool entry = false;
  bool defined = false;
  uint32_t begin = 0;  ///< its instructions in Program::code
  uint32_t end = 0;
  std::vector<Formal> returns;
  std::vector<Formal> formals;
  std::vector<Parameter> parameters;  ///< of a kernel
};

/// The arguments of a call: what is copied from where to where in the thread's local memory.
struct CallSite {
  uint32_t caller = 0;
  uint32_t function = 0;
  struct Copy {
    uint32_t from, to, bytes;
  };
  std::vector<Copy> before, after;
};

struct Variable {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

struct Program {
  static constexpr uint64_t kMostStored = 64u << 20;

  Program();
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::string name;
  std::vector<Instruction> code;
  std::vector<std::string> texts;     ///< of instructions, by their number in `code`
  std::vector<uint32_t> function_of;  ///< by number in `code`
  std::deque<std::vector<Slot>> slots;
  std::vector<uint32_t> constants;  ///< what Slots with kConstant point into
  std::vector<Function> functions;
  std::vector<CallSite> calls;
  std::vector<std::vector<uint32_t>> tables;  ///< places of brx.idx
  std::unordered_map<std::string, uint32_t> function_by_name;
  std::map<std::string, Variable, std::less<>> variables;
  std::byte* storage = nullptr;  ///< of variables
  uint64_t stored = 0;
  uint32_t frame_bytes = frame::kRegisters;
  uint32_t local_bytes = 0;   ///< of a thread: locals and parameters of all functions
  uint32_t shared_bytes = 0;  ///< static, of all kernels of the module
  uint32_t dynamic_alignment = 16;
};

/// Addresses in the shared window: the CTA's rank in its cluster from bit 24 on, and below the
/// place, of which the first KiB is the system's. A generic address is the cluster's arena's plus
/// that.
namespace window {
constexpr uint32_t kRankShift = 24;
constexpr uint32_t kReserved = 1024;
constexpr uint32_t kDescribed = 1u << 18;  ///< what a matrix's descriptor reaches
}  // namespace window

}  // namespace weft::ptx
