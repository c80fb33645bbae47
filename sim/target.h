// The AMD GPUs that the simulator is: what tells one from the other, in figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::sim {

enum class Target : uint8_t { gfx942, gfx950 };

/// One vector register: 32 bits for each of a wave's 64 lanes.
inline constexpr int kLanes = 64;
using Lanes = uint32_t[kLanes];

/// A whole device. Figures of the Instinct MI300X (gfx942) and MI355X (gfx950): AMD's CDNA 3 and
/// CDNA 4 white papers and instruction set manuals.
struct Limits {
  std::string_view name;     ///< "gfx942"
  std::string_view product;  ///< "AMD Instinct MI300X"
  int compute_units;         ///< in the whole device
  int xcds;                  ///< dies; workgroups go to them in turn
  int simds = 4;             ///< vector units of a compute unit
  int waves_per_simd = 8;    ///< resident at most
  int vgprs_per_simd = 512;  ///< registers of 64 lanes, arch and accumulation together
  int sgprs_per_wave = 102;  ///< addressable by a program
  uint32_t lds_bytes;        ///< of a compute unit
  uint32_t lds_granule;      ///< bytes in which it is handed out
  double clock_hz;           ///< peak engine clock
  double hbm_bytes_per_second;
  uint64_t memory_bytes;
};

constexpr Limits limits_of(Target target) {
  if (target == Target::gfx942) {
    return {.name = "gfx942",
            .product = "AMD Instinct MI300X",
            .compute_units = 304,
            .xcds = 8,
            .lds_bytes = 64 << 10,
            .lds_granule = 512,
            .clock_hz = 2.1e9,
            .hbm_bytes_per_second = 5.3e12,
            .memory_bytes = 192ULL << 30};
  }
  return {.name = "gfx950",
          .product = "AMD Instinct MI355X",
          .compute_units = 256,
          .xcds = 8,
          .lds_bytes = 160 << 10,
          .lds_granule = 1280,
          .clock_hz = 2.4e9,
          .hbm_bytes_per_second = 8.0e12,
          .memory_bytes = 288ULL << 30};
}

constexpr std::optional<Target> target_named(std::string_view name) {
  for (const Target target : {Target::gfx942, Target::gfx950}) {
    if (limits_of(target).name == name) {
      return target;
    }
  }
  return std::nullopt;
}

}  // namespace weft::sim
