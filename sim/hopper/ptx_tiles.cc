// Tiles: copies through tensor maps, and the products of a warpgroup. PTX ISA,
// "cp.async.bulk.tensor", "Tensor swizzling modes", "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions". Copies land as others do (Landing). Products are made with
// their instruction; whoever waits for them finds out whether their operands are still there.
#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/hopper/ptx_async.h"
#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/tensor_map.h"

namespace weft::ptx {
namespace {

/// An address in the window with its 16-byte units exchanged: those of a row of `span` bytes by the
/// number of the 128 bytes that they are in.
uint64_t swizzled(uint64_t address, uint32_t span) {
  const uint64_t units = span / 16;
  return units < 2 ? address : address ^ ((address >> 7 & (units - 1)) << 4);
}

struct Tile {
  TensorMap map;
  std::array<int64_t, 3> at{};  ///< coordinates of its first element
  uint64_t row_bytes() const { return uint64_t{map.box[0]} * map.element_bytes; }
  uint64_t bytes() const { return row_bytes() * map.box[1] * map.box[2]; }
};

/// o[map]: the map's address, behind it as many coordinates as modifier says.
bool read_tile(Warp& warp, const Instruction& in, uint32_t lane, uint32_t map, int address,
               Tile& tile) {
  Places places;
  if (!locate(warp, 1u << lane, Space::generic, in.o[map], (in.wide >> address & 1) != 0,
              address == 0 ? in.immediate : in.second_displacement, sizeof(TensorMap), 8, places)) {
    return false;
  }
  std::memcpy(&tile.map, places[lane], sizeof(TensorMap));
  if (tile.map.mark != TensorMap::kMark || tile.map.dimensions != in.modifier) {
    warp.fault(lane,
               "reads a tensor map that is none of " + std::to_string(in.modifier) + " dimensions");
    return false;
  }
  for (uint32_t d = 0; d < in.modifier; ++d) {
    tile.at[d] = static_cast<int32_t>(warp.in<uint32_t>(in.o[map + 1 + d])[lane]);
  }
  return true;
}

/// Calls f(place in the tile, address in global memory, bytes) for 16 bytes or less at a time; the
/// address is 0 for what lies outside of the tensor. False: outside of the memory of the device.
template <class F>
bool each_piece(Warp& warp, uint32_t lane, const Tile& tile, F&& f) {
  const TensorMap& map = tile.map;
  const uint64_t row = tile.row_bytes();
  for (uint64_t z = 0; z < map.box[2]; ++z) {
    for (uint64_t y = 0; y < map.box[1]; ++y) {
      const auto global_y = static_cast<uint64_t>(tile.at[1] + static_cast<int64_t>(y));
      const auto global_z = static_cast<uint64_t>(tile.at[2] + static_cast<int64_t>(z));
      const bool inside = global_y < map.size[1] && global_z < map.size[2];
      for (uint64_t x = 0; x < row; x += map.element_bytes) {
        const auto global_x =
            static_cast<uint64_t>(tile.at[0] + static_cast<int64_t>(x / map.element_bytes));
        uint64_t address = 0;
        if (inside && global_x < map.size[0]) {
          address = map.address + global_x * map.element_bytes + global_y * map.stride[1] +
                    global_z * map.stride[2];
          if (!warp.grid->known(address, map.element_bytes)) {
            warp.fault(lane, "copies a tile of what is no memory of the device");
            return false;
          }
        }
        f((z * map.box[1] + y) * row + x, address);
      }
    }
  }
  return true;
}

bool tile_in_window(Warp& warp, uint32_t lane, uint64_t address, const Tile& tile) {
  if (address % 128 != 0 || shared_at(warp, address, tile.bytes()) == nullptr) {
    warp.fault(lane, "copies a tile of " + std::to_string(tile.bytes()) +
                         " bytes to or from shared memory where it does not fit");
    return false;
  }
  return true;
}

/// o: to, map, coordinates, barrier, CTAs (flags 1).
Step load_tile(Warp& warp, const Instruction& in, uint32_t mask) {
  bool good = true;
  each_lane(mask, [&](uint32_t lane) {
    Tile tile;
    good = good && read_tile(warp, in, lane, 1, 1, tile);
    if (!good) {
      return;
    }
    const uint64_t to =
        ((in.wide & 1) != 0 ? warp.in<uint64_t>(in.o[0])[lane] : warp.in<uint32_t>(in.o[0])[lane]) +
        static_cast<uint64_t>(in.immediate);
    const Slot slot = in.o[2 + in.modifier];
    const uint64_t barrier =
        (in.wide & 4) != 0 ? warp.in<uint64_t>(slot)[lane] : warp.in<uint32_t>(slot)[lane];
    uint32_t ranks = 1u << (to >> window::kRankShift & 15);
    if ((in.flags & 1) != 0) {
      ranks = warp.in<uint32_t>(in.o[3 + in.modifier])[lane] & 0xffff;
    }
    each_lane(ranks, [&](uint32_t rank) {
      const uint64_t ones = (1u << window::kRankShift) - 1;
      const uint64_t there = (to & ones) | uint64_t{rank} << window::kRankShift;
      std::byte* const counter =
          shared_at(warp, (barrier & ones) | uint64_t{rank} << window::kRankShift, 8);
      good = good && tile_in_window(warp, lane, there, tile);
      if (good && counter == nullptr) {
        warp.fault(lane, "counts a tile at what is no shared memory");
        good = false;
      }
      good = good && land_at(*warp.grid, counter, [&warp, lane, tile, there, counter] {
               return each_piece(warp, lane, tile,
                                 [&](uint64_t place, uint64_t address) {
                                   std::byte* const target =
                                       warp.cta->arena +
                                       swizzled(there + place, tile.map.swizzle_bytes);
                                   if (address == 0) {
                                     std::memset(target, 0, tile.map.element_bytes);
                                   } else {
                                     std::memcpy(target, reinterpret_cast<const void*>(address),
                                                 tile.map.element_bytes);
                                   }
                                 }) &&
                      complete_bytes(warp, lane, counter, static_cast<int64_t>(tile.bytes()));
             });
    });
  });
  return good ? Step::next : Step::fault;
}

/// o: map, coordinates, from.
Step store_tile(Warp& warp, const Instruction& in, uint32_t mask) {
  bool good = true;
  each_lane(mask, [&](uint32_t lane) {
    Tile tile;
    good = good && read_tile(warp, in, lane, 0, 0, tile);
    if (!good) {
      return;
    }
    const Slot slot = in.o[1 + in.modifier];
    const uint64_t from =
        ((in.wide & 2) != 0 ? warp.in<uint64_t>(slot)[lane] : warp.in<uint32_t>(slot)[lane]) +
        static_cast<uint64_t>(in.second_displacement);
    good = tile_in_window(warp, lane, from, tile);
    if (!good) {
      return;
    }
    good = warp.stores.add(warp.grid->late(), lane, [&warp, lane, tile, from] {
      return each_piece(warp, lane, tile, [&](uint64_t place, uint64_t address) {
        if (address != 0) {
          std::memcpy(reinterpret_cast<void*>(address),
                      warp.cta->arena + swizzled(from + place, tile.map.swizzle_bytes),
                      tile.map.element_bytes);
        }
      });
    });
  });
  return good ? Step::next : Step::fault;
}

// Products of a warpgroup. Each of its warps computes its own 16 rows when it comes to the
// instruction; waiting for products is waiting for those of all four.

/// Elements of 16 bits: BF16 or F16.
template <class Format>
struct Sixteen {
  static constexpr uint32_t kBytes = 2;
  static double widen(const std::byte* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return Format::widen(bits);
  }
};
struct E4m3 {
  static constexpr uint32_t kBytes = 1;
  static double widen(const std::byte* p) { return to_float(e4m3fn{static_cast<uint8_t>(*p)}); }
};

/// A matrix in shared memory ("Matrix Descriptor Format").
struct Descriptor {
  uint64_t start, leading, stride;
  uint32_t span;  ///< of the swizzle; 0: none

  static Descriptor of(uint64_t bits) {
    static constexpr uint32_t kSpans[4] = {0, 128, 64, 32};
    return {(bits & 0x3fff) << 4, (bits >> 16 & 0x3fff) << 4, (bits >> 32 & 0x3fff) << 4,
            kSpans[bits >> 62]};
  }
  /// K-major: row r, byte b of k.
  uint64_t by_k(uint64_t r, uint64_t b) const {
    return span == 0 ? start + r / 8 * stride + b / 16 * leading + r % 8 * 16 + b % 16
                     : swizzled(start + r / 8 * stride + r % 8 * span + b, span);
  }
  /// MN-major: element r (of 2 bytes) of row k, with a swizzle.
  uint64_t by_row(uint64_t r, uint64_t k) const {
    const uint64_t elements = span / 2;
    return swizzled(
        start + r / elements * leading + r % elements * 2 + k % 8 * span + k / 8 * stride, span);
  }
};

template <class E>
bool read_matrix(Warp& warp, uint64_t bits, uint64_t first, uint64_t rows, bool by_row,
                 double* matrix) {
  constexpr uint64_t kDepth = 32 / E::kBytes;
  const Descriptor descriptor = Descriptor::of(bits);
  const uint64_t rank = uint64_t{warp.cta->rank} << window::kRankShift;
  if (by_row && descriptor.span == 0) {
    warp.fault(0, "multiplies a matrix of columns without a swizzle, which is not simulated");
    return false;
  }
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t k = 0; k < kDepth; ++k) {
      const uint64_t address =
          by_row ? descriptor.by_row(first + r, k) : descriptor.by_k(first + r, k * E::kBytes);
      const std::byte* const place = shared_at(warp, address | rank, E::kBytes);
      if (place == nullptr) {
        warp.fault(0, "multiplies a matrix that is not in its shared memory");
        return false;
      }
      matrix[r * kDepth + k] = E::widen(place);
    }
  }
  return true;
}

/// A number of a matrix in shared memory that read_matrix() has read.
template <class E>
uint64_t mark_of(const Warp& warp, uint64_t bits, uint64_t first, uint64_t rows, bool by_row) {
  constexpr uint64_t kUnit = 16;
  const Descriptor descriptor = Descriptor::of(bits);
  const uint64_t rank = uint64_t{warp.cta->rank} << window::kRankShift;
  uint64_t mark = 0;
  const auto add = [&](uint64_t address) {
    std::array<uint64_t, 2> words{};
    std::memcpy(words.data(), shared_at(warp, address | rank, kUnit), kUnit);
    for (const uint64_t word : words) {
      mark = (mark ^ word) * 0x9e3779b97f4a7c15u;
      mark ^= mark >> 29;
    }
  };
  if (by_row) {
    for (uint64_t k = 0; k < 32 / E::kBytes; ++k) {
      for (uint64_t r = 0; r < rows; r += kUnit / E::kBytes) {
        add(descriptor.by_row(first + r, k));
      }
    }
    return mark;
  }
  for (uint64_t r = 0; r < rows; ++r) {
    add(descriptor.by_k(first + r, 0));
    add(descriptor.by_k(first + r, kUnit));
  }
  return mark;
}

/// d = a b + (p ? d : 0). flags: 1, A is in registers; 2, B is MN-major; 4, A is.
template <class E>
Step multiply(Warp& warp, const Instruction& in, uint32_t mask) {
  constexpr int kDepth = 32 / E::kBytes;
  if (!together(warp, ~0u, mask)) {
    return Step::moved;
  }
  const bool registers = (in.flags & 1) != 0;
  const Slot* const o = in.o + in.count;
  const int columns = in.count * 2;
  double a[16 * kDepth];
  double b[256 * kDepth];
  if (registers) {
    for (int r = 0; r < 4; ++r) {
      const auto* bytes = reinterpret_cast<const std::byte*>(warp.in<uint32_t>(o[r]));
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int e = 0; e < kDepth / 8; ++e) {
          a[(lane / 4 + 8 * (r % 2)) * kDepth + (lane % 4 + 4 * (r / 2)) * (kDepth / 8) + e] =
              E::widen(bytes + lane * 4 + e * static_cast<int>(E::kBytes));
        }
      }
    }
  } else if (!read_matrix<E>(warp, warp.in<uint64_t>(o[0])[0], warp.index % 4 * 16, 16,
                             (in.flags & 4) != 0, a)) {
    return Step::fault;
  }
  const Slot* const rest = o + (registers ? 4 : 1);
  const uint64_t of_b = warp.in<uint64_t>(rest[0])[0];
  if (!read_matrix<E>(warp, of_b, 0, static_cast<uint64_t>(columns), (in.flags & 2) != 0, b)) {
    return Step::fault;
  }
  const auto read = [&warp, of_a = registers ? 0 : warp.in<uint64_t>(o[0])[0], of_b, columns,
                     flags = in.flags] {
    const uint64_t rows =
        (flags & 1) != 0 ? 0 : mark_of<E>(warp, of_a, warp.index % 4 * 16, 16, (flags & 4) != 0);
    return rows ^ mark_of<E>(warp, of_b, 0, static_cast<uint64_t>(columns), (flags & 2) != 0);
  };
  warp.underway.push_back({warp.product_groups, read(), read});
  const bool onto = (warp.predicate(rest[1]) & 1) != 0;
  for (int j = 0; j < in.count; ++j) {
    uint32_t* d = warp.out<uint32_t>(in.o[j]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4 + 8 * (j % 4 / 2);
      const int column = j / 4 * 8 + lane % 4 * 2 + j % 2;
      double sum = onto ? std::bit_cast<float>(d[lane]) : 0.0F;
      for (int k = 0; k < kDepth; ++k) {
        sum = std::fma(a[row * kDepth + k], b[column * kDepth + k], sum);
      }
      const auto value = static_cast<float>(sum);
      d[lane] = value != value ? 0x7fffffffu : std::bit_cast<uint32_t>(value);
    }
  }
  ++warp.products;
  return Step::next;
}

Step commit_products(Warp& warp, const Instruction& /*in*/, uint32_t mask) {
  if (!together(warp, ~0u, mask)) {
    return Step::moved;
  }
  ++warp.product_groups;
  return Step::next;
}
/// o: how many groups may be under way still. The first of a warpgroup's warps that has waited
/// knows that the products are done for all of them.
Step wait_products(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!together(warp, ~0u, mask)) {
    return Step::moved;
  }
  const auto& all = warp.cta->warps;
  const size_t first = warp.index / 4 * 4;
  const std::span group(all.data() + first, std::min<size_t>(4, all.size() - first));
  for (const Warp* each : group) {
    if (each->alive != 0 && each->products < warp.products) {
      return Step::again;
    }
  }
  const uint32_t left = warp.in<uint32_t>(in.o[0])[0];
  bool there = true;
  for (Warp* each : group) {
    std::erase_if(each->underway, [&](const Product& product) {
      if (product.group + left >= warp.product_groups) {
        return false;
      }
      there = there && product.read() == product.mark;
      return true;
    });
  }
  return there ? Step::next
               : warp.fault(0,
                            "waits for a product of what has been overwritten since it was "
                            "asked for");
}
Step nothing(Warp&, const Instruction&, uint32_t) { return Step::next; }

Found find_products(const Statement& s) {
  if (s.has("fence")) {
    return Form{.run = nothing};
  }
  if (s.has("commit_group")) {
    return Form{.run = commit_products, .layout = ""};
  }
  if (s.has("wait_group")) {
    return Form{.run = wait_products, .layout = "w"};
  }
  if (!s.has("mma_async") || s.operands.size() < 6) {
    return {};
  }
  Form form;
  if (s.opcode.ends_with("k16.f32.bf16.bf16")) {
    form.run = multiply<Sixteen<BF16>>;
  } else if (s.opcode.ends_with("k16.f32.f16.f16")) {
    form.run = multiply<Sixteen<F16>>;
  } else if (s.opcode.ends_with("k32.f32.e4m3.e4m3")) {
    form.run = multiply<E4m3>;
  } else {
    return {};
  }
  const bool registers = s.operands[1].kind == Operand::Kind::vector;
  // Signs of A and B, then which of them are MN-major: of A in registers it is not said.
  const auto flag = [&](size_t i) { return i < s.operands.size() ? s.operands[i].bits : 0; };
  if (flag(4) != 1 || flag(5) != 1) {
    return {};
  }
  form.flags = static_cast<uint8_t>((registers ? 1 : 0) | (flag(registers ? 6 : 7) == 1 ? 2 : 0) |
                                    (!registers && flag(6) == 1 ? 4 : 0));
  form.layout = registers ? "Vwdpww?w" : "Vddpww?ww";
  return form;
}

Found find_tile_copy(const Statement& s) {
  if (!s.has("tile") || s.operands.size() < 2) {
    return {};
  }
  Form form;
  form.modifier = s.has("1d") ? 1 : s.has("2d") ? 2 : s.has("3d") ? 3 : 0;
  if (form.modifier == 0 || form.modifier > 3) {
    return {};
  }
  if (s.has("mbarrier::complete_tx::bytes")) {
    const bool multicast = s.has("multicast::cluster");
    form.run = load_tile;
    form.layout = multicast ? "aaaw?d" : "aaa?d";
    form.flags = multicast ? 1 : 0;
    return form;
  }
  form.run = store_tile;
  form.layout = "aa?d";
  return s.has("bulk_group") ? Found(form) : Found();
}

}  // namespace

Found find_tiles(const Statement& statement) {
  if (statement.words[0] == "wgmma") {
    return find_products(statement);
  }
  return statement.opcode.starts_with("cp.async.bulk.tensor.") ? find_tile_copy(statement)
                                                               : Found();
}

}  // namespace weft::ptx
