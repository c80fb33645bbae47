// Reads memory as fast as it comes and does nothing with it: the limit that decode is held against.
#include "engine/cdna/read.h"

#include "arch/cdna/memory.hip.h"

using namespace weft::cdna;

extern "C" __global__ __launch_bounds__(kReadThreads, 4) void read(ReadParams p) {
  constexpr int kAhead = 8;
  constexpr uint32_t kStep = kReadBytes / kAhead;
  const int64_t begin = workgroup_index() * p.each;
  const int64_t left = p.bytes - begin;
  const auto bytes = static_cast<uint32_t>(left <= 0 ? 0 : left < p.each ? left : p.each);
  const Buffer from(p.data + begin, bytes);
  u32x4 sum = {};
  for (uint32_t at = 0; at < bytes; at += kReadBytes) {
    u32x4 part[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      part[i] = from.load_once(at + i * kStep + thread_index() * 16, 0);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      sum += part[i];
    }
  }
  if (sum[0] + sum[1] + sum[2] + sum[3] == p.wanted) {  // the compiler must not leave loads out
    *p.out = p.wanted;
  }
}
