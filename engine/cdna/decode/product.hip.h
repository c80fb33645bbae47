// Products on the resident kernel: a worker's weights in the order of their use, multiplied with
// the row in LDS. Layout: engine/cdna/layout.h.
#pragma once

#include "arch/cdna/mma.hip.h"
#include "engine/cdna/decode/attention.hip.h"
#include "engine/cdna/decode/next_token.hip.h"

namespace weft::cdna {

/// A wave's weights. While it waits for anything else, the first slices of its next run (its share
/// of a product's block) are in its registers or on their way there.
class Stream {
 public:
  __device__ __attribute__((always_inline)) explicit Stream(const Worker& worker)
      : next_(static_cast<int>(constant(worker.arguments->product_begin)[workgroup_index()]) - 1) {
    advance(worker);
    ask_first(worker);
  }

  /// The wave's run in the block of the next product that begins at a unit, multiplied:
  /// finish(unit, sums) gets each unit's. `units`: of the product; `row`: this lane's column of B.
  template <class Finish>
  __device__ __attribute__((always_inline)) void multiply(const Worker& worker, const char* row,
                                                          const Finish& finish) {
    const Buffer buffer = buffer_of(worker);
    const ProductPlace place = at(worker, next_);
    const int slices = place.slices;
    const Runs runs = runs_of(place, first_unit_);
    const int first = runs.first(wave_index());
    int left = runs.count(wave_index());
    Walk walk{.slices = slices, .unit = first / slices, .slice = 0, .row = row};
    walk.slice = first - walk.unit * slices;
    uint32_t from = stream_of(place, first_unit_, first) + kSlicesAhead * kSliceBytes;
    // Whole turns: each slice's place is taken by that which comes kSlicesAhead later.
    for (; left >= 2 * kSlicesAhead; left -= kSlicesAhead) {
#pragma unroll
      for (int i = 0; i < kSlicesAhead; ++i) {
        walk.multiply(ahead_[i], finish);
        ahead_[i] = load(buffer, from + i * kSliceBytes);
      }
      from += kSlicesAhead * kSliceBytes;
    }
    if (left > kSlicesAhead) {
      left -= kSlicesAhead;
#pragma unroll
      for (int i = 0; i < kSlicesAhead; ++i) {
        walk.multiply(ahead_[i], finish);
        if (i < left) {
          ahead_[i] = load(buffer, from + i * kSliceBytes);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSlicesAhead; ++i) {
      if (i < left) {
        walk.multiply(ahead_[i], finish);
      }
    }
    walk.end(finish);
    first_unit_ += kBlockUnits;
    if (first_unit_ >= place.units) {
      advance(worker);
    }
    ask_first(worker);
  }

 private:
  /// Where a wave is in a block.
  struct Walk {
    int slices;
    int unit;
    int slice;  ///< the next one, in the unit
    const char* row;
    f32x4 sums = {0, 0, 0, 0};
    bool any = false;

    template <class Finish>
    __device__ __attribute__((always_inline)) void multiply(u32x4 weights, const Finish& finish) {
      if (slice == slices) {
        end(finish);
        sums = f32x4{0, 0, 0, 0};
        slice = 0;
        ++unit;
      }
      const auto b = *reinterpret_cast<const u32x4*>(row + slice * (kSliceK * 2));
      sums = mma_bf16(weights, b, sums);
      any = true;
      ++slice;
    }
    template <class Finish>
    __device__ __attribute__((always_inline)) void end(const Finish& finish) {
      if (any) {
        finish(unit, sums);
      }
    }
  };

  __device__ __attribute__((always_inline)) static Buffer buffer_of(const Worker& worker) {
    return {(const void*)(uintptr_t)constant(worker.arguments->streams)[workgroup_index()],
            constant(worker.arguments->stream_bytes)[workgroup_index()]};
  }
  __device__ __attribute__((always_inline)) static ProductPlace at(const Worker& worker,
                                                                   int product) {
    const auto& place = constant(worker.arguments->products)[product];
    return {place.stream, place.units, place.slices, place.head};
  }
  __device__ __attribute__((always_inline)) static Runs runs_of(const ProductPlace& place,
                                                                int first_unit) {
    return Runs(__builtin_elementwise_min(place.units - first_unit, kBlockUnits) * place.slices);
  }
  /// A slice of a block, in bytes from the stream's beginning.
  __device__ __attribute__((always_inline)) static uint32_t stream_of(const ProductPlace& place,
                                                                      int first_unit, int slice) {
    return place.stream * 16 +
           static_cast<uint32_t>(first_unit * place.slices + slice) * kSliceBytes;
  }
  __device__ __attribute__((always_inline)) u32x4 load(const Buffer& buffer, uint32_t from) const {
    return buffer.load_once(static_cast<uint32_t>(lane_index() * 16), from);
  }
  /// To the next product that is done. The head is not where the token is forced.
  __device__ __attribute__((always_inline)) void advance(const Worker& worker) {
    const auto range = constant(worker.arguments->product_begin) + workgroup_index();
    const auto begin = static_cast<int>(range[0]);
    const auto end = static_cast<int>(range[1]);
    first_unit_ = 0;
    do {
      if (++next_ >= end) {
        next_ = begin;
        ++step_;
      }
    } while (step_ < worker.arguments->forced_steps && begin < end && at(worker, next_).head != 0);
  }
  /// Asks for the first slices of the next run.
  __device__ __attribute__((always_inline)) void ask_first(const Worker& worker) {
    if (step_ >= worker.arguments->steps) {
      return;
    }
    const Buffer buffer = buffer_of(worker);
    const ProductPlace place = at(worker, next_);
    const Runs runs = runs_of(place, first_unit_);
    const int count = runs.count(wave_index());
    const uint32_t from = stream_of(place, first_unit_, runs.first(wave_index()));
#pragma unroll
    for (int i = 0; i < kSlicesAhead; ++i) {
      if (i < count) {
        ahead_[i] = load(buffer, from + i * kSliceBytes);
      }
    }
  }

  int next_;            // product, of all workers'
  int step_ = 0;        // of it
  int first_unit_ = 0;  // of its next block
  u32x4 ahead_[kSlicesAhead] = {};
};

/// Makes the row of a product in LDS, by the team.
WEFT_GPU void make_row(const Worker& worker, CodeRef code) {
  switch (ProductHead(code).form()) {
    case resident::RowForm::plain:
    case resident::RowForm::rms_norm:
      return make_plain_row(worker, code);
    case resident::RowForm::layer_norm:
      return make_layer_norm(worker, code);
    case resident::RowForm::merged:
      return make_merged_row(worker, code);
    case resident::RowForm::slots:
      return;  // of mixtures of experts
  }
}

/// What the team does with the sums of a block's columns: each thread finishes one.
struct Epilogue {
  const Worker& worker;
  CodeRef code;
  float factor;  ///< of the row's norm
  Candidate best;

  __device__ __attribute__((always_inline)) bool gated() const {
    return Head(code).opcode() == Opcode::gated_linear;
  }
  /// This thread's column of a block, and in the whole code.
  __device__ __attribute__((always_inline)) int unit_columns() const {
    return gated() ? kUnitColumns / 2 : kUnitColumns;
  }

  /// The sum of a unit's row of weights over the waves that had slices of it.
  __device__ __attribute__((always_inline)) float gather(const Runs& runs, int slices, int unit,
                                                         int row) const {
    float sum = 0;
#pragma unroll
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      const int first = runs.first(wave);
      const int last = runs.first(wave + 1);
      if (first < last && first < (unit + 1) * slices && last > unit * slices) {
        sum += shared.sums[sums_place(unit, wave) + row];
      }
    }
    return factor * sum;
  }
  __device__ __attribute__((always_inline)) float bias(Place place, int column) const {
    return bf16_low(worker.at<const uint16_t>(place)[column]);
  }

  __device__ __attribute__((always_inline)) void finish(int first_unit, int units, const Runs& runs,
                                                        int slices) {
    const auto& product = code.product;
    const int unit = thread_index() / unit_columns();
    const int row = thread_index() & (unit_columns() - 1);
    if (wave_index() * kWaveLanes >= units * unit_columns()) {
      return;
    }
    int column = first_unit * unit_columns() + thread_index();
    int s = 0;  // each segment begins at a unit
    while (s + 1 < Head(code).segments()) {
      const int wide = static_cast<int>(round_up(product.segment[s].columns, kUnitColumns));
      if (column < wide) {
        break;
      }
      column -= wide;
      ++s;
    }
    const auto& segment = product.segment[s];
    const bool valid = unit < units && column < static_cast<int>(segment.columns);
    float x = 0;
    if (valid) {
      x = gather(runs, slices, unit, row);
      const bool biased = segment.bias != kNowhere;
      if (gated()) {
        float up = gather(runs, slices, unit, kUnitColumns / 2 + row);
        if (biased) {
          x += bias(segment.bias, column);
          up += bias(product.up_bias, column);
        }
        x = activate(ProductHead(code).activation(), x) * up;
      } else {
        x = (x + (biased ? bias(segment.bias, column) : 0)) * product.alpha;
        x = activate(ProductHead(code).activation(), x);
        x = product.soft_cap > 0 ? cap_softly(x, product.soft_cap) : x;
      }
    }
    if (ProductHead(code).accumulate()) {
      const TaggedPlace from = worker.at<uint64_t>(segment.out);
      Tagged before[1];
      await_tagged(worker, code.operation, worker.tag(product.prior), before, [&](int) {
        return from + __builtin_elementwise_min(column, static_cast<int>(segment.columns) - 1) / 2;
      });
      x += column % 2 != 0 ? before[0].second() : before[0].first();
    }
    if (segment.version == kPlain) {
      if (valid) {
        store_shared_word<float>(worker.at<float>(segment.out) + column, x);
      }
    } else {
      const float next = across(x, 1);
      if (valid && column % 2 == 0) {
        store_tagged(worker.at<uint64_t>(segment.out) + column / 2, x, next,
                     worker.tag(segment.version));
      }
    }
    if (Head(code).head() && valid) {
      best.offer(x, product.first + column);
    }
  }
};

/// A product of the row that is in LDS, by the team. Returns the best of its columns in this
/// thread.
WEFT_GPU Candidate multiply_row(const Worker& worker, CodeRef code, Stream& stream) {
  const int slices = slices_of(code.product.k);
  Epilogue epilogue{.worker = worker, .code = code, .factor = product_factor(code), .best = {}};
  // Of a unit's 16 columns of B the first is the row's upper parts, the second the lower ones.
  const int part = lane_index() % 2;
  const char* const row = reinterpret_cast<const char*>(shared.row) + part * (most_k(kTarget) * 2) +
                          lane_index() / kUnitColumns * 16;
  for (int first_unit = 0; first_unit < Head(code).units(); first_unit += kBlockUnits) {
    const int units = __builtin_elementwise_min(Head(code).units() - first_unit, kBlockUnits);
    if (first_unit > 0) {
      barrier();  // the sums have been read
    }
    stream.multiply(worker, row, [](int unit, f32x4 sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] += from_lane<kSwapOnes>(sums[i]);
      }
      if (lane_index() % kUnitColumns == 0) {
        *reinterpret_cast<f32x4*>(shared.sums + sums_place(unit, wave_index()) +
                                  lane_index() / kUnitColumns * 4) = sums;
      }
    });
    barrier();
    epilogue.finish(first_unit, units, Runs(units * slices), slices);
  }
  return epilogue.best;
}

}  // namespace weft::cdna
