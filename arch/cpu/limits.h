// What this machine's processors and memory can do at most, measured: the floor that every CPU
// figure is printed with. Clocks and shared memory drift, so measure beside what is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace weft::cpu {

/// Of several rounds, in units per second.
struct Rate {
  double best = 0;
  double median = 0;
};

/// Bytes per second that `threads` pinned threads read from memory together, each a contiguous part
/// of `bytes`, with plain vector loads as 1, 2, 4 and 8 sequential streams (which is fastest
/// differs between processors and page sizes): `median` is that of the best number of streams,
/// `best` the best round of all. The buffer must be far larger than the caches and is on 2 MiB
/// pages where the system has them. Takes about a second for 1 GiB. Error (device): no memory.
Result<Rate> read_bandwidth(int threads, size_t bytes = size_t{1} << 30);
/// The same over memory that is there already (mapped weights, say), as its pages are.
Rate read_bandwidth(int threads, std::span<const std::byte> memory);

/// Bytes of the last cache that the cores share; where the system does not tell, what is usual.
int64_t last_cache_bytes();

/// Floating-point operations per second that `threads` pinned threads reach together in registers,
/// with the best instruction of current_isa(): a multiplication and an addition count as two.
Rate f32_peak(int threads);
/// The same for products of bf16 summed in f32: AMX or VDPBF16PS, or f32_peak() where
/// neither is used.
Rate bf16_peak(int threads);

}  // namespace weft::cpu
