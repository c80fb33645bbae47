// The AMD Instinct targets and what bounds a kernel on them.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace weft::cdna {

enum class Target : uint8_t {
  gfx942,  ///< CDNA3: Instinct MI300X
  gfx950,  ///< CDNA4: Instinct MI355X
};
inline constexpr Target kTargets[] = {Target::gfx942, Target::gfx950};

/// "gfx942" or "gfx950", as compilers and code objects call it.
constexpr std::string_view name_of(Target target) {
  return target == Target::gfx942 ? "gfx942" : "gfx950";
}

constexpr std::optional<Target> target_named(std::string_view name) {
  for (const Target target : kTargets) {
    if (name == name_of(target)) {
      return target;
    }
  }
  return std::nullopt;
}

/// GPUs of a target that reach each other's memory, and one of them.
struct Node {
  Target target = Target::gfx942;
  int count = 1;
  int index = 0;

  bool operator==(const Node&) const = default;
};
inline constexpr int kMaxNode = 8;

/// "gfx942", "gfx942*8" (eight of them; the first), "gfx942*8:3" (the fourth); nullopt: none of
/// these.
inline std::optional<Node> node_named(std::string_view name) {
  const auto number = [](std::string_view text) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : -1;
  };
  const size_t colon = name.find(':');
  const std::string_view gpus = name.substr(0, colon);
  const size_t star = gpus.find('*');
  const auto target = target_named(gpus.substr(0, star));
  if (!target) {
    return std::nullopt;
  }
  const Node node{*target, star == std::string_view::npos ? 1 : number(gpus.substr(star + 1)),
                  colon == std::string_view::npos ? 0 : number(name.substr(colon + 1))};
  if (node.count < 1 || node.count > kMaxNode || node.index < 0 || node.index >= node.count) {
    return std::nullopt;
  }
  return node;
}

/// A whole GPU. Rates are the vendor's peaks (AMD Instinct MI300X and MI355X data sheets, CDNA3 and
/// CDNA4 white papers), sizes are from the CDNA3 and CDNA4 instruction set manuals.
struct Limits {
  int xcds;                     ///< accelerator dies, each with an L2 of its own
  int iods;                     ///< dies that they stand on, as many on each
  int compute_units;            ///< on all dies together
  int64_t lds_bytes;            ///< of a compute unit
  int64_t lds_granule;          ///< LDS is given to workgroups in multiples of it
  int64_t lds_read_per_cycle;   ///< bytes that a compute unit reads from its LDS
  int64_t lds_write_per_cycle;  ///< and writes
  int64_t l2_bytes;             ///< of a die
  int64_t last_cache_bytes;     ///< Infinity Cache, of all dies together
  double clock;                 ///< cycles per second, the peak engine clock
  double memory_bandwidth;      ///< bytes per second
  double f32_flops;             ///< of the vector units, per second
  double bf16_flops;            ///< dense, per second
  double fp8_flops;             ///< dense, per second
  double fp4_flops;             ///< dense, per second; 0: the target has none
};

inline constexpr int kWaveLanes = 64;
inline constexpr int kSimds = 4;              ///< of a compute unit
inline constexpr int kWavesPerSimd = 8;       ///< resident at most
inline constexpr int kVectorRegisters = 512;  ///< of a SIMD's lane, VGPRs and AGPRs together
inline constexpr int kMaxWorkgroupThreads = 1024;
inline constexpr uint32_t kMaxScratchBytes = 131056;  ///< of a lane: 8191 KiB of a wave

constexpr Limits limits_of(Target target) {
  constexpr Limits kGfx942{.xcds = 8,
                           .iods = 4,
                           .compute_units = 304,
                           .lds_bytes = 65536,
                           .lds_granule = 512,
                           .lds_read_per_cycle = 128,
                           .lds_write_per_cycle = 128,
                           .l2_bytes = int64_t{4} << 20,
                           .last_cache_bytes = int64_t{256} << 20,
                           .clock = 2.1e9,
                           .memory_bandwidth = 5.3e12,
                           .f32_flops = 163.4e12,
                           .bf16_flops = 1307.4e12,
                           .fp8_flops = 2614.9e12,
                           .fp4_flops = 0};
  constexpr Limits kGfx950{.xcds = 8,
                           .iods = 2,
                           .compute_units = 256,
                           .lds_bytes = 163840,
                           .lds_granule = 1280,
                           .lds_read_per_cycle = 256,
                           .lds_write_per_cycle = 128,
                           .l2_bytes = int64_t{4} << 20,
                           .last_cache_bytes = int64_t{256} << 20,
                           .clock = 2.4e9,
                           .memory_bandwidth = 8.0e12,
                           .f32_flops = 157.3e12,
                           .bf16_flops = 2516.6e12,
                           .fp8_flops = 5033.2e12,
                           .fp4_flops = 10066.3e12};
  return target == Target::gfx942 ? kGfx942 : kGfx950;
}

}  // namespace weft::cdna
