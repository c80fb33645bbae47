#include "program/section.h"

#include <algorithm>

namespace weft::planning {
namespace {

// A chunk's shares of columns are multiples of this: whole panels of a GEMM.
constexpr int64_t kChunkColumns = 64;
constexpr int64_t kAttentionRowBlock = 64;

class ManyRows : public Section {
 public:
  explicit ManyRows(Weaver& weaver) : Section(weaver, Rows::all) {}

  std::vector<Tiles> products(const std::vector<int64_t>& columns, int64_t /*k*/) override {
    std::vector<Tiles> tiles;
    for (const int64_t n : columns) {
      tiles.push_back(weaver_.by_columns(n, kChunkColumns));
    }
    return tiles;
  }
  /// 32 gate and 32 up columns fill one GEMM panel.
  Tiles gated_product(int64_t n, int64_t /*k*/, const Users& /*busy*/) override {
    return weaver_.by_columns(n, kChunkColumns / 2);
  }
  Tiles heads(int64_t kv_heads, int64_t each) const override {
    return weaver_.by_rows({0, kv_heads * each});
  }
  Tiles whole(int64_t /*worker*/) const override { return weaver_.by_rows({0, 1}); }
  Tiles tokens(int64_t columns) const override { return weaver_.by_rows({0, columns}); }

  Tiles attention(int64_t kv_heads) const override {
    const int64_t workers = weaver_.options().workers;
    if (kv_heads % workers == 0) {
      return weaver_.by_heads(kv_heads);
    }
    // Causal rows cost more the later they are: blocks of (rows, head) in turn even that out.
    Tiles tiles(static_cast<size_t>(workers));
    const int64_t rows = weaver_.options().rows;
    int64_t task = 0;
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t begin = 0; begin < rows; begin += kAttentionRowBlock, ++task) {
        const Range block{begin, std::min(begin + kAttentionRowBlock, rows)};
        tiles[static_cast<size_t>(task % workers)].push_back({block, {head, head + 1}, 0});
      }
    }
    return tiles;
  }

  bool one_row() const override { return false; }

  Waits prepare(int32_t op, const Waits& waits, const Users& /*users*/) override {
    return {{weaver_.spread(op, whole(0), waits)}};
  }
};

class OneRow : public Section {
 public:
  using Section::Section;

  std::vector<Tiles> products(const std::vector<int64_t>& columns, int64_t k) override {
    return weaver_.by_weights(columns, k, weaver_.options().columns);
  }
  Tiles gated_product(int64_t n, int64_t k, const Users& busy) override {
    return std::move(weaver_.by_weights({n}, 2 * k, weaver_.options().gated_columns, busy).front());
  }
  Tiles heads(int64_t kv_heads, int64_t each) const override {
    Tiles tiles = weaver_.by_heads(kv_heads);
    for (auto& worker : tiles) {
      for (Tile& tile : worker) {
        tile.tile = {tile.tile.begin * each, tile.tile.end * each};
      }
    }
    return tiles;
  }
  Tiles whole(int64_t worker) const override { return weaver_.on_one_worker(worker); }
  /// Not by those who sample: they have enough to do between two steps.
  Tiles tokens(int64_t /*columns*/) const override {
    return weaver_.by_sequences({0, 1}, weaver_.program.sequences);
  }
  Tiles attention(int64_t kv_heads) const override { return weaver_.by_heads(kv_heads); }

  bool one_row() const override { return true; }

  /// Each user makes it for itself, which is cheaper than to wait for another to have done it.
  Waits prepare(int32_t op, const Waits& waits, const Users& users) override {
    weaver_.repeat(op, waits, users);
    return {};
  }
};

}  // namespace

std::unique_ptr<Section> make_many_rows(Weaver& weaver) {
  return std::make_unique<ManyRows>(weaver);
}
std::unique_ptr<Section> make_one_row(Weaver& weaver, Rows rows) {
  return std::make_unique<OneRow>(weaver, rows);
}

}  // namespace weft::planning
