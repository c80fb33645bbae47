#include "engine/cdna/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/cdna/layout.h"

namespace weft::cdna {

using resident::Arena;
using resident::Code;
using resident::Opcode;

namespace {

constexpr int64_t kHalf = kUnitColumns / 2;

class Units final : public resident::Target {
 public:
  Units(cdna::Target target, Lowered& out) : target_(target), out_(out) {}

  resident::Limits limits() const override {
    return {
        .device = name_of(target_), .head_dim = 256, .layer_norm = most_k(target_), .fp8 = false};
  }
  void begin_product(Code& /*code*/, const Tensor& /*weight*/) override {}
  bool may_join(const Code& /*code*/, int32_t /*operation*/,
                const Tensor& /*weight*/) const override {
    return true;
  }
  void add_columns(Code& code, const resident::ProductTile& tile) override {
    const bool gated = tile.up.tensor != nullptr;
    const int64_t unit = gated ? kHalf : kUnitColumns;
    const Range columns = tile.columns;
    code.units = static_cast<uint16_t>(code.units + ceil_div(columns.size(), unit));
    for (int64_t c = columns.begin; c < columns.end; c += unit) {
      PackJob job;
      job.k = code.product.k;
      for (const int half : {0, 1}) {
        const int64_t first = !gated && half == 1 ? c + kHalf : c;
        job.source[half] = gated && half == 1 ? tile.up.tensor : tile.weight.tensor;
        job.first_row[half] = first;
        job.rows[half] = static_cast<int>(std::clamp<int64_t>(columns.end - first, 0, kHalf));
      }
      units_.push_back(job);
    }
  }
  int64_t end_product(const Code& code, int64_t destination) override {
    const int64_t unit_bytes = product_bytes(code.product.k, 1);
    for (PackJob& job : units_) {
      job.destination = std::exchange(destination, destination + unit_bytes);
      out_.pack.push_back(job);
    }
    units_.clear();
    return product_bytes(code.product.k, code.units);
  }

 private:
  const cdna::Target target_;
  Lowered& out_;
  std::vector<PackJob> units_;  // of the product that has not ended
};

int64_t stream_bytes(const Code& code) { return product_bytes(code.product.k, code.units); }

/// What the kernel has no room for.
Status check_room(const Lowered& lowered, const ModelConfig& config, Target target) {
  const int floats = attention_floats(static_cast<int>(config.head_dim),
                                      static_cast<int>(config.query_heads / config.kv_heads));
  if (floats > most_k(target)) {
    return input_error(fmt::format(
        "{} has {} query heads of {} to a KV head: the {} device has no room for them; use "
        "--device cpu",
        config.name, config.query_heads / config.kv_heads, config.head_dim, name_of(target)));
  }
  for (const auto& codes : lowered.codes) {
    for (const Code& code : codes) {
      if (code.units > 0 && code.product.k > most_k(target)) {
        return input_error(fmt::format(
            "{} has a product over {} elements: the {} device has room for {}; use --device cpu",
            config.name, code.product.k, name_of(target), most_k(target)));
      }
    }
  }
  for (size_t worker = 0; worker < lowered.streams.size(); ++worker) {
    const int64_t end =
        worker + 1 < lowered.streams.size() ? lowered.streams[worker + 1] : lowered.packed_bytes;
    if (end - lowered.streams[worker] > std::numeric_limits<int32_t>::max()) {
      return input_error(fmt::format(
          "{} has {} bytes of weights for each of {} workers, and a worker takes 2 GiB: give it "
          "more workers",
          config.name, end - lowered.streams[worker], lowered.streams.size()));
    }
  }
  return {};
}

}  // namespace

PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv) {
  PlanOptions options;
  options.workers = units;
  options.capacity = capacity;
  options.kv = kv;
  options.columns = kUnitColumns;
  options.workers = most_workers(config, options);
  options.gated_columns = kHalf;
  options.fewest_columns = kUnitColumns;
  options.attention_tasks = options.workers;
  options.fuse_attention = true;
  return options;
}

Arena lay_out(const Program& program, const Weights& weights) {
  // Rows of several sequences are no operands yet: there is one.
  return resident::lay_out(program, weights, [](int64_t) -> int64_t { return 0; });
}

Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, Target target) {
  if (program.sequences > 1) {
    return input_error(fmt::format("the {} device decodes one sequence at a time, not {}",
                                   name_of(target), program.sequences));
  }
  Lowered out;
  Units units(target, out);
  WEFT_ASSIGN(static_cast<resident::Lowered&>(out),
              resident::lower(program, config, weights, arena, capacity, units));
  WEFT_TRY(check_room(out, config, target));
  return out;
}

Products products_of(std::span<const std::vector<Code>> codes) {
  Products products;
  for (const auto& worker : codes) {
    products.begin.push_back(static_cast<uint32_t>(products.places.size()));
    for (const Code& code : worker) {
      if (code.units > 0) {
        products.places.push_back(
            {code.product.stream, code.units, slices_of(code.product.k), code.head});
      }
    }
  }
  products.begin.push_back(static_cast<uint32_t>(products.places.size()));
  products.places.emplace_back();  // who has none looks at the next one's, and loads nothing
  return products;
}

void pack(const Lowered& lowered, std::span<std::byte> packed) {
  constexpr int kChunk = 8;  // elements of a lane
  for (const PackJob& job : lowered.pack) {
    for (int column = 0; column < kUnitColumns; ++column) {
      const auto half = static_cast<size_t>(column / kHalf);
      const int row = column % static_cast<int>(kHalf);
      const bool there = row < job.rows[half];
      const std::byte* from = there ? static_cast<const std::byte*>(job.source[half]->data) +
                                          (job.first_row[half] + row) * job.k * 2
                                    : nullptr;
      for (int k = 0; k < slices_of(job.k) * kSliceK; k += kChunk) {
        const int lane = k % kSliceK / kChunk * kUnitColumns + column;
        std::byte* to = packed.data() + job.destination + int64_t{k / kSliceK} * kSliceBytes +
                        lane * kChunk * 2;
        if (there && k < job.k) {
          std::memcpy(to, from + k * 2, kChunk * 2);
        } else {
          std::memset(to, 0, kChunk * 2);
        }
      }
    }
  }
}

Status verify_codes(const Lowered& lowered, const Program& program, resident::NextToken next,
                    int64_t position) {
  return resident::verify_codes(lowered, program, stream_bytes, next, position);
}

}  // namespace weft::cdna
