#include "sim/known_bytes.h"

#include <algorithm>
#include <string_view>

#include "sim/checks.h"

namespace weft::sim {
namespace {

constexpr uint64_t kEverywhere = ~uint64_t{0};
constexpr KnownBytes kKnown = {kEverywhere, kEverywhere, kEverywhere, kEverywhere};

/// A source as a whole: what is known of it, and its value where all lanes have the same.
struct Source {
  KnownBytes known;
  std::optional<uint32_t> value;

  uint32_t byte(int k) const { return *value >> (8 * k) & 0xff; }
};

Source source_of(const Wave& wave, const Operand& o) {
  if (o.kind == Operand::Kind::vgpr) {
    return {known_bytes(*wave.checks, o.index), std::nullopt};
  }
  bool known = true;
  for (int r = o.index; o.kind == Operand::Kind::sgpr && r < std::min(o.index + o.words, kExec);
       ++r) {
    known &= wave.checks->scalar_written[static_cast<size_t>(r)] == ~0U;
  }
  return {known ? kKnown : KnownBytes{},
          known ? std::optional(static_cast<uint32_t>(wave.read64(o))) : std::nullopt};
}

Source both(const Source& a, const Source& b) {
  Source out{};
  for (size_t k = 0; k < 4; ++k) {
    out.known[k] = a.known[k] & b.known[k];
  }
  return out;
}

/// A byte that is known to be `decides` there decides, whatever the other one is.
Source masked(const Source& a, const Source& b, uint32_t decides) {
  Source out = both(a, b);
  for (int k = 0; k < 4; ++k) {
    if ((a.value && a.byte(k) == decides) || (b.value && b.byte(k) == decides)) {
      out.known[static_cast<size_t>(k)] = kEverywhere;
    }
  }
  return out;
}

/// The four bytes from byte `first` on of a source and the one above it.
std::optional<Source> window(const Source& high, const Source& low, int first) {
  Source out{};
  for (int k = 0; k < 4; ++k) {
    const int at = first + k;
    out.known[static_cast<size_t>(k)] = at < 0   ? kEverywhere
                                        : at < 4 ? low.known[static_cast<size_t>(at)]
                                        : at < 8 ? high.known[static_cast<size_t>(at - 4)]
                                                 : kEverywhere;
  }
  return out;
}

/// Whole bytes of a shift by an amount that all lanes share.
std::optional<int> bytes_of_shift(const Source& amount, uint32_t unit = 1) {
  if (!amount.value || (*amount.value & 31) * unit % 8 != 0) {
    return std::nullopt;
  }
  return static_cast<int>((*amount.value & 31) * unit / 8 % 4);
}

const Source kZero{kKnown, 0};

std::optional<Source> shifted_left(const Source& a, const Source& amount) {
  const auto bytes = bytes_of_shift(amount);
  return bytes ? window(kZero, a, -*bytes) : std::nullopt;
}

std::optional<Source> permuted(const Source& high, const Source& low, const Source& selector) {
  if (!selector.value) {
    return std::nullopt;
  }
  Source out{};
  for (int k = 0; k < 4; ++k) {
    const uint32_t s = selector.byte(k);
    // 8 to 11: signs of the sources' words.
    out.known[static_cast<size_t>(k)] = s < 4    ? low.known[s]
                                        : s < 8  ? high.known[s - 4]
                                        : s < 10 ? low.known[2 * (s - 8) + 1]
                                        : s < 12 ? high.known[2 * (s - 10) + 1]
                                                 : kEverywhere;
  }
  return out;
}

/// Each result half is a half of a source.
Source packed(const Source& a, const Source& b, uint32_t halves) {
  const size_t low = (halves & 1) != 0 ? 2 : 0;
  const size_t high = (halves & 2) != 0 ? 2 : 0;
  return {{a.known[low], a.known[low + 1], b.known[high], b.known[high + 1]}, std::nullopt};
}

/// The second source in lanes of the mask, elsewhere the first.
Source chosen(const Source& a, const Source& b, uint64_t mask) {
  Source out{};
  for (size_t k = 0; k < 4; ++k) {
    out.known[k] = (a.known[k] & ~mask) | (b.known[k] & mask);
  }
  return out;
}

}  // namespace

KnownBytes known_bytes(const WaveChecks& checks, int index) {
  for (const WaveChecks::Parts& parts : checks.parts) {
    if (parts.index == index) {
      return parts.written;
    }
  }
  KnownBytes known;
  known.fill(checks.written[static_cast<size_t>(index)]);
  return known;
}

std::optional<KnownBytes> result_bytes(const Wave& wave, const Instruction& i) {
  if (i.results != 1 || i.operand[0].kind != Operand::Kind::vgpr || i.operand[0].words != 1 ||
      i.modified || i.altered || i.operands < 2) {
    return std::nullopt;
  }
  const std::string_view name = i.row->name;
  const auto source = [&](int k) { return source_of(wave, i.operand[1 + k]); };
  std::optional<Source> out;
  if (name == "v_mov_b32") {
    out = source(0);
  } else if (name == "v_and_b32") {
    out = masked(source(0), source(1), 0);
  } else if (name == "v_or_b32") {
    out = masked(source(0), source(1), 0xff);
  } else if (name == "v_xor_b32") {
    out = both(source(0), source(1));
  } else if (name == "v_or3_b32") {
    out = both(both(source(0), source(1)), source(2));
  } else if (name == "v_and_or_b32") {
    out = both(masked(source(0), source(1), 0), source(2));
  } else if (name == "v_lshlrev_b32") {
    out = shifted_left(source(1), source(0));
  } else if (name == "v_lshl_or_b32") {
    if (const auto left = shifted_left(source(0), source(1))) {
      out = both(*left, source(2));
    }
  } else if (name == "v_lshrrev_b32") {
    if (const auto bytes = bytes_of_shift(source(0))) {
      out = window(kZero, source(1), *bytes);
    }
  } else if (name == "v_alignbit_b32" || name == "v_alignbyte_b32") {
    if (const auto bytes = bytes_of_shift(source(2), name == "v_alignbyte_b32" ? 8 : 1)) {
      out = window(source(0), source(1), *bytes);
    }
  } else if (name == "v_bfi_b32") {
    const Source mask = source(0);
    const Source zeros{mask.known, mask.value ? std::optional(~*mask.value) : std::nullopt};
    out = both(masked(mask, source(1), 0), masked(zeros, source(2), 0));
  } else if (name == "v_perm_b32") {
    out = permuted(source(0), source(1), source(2));
  } else if (name == "v_pack_b32_f16") {
    out = packed(source(0), source(1), i.op_sel);
  } else if (name == "v_cndmask_b32" && source(2).value) {
    out = chosen(source(0), source(1), wave.read64(i.operand[3]));
  }
  return out ? std::optional(out->known) : std::nullopt;
}

uint32_t bytes_read(const Instruction& i, int n) {
  constexpr uint32_t kLow = 3;
  constexpr uint32_t kHigh = 12;
  const Operand& o = i.operand[n];
  const std::string_view name = i.row->name;
  if (o.select < 6) {
    return o.select < 4 ? 1U << o.select : o.select == 4 ? kLow : kHigh;
  }
  if (i.row->cost == Class::vmem_store || i.row->cost == Class::lds) {
    const bool address =
        i.row->cost == Class::lds ? n == 0 : !name.starts_with("buffer_") && n == 0;
    const bool data = i.results == 0 && !address && n < 2;
    const bool high = name.ends_with("_d16_hi");
    if (data &&
        (name.find("store_short") != std::string_view::npos || name.starts_with("ds_write_b16"))) {
      return high ? kHigh : kLow;
    }
    if (data &&
        (name.find("store_byte") != std::string_view::npos || name.starts_with("ds_write_b8"))) {
      return high ? 4 : 1;
    }
    return 15;
  }
  if (name.starts_with("v_cvt_f32_ubyte")) {
    return 1U << (name.back() - '0');
  }
  if (name == "v_cvt_f32_fp8" || name == "v_cvt_f32_bf8") {
    return 1;
  }
  const bool half = o.type == Type::f16 || o.type == Type::bf16 || o.type == Type::b16;
  if (half && i.vector && i.row->cost != Class::mfma && !name.starts_with("v_dot") &&
      name.find("_pk_") == std::string_view::npos) {
    return (i.op_sel >> (n - i.results) & 1) != 0 ? kHigh : kLow;
  }
  return 15;
}

void set_known_bytes(WaveChecks& checks, int index, uint64_t lanes, const KnownBytes& known) {
  KnownBytes now = known_bytes(checks, index);
  uint64_t all = kEverywhere;
  for (size_t k = 0; k < 4; ++k) {
    now[k] = (now[k] & ~lanes) | (known[k] & lanes);
    all &= now[k];
  }
  checks.written[static_cast<size_t>(index)] = all;
  checks.update(index);
  std::erase_if(checks.parts, [&](const auto& parts) { return parts.index == index; });
  if (std::any_of(now.begin(), now.end(), [&](uint64_t lanes_of) { return lanes_of != all; })) {
    checks.parts.push_back({index, now});
  }
}

}  // namespace weft::sim
