// What kernels ask of the host while they run, as ROCm's runtime answers it: printf, by host calls
// or from a buffer, and memory for malloc(). The memory layouts are those that ROCm's device
// library fills (hostcall_impl.cl, cprintf.cl) and clang writes itself (-mprintf-kind=buffered,
// LLVM's AMDGPUEmitPrintf.cpp).
//
// Host calls. A wave takes a packet off a stack of free ones, writes up to eight words for each of
// its lanes, pushes it on a stack of ready ones and waits until the host has reset the packet's
// ready bit; the first two words are the answer. Stacks are linked by numbers of packets with a tag
// above them. A printf is a message of several calls: a word that says where to print (0: stdout,
// 1: stderr), the format and its arguments, strings padded to eight bytes.
//
// The buffer. Waves claim room in it by an atomic on its first word and leave a word with size and
// kind, the format or its number in the code object's metadata, and arguments as above. It is
// printed when the launch is over; what does not fit is lost, as with ROCm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "arch/cdna/code_object.h"
#include "base/result.h"
#include "sim/wave.h"

namespace weft::sim {

class DeviceHeap;
class Memory;

class HostServices {
 public:
  /// What this kernel may ask for when so many of its waves are on the device at once. Errors
  /// (device): no memory for it.
  static Result<std::unique_ptr<HostServices>> open(Memory& memory, DeviceHeap& heap,
                                                    const cdna::CodeObject& object,
                                                    const cdna::Kernel& kernel, uint64_t waves);
  ~HostServices();
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  /// Addresses for the kernel's hidden arguments; 0: it does not ask for them.
  uint64_t hostcall_buffer() const { return calls_; }
  uint64_t printf_buffer() const { return prints_; }
  uint64_t heap() const { return heap_at_; }

  /// Answers the calls that are ready. Any thread may ask. Calls of other services, and
  /// damaged ones, become findings and end the launch.
  void serve(Launch& launch);
  /// After the launch: prints what is in the buffer.
  void finish(Launch& launch);

 private:
  HostServices(Memory& memory, DeviceHeap& heap) : memory_(memory), heap_(heap) {}
  Status open_calls(uint64_t waves);
  Status open_prints(const cdna::CodeObject& object);
  bool serve_packet(uint64_t packet, std::string& wrong);
  bool append(uint64_t* slot, std::string& wrong);
  void serve_memory(uint64_t* slot);

  Memory& memory_;
  DeviceHeap& heap_;
  uint64_t heap_at_ = 0;
  uint64_t calls_ = 0;
  uint64_t packets_ = 0;   ///< a power of two
  uint64_t payloads_ = 0;  ///< address; what device code may write is not relied on
  uint64_t prints_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> messages_;  ///< unfinished ones
  uint64_t next_message_ = 0;
  std::map<uint64_t, std::string> formats_;  ///< by their number
};

/// What printf prints of a format with arguments as device code hands them over: a word each,
/// strings in place and padded to eight bytes. Ends where arguments are missing. %n prints nothing.
std::string format_printf(std::string_view format, std::span<const uint64_t> arguments);

}  // namespace weft::sim
