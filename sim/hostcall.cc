#include "sim/hostcall.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "sim/device_heap.h"
#include "sim/memory.h"

namespace weft::sim {
namespace {

/// A packet's header. Payloads, 64 slots of eight words each, lie elsewhere.
struct Packet {
  uint64_t next;
  uint64_t lanes;
  uint32_t service;
  uint32_t control;  ///< bit 0: ready
};
struct CallBuffer {
  uint64_t packets;
  uint64_t payloads;
  uint64_t doorbell;
  uint64_t free;
  uint64_t ready;
  uint64_t index_mask;
};
/// An HSA signal, which device code adds 1 to when a packet is ready.
struct Signal {
  int64_t kind;
  int64_t value;
  uint64_t mailbox;  ///< 0: nobody is woken by an interrupt
  uint64_t rest[5];
};
static_assert(sizeof(Packet) == 24 && sizeof(CallBuffer) == 48 && sizeof(Signal) == 64,
              "laid out as device code has them");

constexpr uint64_t kPacketsAt = sizeof(CallBuffer) + sizeof(Signal);
constexpr size_t kSlotWords = 8;
constexpr size_t kPayloadBytes = kLanes * kSlotWords * sizeof(uint64_t);
constexpr uint32_t kServicePrintf = 2;
constexpr uint32_t kServiceMemory = 3;
constexpr uint64_t kPrintBytes = 4096 * 1024;  // as ROCm has it
// No kernel comes near these; what exceeds them is damage.
constexpr size_t kMostMessages = 1 << 20;
constexpr size_t kMostMessageWords = 1 << 20;

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

bool asks_for(const cdna::Kernel& kernel, std::string_view kind) {
  return std::any_of(kernel.arguments.begin(), kernel.arguments.end(),
                     [&](const cdna::KernelArgument& a) { return a.kind == kind; });
}

/// Words that a string of so many characters and its zero byte take.
size_t words_for(size_t characters) { return characters / sizeof(uint64_t) + 1; }

/// The string at the begin of some words, up to its zero byte or their end.
std::string_view text_in(std::span<const uint64_t> words) {
  const auto* begin = reinterpret_cast<const char*>(words.data());
  return {begin, ::strnlen(begin, words.size_bytes())};
}

/// A printf message: where to, the format, its arguments. The number of characters; -1: none.
int64_t print_message(std::span<const uint64_t> words) {
  if (words.size() < 2 || words[0] > 1) {
    return -1;
  }
  const std::string_view format = text_in(words.subspan(1));
  const std::string text =
      format_printf(format, words.subspan(std::min(words.size(), 1 + words_for(format.size()))));
  std::fwrite(text.data(), 1, text.size(), words[0] == 0 ? stdout : stderr);
  return static_cast<int64_t>(text.size());
}

/// One conversion of a format: "%-5.2lf".
class Conversion {
 public:
  /// From its percent sign on; false: it has no end.
  bool parse(std::string_view format) {
    const size_t end = format.find_first_of("diouxXfFeEgGaAcspn", 1);
    if (end == std::string_view::npos) {
      return false;
    }
    length_ = end + 1;
    kind_ = format[end];
    for (const char c : format.substr(1, end - 1)) {
      if (c == '*') {
        ++stars_;
      }
      // Arguments are 64 bits wide and doubles; shorter integers keep their modifiers.
      const bool integer = std::string_view("diouxX").find(kind_) != std::string_view::npos;
      if (std::string_view("hlLjzt").find(c) == std::string_view::npos || (integer && c != 'L')) {
        flags_ += c;
      }
    }
    return flags_.find_first_not_of("-+ #0123456789.*hljzt") == std::string::npos && stars_ < 3;
  }
  size_t length() const { return length_; }

  /// Its text; false: arguments are missing. Takes the arguments that it uses.
  bool print(std::span<const uint64_t>& arguments, std::string& out) const {
    if (arguments.size() < stars_ + 1) {
      return false;
    }
    std::string spec = "%" + flags_;
    for (size_t k = 0; k < stars_; ++k) {
      const auto width = static_cast<int32_t>(arguments[k]);
      const size_t star = spec.find('*');
      if (spec[star - 1] == '.' && width < 0) {  // as if it were not there
        spec.erase(star - 1, 2);
      } else {
        spec.replace(star, 1, std::to_string(width));
      }
    }
    arguments = arguments.subspan(stars_);
    if (!moderate(spec)) {
      return false;
    }
    const uint64_t value = arguments[0];
    size_t used = 1;
    switch (kind_) {
      case 'n':
        break;
      case 's': {
        const std::string text(text_in(arguments));
        used = std::min(arguments.size(), words_for(text.size()));
        add(out, spec + "s", text.c_str());
        break;
      }
      case 'p':
        add(out, spec + "p", reinterpret_cast<const void*>(value));
        break;
      case 'd':
      case 'i':
      case 'o':
      case 'u':
      case 'x':
      case 'X':
        if (spec.find_first_of("ljzt") != std::string::npos) {
          add(out, spec + kind_, value);
        } else {
          add(out, spec + kind_, static_cast<int>(value));
        }
        break;
      case 'c':
        add(out, spec + "c", static_cast<int>(value));
        break;
      default:
        add(out, spec + kind_, std::bit_cast<double>(value));
        break;
    }
    arguments = arguments.subspan(used);
    return true;
  }

 private:
  /// Whether width and precision are numbers that somebody means.
  static bool moderate(const std::string& spec) {
    constexpr long kMost = 65536;
    for (size_t k = 0; k < spec.size(); ++k) {
      if (spec[k] >= '0' && spec[k] <= '9') {
        char* end = nullptr;
        if (std::strtol(&spec[k], &end, 10) > kMost) {
          return false;
        }
        k = static_cast<size_t>(end - spec.c_str()) - 1;
      }
    }
    return true;
  }
  template <class T>
  static void add(std::string& out, const std::string& spec, T value) {
    const int size = std::snprintf(nullptr, 0, spec.c_str(), value);
    if (size > 0) {
      const size_t before = out.size();
      out.resize(before + static_cast<size_t>(size) + 1);
      std::snprintf(&out[before], static_cast<size_t>(size) + 1, spec.c_str(), value);
      out.pop_back();
    }
  }

  std::string flags_;
  size_t length_ = 0;
  size_t stars_ = 0;
  char kind_ = 0;
};

}  // namespace

std::string format_printf(std::string_view format, std::span<const uint64_t> arguments) {
  std::string out;
  while (!format.empty()) {
    const size_t percent = std::min(format.find('%'), format.size());
    out += format.substr(0, percent);
    format.remove_prefix(percent);
    if (format.starts_with("%%")) {
      out += '%';
      format.remove_prefix(2);
      continue;
    }
    Conversion conversion;
    if (format.empty() || !conversion.parse(format) || !conversion.print(arguments, out)) {
      break;
    }
    format.remove_prefix(conversion.length());
  }
  return out;
}

Result<std::unique_ptr<HostServices>> HostServices::open(Memory& memory, DeviceHeap& heap,
                                                         const cdna::CodeObject& object,
                                                         const cdna::Kernel& kernel,
                                                         uint64_t waves) {
  std::unique_ptr<HostServices> services(new HostServices(memory, heap));
  if (asks_for(kernel, "hidden_hostcall_buffer")) {
    WEFT_TRY(services->open_calls(waves));
  }
  if (asks_for(kernel, "hidden_printf_buffer")) {
    WEFT_TRY(services->open_prints(object));
  }
  if (asks_for(kernel, "hidden_heap_v1")) {
    WEFT_ASSIGN(services->heap_at_, heap.bookkeeping());
  }
  return services;
}

HostServices::~HostServices() {
  for (const uint64_t buffer : {calls_, prints_}) {
    if (buffer != 0) {
      (void)memory_.free(buffer);
    }
  }
}

Status HostServices::open_calls(uint64_t waves) {
  // A wave holds one packet at most.
  packets_ = std::bit_ceil(std::max<uint64_t>(waves, 2));
  const uint64_t payloads_at = (kPacketsAt + packets_ * sizeof(Packet) + 63) / 64 * 64;
  WEFT_ASSIGN(calls_,
              memory_.allocate(payloads_at + packets_ * kPayloadBytes, {kHost, Grain::fine}));
  payloads_ = calls_ + payloads_at;
  auto& buffer = *at<CallBuffer>(calls_);
  buffer = {.packets = calls_ + kPacketsAt,
            .payloads = payloads_,
            .doorbell = calls_ + sizeof(CallBuffer),
            .free = packets_ - 1,
            .ready = 0,
            .index_mask = packets_ - 1};
  at<Signal>(buffer.doorbell)->kind = 1;  // AMD_SIGNAL_KIND_USER
  // Packet 0 has a tag, for 0 ends a stack.
  auto* packets = at<Packet>(buffer.packets);
  for (uint64_t k = 1; k < packets_; ++k) {
    packets[k].next = k == 1 ? packets_ : k - 1;
  }
  return {};
}

Status HostServices::open_prints(const cdna::CodeObject& object) {
  WEFT_ASSIGN(prints_, memory_.allocate(kPrintBytes, {kHost, Grain::fine}));
  at<uint32_t>(prints_)[1] = kPrintBytes - 2 * sizeof(uint32_t);
  for (const std::string_view entry : object.printf_formats()) {
    // Identifier, sizes of arguments (none here), the format's number in hexadecimal, the format.
    const size_t colon = entry.find(':', std::min(entry.find(':'), entry.size() - 1) + 1);
    const size_t comma = entry.find(',');
    if (colon < comma && comma != std::string_view::npos) {
      const std::string number(entry.substr(colon + 1, comma - colon - 1));
      formats_[std::strtoull(number.c_str(), nullptr, 16)] = entry.substr(comma + 1);
    }
  }
  return {};
}

/// Adds the words of one lane's call to its message, and prints the message when that ends it.
bool HostServices::append(uint64_t* slot, std::string& wrong) {
  // Bit 0: begins a message, bit 1: ends it, bits 7:5: words that follow, bits 63:8: the message.
  const uint64_t descriptor = slot[0];
  uint64_t message = descriptor >> 8;
  if ((descriptor & 1) != 0) {
    message = next_message_++ & (~uint64_t{0} >> 8);
    messages_[message] = {};
  }
  const auto found = messages_.find(message);
  if (found == messages_.end() || messages_.size() > kMostMessages ||
      found->second.size() > kMostMessageWords) {
    wrong = "a host call belongs to message " + std::to_string(message) +
            ", which was not begun or is too long";
    return false;
  }
  std::vector<uint64_t>& words = found->second;
  words.insert(words.end(), slot + 1, slot + 1 + (descriptor >> 5 & 7));
  if ((descriptor & 2) != 0) {
    slot[0] = static_cast<uint64_t>(print_message(words));
    messages_.erase(found);
  } else {
    slot[0] = message << 8 | (descriptor & 0xfe);
  }
  return true;
}

/// An address to take back, or 0 and how many bytes to give.
void HostServices::serve_memory(uint64_t* slot) {
  if (slot[0] != 0) {
    heap_.take(slot[0]);
  } else {
    slot[0] = heap_.give(slot[1]);
  }
}

bool HostServices::serve_packet(uint64_t packet, std::string& wrong) {
  Packet& header = at<Packet>(calls_ + kPacketsAt)[packet];
  auto* slots = at<uint64_t>(payloads_ + packet * kPayloadBytes);
  const uint32_t service = header.service;
  if (service != kServicePrintf && service != kServiceMemory) {
    wrong = "the kernel calls the host's service " + std::to_string(service) + ", and only " +
            std::to_string(kServicePrintf) + " (printf) and " + std::to_string(kServiceMemory) +
            " (memory) are answered";
    return false;
  }
  for (uint64_t rest = header.lanes; rest != 0; rest &= rest - 1) {
    uint64_t* slot = slots + kSlotWords * static_cast<size_t>(std::countr_zero(rest));
    if (service == kServiceMemory) {
      serve_memory(slot);
    } else if (!append(slot, wrong)) {
      return false;
    }
  }
  __atomic_store_n(&header.control, 0U, __ATOMIC_RELEASE);
  return true;
}

void HostServices::serve(Launch& launch) {
  if (calls_ == 0 || __atomic_load_n(&at<CallBuffer>(calls_)->ready, __ATOMIC_RELAXED) == 0) {
    return;
  }
  const std::lock_guard lock(mutex_);
  auto& buffer = *at<CallBuffer>(calls_);
  uint64_t next = __atomic_exchange_n(&buffer.ready, uint64_t{0}, __ATOMIC_ACQUIRE);
  std::string wrong;
  // Damaged links may go round; a stack is never higher than there are packets.
  for (uint64_t k = 0; next != 0 && wrong.empty(); ++k) {
    const uint64_t packet = next & (packets_ - 1);
    next = at<Packet>(calls_ + kPacketsAt)[packet].next;
    if (k == packets_) {
      wrong = "the stack of host calls has no end";
    } else {
      serve_packet(packet, wrong);
    }
  }
  std::fflush(stdout);
  if (!wrong.empty()) {
    const std::lock_guard guard(launch.mutex);
    Finding finding;
    finding.kind = FindingKind::unknown_instruction;
    finding.kernel = launch.kernel;
    finding.message = "Kernel " + launch.kernel + ": " + wrong + ".";
    launch.findings.push_back(std::move(finding));
    launch.abort.store(true);
  }
}

void HostServices::finish(Launch& launch) {
  serve(launch);
  if (prints_ == 0) {
    return;
  }
  const auto* words = at<const uint32_t>(prints_);
  const size_t end = std::min<size_t>(words[0], kPrintBytes - 8) / sizeof(uint32_t);
  for (size_t k = 0; k < end;) {
    // Bit 0: to stderr, bit 1: the format's number comes first, bits 31:2: bytes, these among them.
    const uint32_t control = words[2 + k];
    const size_t size = control >> 4;
    if (size < 1 || size > end - k) {
      break;
    }
    std::vector<uint64_t> record(size / 2 + 1);
    std::memcpy(record.data(), words + 3 + k, (size - 1) * sizeof(uint32_t));
    std::span<const uint64_t> arguments(record.data(), (size - 1) / 2);
    std::string_view format;
    if ((control & 2) != 0 && !arguments.empty()) {
      format = formats_[arguments[0]];
      arguments = arguments.subspan(1);
    } else {
      format = text_in(arguments);
      arguments = arguments.subspan(std::min(arguments.size(), words_for(format.size())));
    }
    const std::string text = format_printf(format, arguments);
    std::fwrite(text.data(), 1, text.size(), (control & 1) != 0 ? stderr : stdout);
    k += size;
  }
  std::fflush(stdout);
}

}  // namespace weft::sim
