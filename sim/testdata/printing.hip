// printf in kernels, both ways that device code has of asking the host for it (sim/hostcall.h).
// ROCm's device library, which this project does not have, would bring what is here beside the
// kernels.
#include "sim/testdata/hip.h"

#define CONSTANT __attribute__((address_space(4)))
#define GLOBAL __attribute__((address_space(1)))

using Word = unsigned long;

extern "C" {
__device__ int printf(const char* format, ...);

/// Room in the buffer of printf, or null; the compiler's own code fills it.
__device__ GLOBAL char* __printf_alloc(unsigned bytes) {
  auto* buffer = ((GLOBAL unsigned* CONSTANT*)__builtin_amdgcn_implicitarg_ptr())[9];
  const unsigned size = buffer[1];
  unsigned offset = __scoped_atomic_load_n(buffer, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  do {
    if (8 + offset + bytes > size) {
      return nullptr;
    }
  } while (!__scoped_atomic_compare_exchange_n(buffer, &offset, offset + bytes, false,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __MEMORY_SCOPE_DEVICE));
  return (GLOBAL char*)buffer + 8 + offset;
}

__global__ void buffered(int x, const char* name) {
  if (threadIdx.x < 3) {
    printf("thread %u: %5.2f|%-6s|%s|%ld%%\n", threadIdx.x, x * 0.5, "abc", name, 1L << 40);
  }
}

__global__ void buffered_format(const char* format, int x) { printf(format, x); }

/// More than the buffer holds.
__global__ void buffered_much() { printf("%s\n", "0123456789012345678901234567890123456789"); }
}

namespace {

struct Packet {
  Word next;
  Word lanes;
  unsigned service;
  unsigned control;
};
struct Calls {
  Packet* packets;
  Word (*payloads)[64][8];
  struct Signal {
    long kind;
    long value;
    Word* mailbox;
  } * doorbell;
  Word free;
  Word ready;
  Word index_mask;
};

__device__ Word load(Word* p) {
  return __scoped_atomic_load_n(p, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
}
__device__ bool replace(Word* p, Word* expected, Word x) {
  return __scoped_atomic_compare_exchange_n(p, expected, x, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
}
__device__ Word first_lane(Word x) {
  const unsigned low = __builtin_amdgcn_readfirstlane((unsigned)x);
  return (Word)__builtin_amdgcn_readfirstlane((unsigned)(x >> 32)) << 32 | low;
}
__device__ void push(Calls* calls, Word* top, Word packet) {
  Word before = load(top);
  do {
    calls->packets[packet & calls->index_mask].next = before;
  } while (!replace(top, &before, packet));
}

/// The active lanes of a wave call a service of the host with eight words each; the first word of
/// each one's answer.
__attribute__((noinline)) __device__ Word call_host(unsigned service, const Word (&words)[8]) {
  Calls* calls = ((Calls * CONSTANT*)__builtin_amdgcn_implicitarg_ptr())[10];
  const unsigned lane = lane_number();
  const bool first = lane == (unsigned)__builtin_amdgcn_readfirstlane(lane);
  Word packet = 0;
  if (first) {
    packet = load(&calls->free);
    while (!replace(&calls->free, &packet, calls->packets[packet & calls->index_mask].next)) {
    }
  }
  packet = first_lane(packet);
  Packet* header = &calls->packets[packet & calls->index_mask];
  Word* slot = calls->payloads[packet & calls->index_mask][lane];
  for (int k = 0; k < 8; ++k) {
    slot[k] = words[k];
  }
  const Word lanes = __builtin_amdgcn_read_exec();
  if (first) {
    header->service = service;
    header->lanes = lanes;
    header->control = 1;
    push(calls, &calls->ready, packet);
    __scoped_atomic_fetch_add(&calls->doorbell->value, 1L, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
    if (calls->doorbell->mailbox != nullptr) {
      __builtin_amdgcn_s_sendmsg(1, 0);
    }
  }
  for (;;) {
    unsigned ready = 1;
    if (first) {
      ready = __scoped_atomic_load_n(&header->control, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM) & 1;
    }
    if (__builtin_amdgcn_readfirstlane(ready) == 0) {
      break;
    }
    __builtin_amdgcn_s_sleep(1);
  }
  const Word answer = *(volatile Word*)slot;
  if (first) {
    push(calls, &calls->free, packet + calls->index_mask + 1);
  }
  return answer;
}

/// Appends up to seven words to a message; begins one with descriptor 1.
__device__ Word append(Word message, const Word* words, int count, bool last) {
  Word call[8] = {};
  call[0] = (message & ~0xe2ul) | (last ? 2 : 0) | (Word)count << 5;
  for (int k = 0; k < count; ++k) {
    call[k + 1] = words[k];
  }
  return call_host(2, call);
}
__device__ Word append_text(Word message, const char* text, bool last) {
  Word words[7];
  for (bool more = true; more;) {
    int count = 0;
    while (more && count < 7) {
      Word word = 0;
      for (int k = 0; more && k < 8; ++k, ++text) {
        word |= (Word)(unsigned char)*text << 8 * k;
        more = *text != 0;
      }
      words[count++] = word;
    }
    message = append(message, words, count, last && !more);
  }
  return message;
}

}  // namespace

extern "C" {

/// Lanes print different numbers, from several waves and workgroups; out: what printf returns.
__global__ void called(int* out, const char* format, const char* name, int to) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x % 32 == 5) {
    return;
  }
  const Word where = to;
  Word message = append(1, &where, 1, false);
  message = append_text(message, format, false);
  const Word number = thread;
  message = append(message, &number, 1, false);
  message = append_text(message, name, false);
  const double x = thread * 0.25;
  const Word bits = __builtin_bit_cast(Word, x);
  out[thread] = (int)append(message, &bits, 1, true);
}

/// What malloc() of ROCm's library asks for: a piece of memory, noted where the library keeps its
/// books and given back by the next launch.
__global__ void takes_piece(Word bytes, Word* out) {
  auto* books = *(Word* const __attribute__((address_space(
      4)))*)((const char __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr() +
             96);
  const Word request[8] = {books[0], bytes};
  out[0] = books[0];
  if (books[0] == 0) {
    books[0] = out[1] = call_host(3, request);
    ((Word*)out[1])[bytes / 8 - 1] = 77;
  } else {
    out[1] = ((Word*)books[0])[bytes / 8 - 1];
    books[0] = 0;
    call_host(3, request);
  }
}

/// A service that nobody offers.
__global__ void calls_service(unsigned service) {
  const Word words[8] = {};
  call_host(service, words);
}

}  // extern "C"
