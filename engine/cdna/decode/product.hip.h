// Products on the resident kernel: a worker's weights in the order of their use, multiplied with
// the row in LDS. Layout: engine/cdna/layout.h.
#pragma once

#include "arch/cdna/mma.hip.h"
#include "engine/cdna/decode/attention.hip.h"
#include "engine/cdna/decode/next_token.hip.h"
#include "ops/linear/windowed.h"

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
  /// finish(unit, sums) gets each unit's; list(entry) what is listed of the run, when these have
  /// been left. `row`: this lane's column of B. Returns the scales of the thread's columns.
  template <class Finish, class List>
  __device__ __attribute__((always_inline)) uint32_t multiply(const Worker& worker, const char* row,
                                                              const Finish& finish,
                                                              const List& list) {
    const ProductPlace place = at(worker, next_);
    const uint32_t scales = scales_;
    if ((place.flags & ProductPlace::kPacked) != 0) {
      multiply_run<WeightForm::packed>(worker, place, row, finish);
      multiply_listed(worker, place, list);
    } else {
      multiply_run<WeightForm::plain>(worker, place, row, finish);
    }
    first_unit_ += kBlockUnits;
    if (first_unit_ >= place.units) {
      advance(worker);
    }
    ask_first(worker);
    return scales;
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
    return {place.stream, place.units, place.slices, place.flags, place.lists};
  }
  __device__ __attribute__((always_inline)) static Runs runs_of(const ProductPlace& place,
                                                                int first_unit) {
    return Runs(__builtin_elementwise_min(place.units - first_unit, kBlockUnits) * place.slices);
  }
  /// A slice of a block, in bytes from the stream's beginning.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static uint32_t stream_of(const ProductPlace& place,
                                                                      int first_unit, int slice) {
    return place.stream * 16 +
           static_cast<uint32_t>(first_unit * place.slices + slice) * slice_bytes(kForm);
  }
  /// A lane's weights of a slice, as they lie there.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static void load(u32x4& weights, const Buffer& buffer,
                                                             uint32_t from) {
    const auto lane = static_cast<uint32_t>(lane_index() * lane_bytes(kForm));
    if constexpr (kForm == WeightForm::plain) {
      weights = buffer.load_once(lane, from);
    } else {
      weights.xyz = buffer.load_three_once(lane, from);
    }
  }
  /// The operand A of it.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static u32x4 operand(u32x4 weights) {
    if constexpr (kForm == WeightForm::plain) {
      return weights;
    } else {
      constexpr uint32_t kWindows = windowed::kWindowBits | windowed::kWindowBits << 16;
      u32x4 pairs;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Low bytes between the window's, then the high parts.
        const uint32_t low =
            __builtin_amdgcn_perm(weights[i / 2], kWindows, i % 2 == 0 ? 0x01050104u : 0x01070106u);
        pairs[i] = (windowed::rotate_left(weights[2], 4 * i) & windowed::kHighParts) | low;
      }
      return pairs;
    }
  }

  template <WeightForm kForm, class Finish>
  __device__ __attribute__((always_inline)) void multiply_run(const Worker& worker,
                                                              const ProductPlace& place,
                                                              const char* row,
                                                              const Finish& finish) {
    const Buffer buffer = buffer_of(worker);
    const int slices = place.slices;
    const Runs runs = runs_of(place, first_unit_);
    const int first = runs.first(wave_index());
    int left = runs.count(wave_index());
    Walk walk{.slices = slices, .unit = first / slices, .slice = 0, .row = row};
    walk.slice = first - walk.unit * slices;
    uint32_t from = stream_of<kForm>(place, first_unit_, first + kSlicesAhead);
    // Whole turns: each slice's place is taken by that which comes kSlicesAhead later.
    for (; left >= 2 * kSlicesAhead; left -= kSlicesAhead) {
#pragma unroll
      for (int i = 0; i < kSlicesAhead; ++i) {
        walk.multiply(operand<kForm>(ahead_[i]), finish);
        load<kForm>(ahead_[i], buffer, from + i * slice_bytes(kForm));
      }
      from += kSlicesAhead * slice_bytes(kForm);
    }
    if (left > kSlicesAhead) {
      left -= kSlicesAhead;
#pragma unroll
      for (int i = 0; i < kSlicesAhead; ++i) {
        walk.multiply(operand<kForm>(ahead_[i]), finish);
        if (i < left) {
          load<kForm>(ahead_[i], buffer, from + i * slice_bytes(kForm));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSlicesAhead; ++i) {
      if (i < left) {
        walk.multiply(operand<kForm>(ahead_[i]), finish);
      }
    }
    walk.end(finish);
  }

  /// What is listed of the wave's run, 0 .. size - 1: one after the other in memory.
  struct List {
    Global<const u32x2> from;
    int size;

    __device__ __attribute__((always_inline))
    List(const Worker& worker, const ProductPlace& place, int first_unit) {
      const auto begin = constant(worker.arguments->list_begin) + place.lists +
                         first_unit / kBlockUnits * kTeamWaves + wave_index();
      from = (Global<const u32x2>)reinterpret_cast<uintptr_t>(worker.arguments->listed) + begin[0];
      size = static_cast<int>(begin[1] - begin[0]);
    }
  };
  template <class Add>
  __device__ __attribute__((always_inline)) void multiply_listed(const Worker& worker,
                                                                 const ProductPlace& place,
                                                                 const Add& add) {
    const List list(worker, place, first_unit_);
    for (int base = 0; base < list.size; base += kWaveLanes) {
      const int i = base + lane_index();
      if (base > 0 && i < list.size) {
        listed_ = list.from[i];
      }
      wave_sync();  // the sums, and what the round before has added
      if (i < list.size) {
        add(__builtin_bit_cast(Listed, listed_));
      }
    }
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
    } while (step_ < worker.arguments->forced_steps && begin < end &&
             (at(worker, next_).flags & ProductPlace::kHead) != 0);
  }
  /// Asks for the first slices of the next run, and for what goes with it.
  __device__ __attribute__((always_inline)) void ask_first(const Worker& worker) {
    if (step_ >= worker.arguments->steps) {
      return;
    }
    const ProductPlace place = at(worker, next_);
    if ((place.flags & ProductPlace::kPacked) == 0) {
      scales_ = kPlainScales;
      return ask_slices<WeightForm::plain>(worker, place);
    }
    ask_slices<WeightForm::packed>(worker, place);
    const uint32_t scales = place.stream * 16 +
                            place.units * place.slices * slice_bytes(WeightForm::packed) +
                            first_unit_ * kUnitScaleBytes;
    // Threads that finish no column of the block may ask beyond the stream's end.
    scales_ = buffer_of(worker).load_half(
        scales + static_cast<uint32_t>((kSeveral ? lane_index() : thread_index()) * 2));
    const List list(worker, place, first_unit_);
    if (lane_index() < list.size) {
      listed_ = list.from[lane_index()];
    }
  }
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) void ask_slices(const Worker& worker,
                                                            const ProductPlace& place) {
    const Buffer buffer = buffer_of(worker);
    const Runs runs = runs_of(place, first_unit_);
    const int count = runs.count(wave_index());
    const uint32_t from = stream_of<kForm>(place, first_unit_, runs.first(wave_index()));
#pragma unroll
    for (int i = 0; i < kSlicesAhead; ++i) {
      if (i < count) {
        load<kForm>(ahead_[i], buffer, from + i * slice_bytes(kForm));
      }
    }
  }

  static constexpr uint32_t kPlainScales = 127 | 127 << 8;  // exponents of 1

  int next_;            // product, of all workers'
  int step_ = 0;        // of it
  int first_unit_ = 0;  // of its next block
  u32x4 ahead_[kSlicesAhead] = {};
  uint32_t scales_ = kPlainScales;  // of this thread's columns in that block, see scale_place()
  u32x2 listed_ = {};               // this lane's of the wave's list there
};

/// Makes the rows of a product in LDS, by the team.
WEFT_GPU void make_rows(const Worker& worker, CodeRef code) {
  if (kSeveral && code.product.source == kOperands) {
    return copy_operands(worker, code);
  }
  const resident::RowForm form = ProductHead(code).form();
  if (!kSeveral && form == resident::RowForm::merged) {
    return make_merged_row(worker, code);
  }
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    if (form == resident::RowForm::layer_norm) {
      make_layer_norm(worker, code, sequence);
    } else {
      make_plain_row(worker, code, sequence);
    }
  }
}

/// What the team does with the sums of a block's columns: each thread finishes one, of several
/// sequences a wave those of one.
struct Epilogue {
  const Worker& worker;
  CodeRef code;
  float factor;  ///< of the row's norm
  Candidate best;

  __device__ __attribute__((always_inline)) static int sequence() {
    return kSeveral ? wave_index() : 0;
  }
  /// This thread's column of a block.
  __device__ __attribute__((always_inline)) static int of_block() {
    return kSeveral ? lane_index() : thread_index();
  }

  __device__ __attribute__((always_inline)) bool gated() const {
    return Head(code).opcode() == Opcode::gated_linear;
  }
  __device__ __attribute__((always_inline)) int unit_columns() const {
    return gated() ? kUnitColumns / 2 : kUnitColumns;
  }

  /// The sum of a unit's row of weights over the waves that had slices of it. `scale`: an f32's
  /// exponent.
  __device__ __attribute__((always_inline)) float gather(const Runs& runs, int slices, int unit,
                                                         int row, uint32_t scale) const {
    float sum = 0;
#pragma unroll
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      const int first = runs.first(wave);
      const int last = runs.first(wave + 1);
      if (first < last && first < (unit + 1) * slices && last > unit * slices) {
        sum += shared.sums[sequence()][sums_place(unit, wave) + row];
      }
    }
    return factor * (sum * __builtin_bit_cast(float, scale << 23));
  }
  __device__ __attribute__((always_inline)) float bias(Place place, int column) const {
    return bf16_low(worker.at<const uint16_t>(place)[column]);
  }

  __device__ __attribute__((always_inline)) void finish(int first_unit, int units, const Runs& runs,
                                                        int slices, uint32_t scales) {
    const auto& product = code.product;
    const int unit = of_block() / unit_columns();
    const int row = of_block() & (unit_columns() - 1);
    if (kSeveral ? sequence() >= worker.sequences()
                 : wave_index() * kWaveLanes >= units * unit_columns()) {
      return;
    }
    int column = first_unit * unit_columns() + of_block();
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
      x = gather(runs, slices, unit, row, scales & 0xff);
      const bool biased = segment.bias != kNowhere;
      if (gated()) {
        float up = gather(runs, slices, unit, kUnitColumns / 2 + row, scales >> 8 & 0xff);
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
      const TaggedPlace from =
          sequence_row(worker.at<uint64_t>(segment.out), sequence(), segment.stride);
      Tagged before[1];
      await_tagged(worker, code.operation, worker.tag(product.prior), before, [&](int) {
        return from + __builtin_elementwise_min(column, static_cast<int>(segment.columns) - 1) / 2;
      });
      x += column % 2 != 0 ? before[0].second() : before[0].first();
    }
    if (segment.version == kPlain) {
      if (valid) {
        const int64_t row_begin = kSeveral ? static_cast<int64_t>(sequence()) * segment.stride : 0;
        store_shared_word<float>(worker.at<float>(segment.out) + row_begin + column, x);
      }
    } else {
      const float next = across(x, 1);
      if (kSeveral && segment.version == kOperands) {
        const TwoParts parts(f32x4{x, next, 0, 0});
        const auto to = [&](int part) {
          return (Global<uint32_t>)(operand_part(worker, segment.out, sequence(), part,
                                                 segment.stride) +
                                    product.first + column);
        };
        if (valid && column % 2 == 0) {
          store_shared_word<uint32_t>(to(0), parts.upper[0]);
          store_shared_word<uint32_t>(to(1), parts.lower[0]);
        }
      } else if (valid && column % 2 == 0) {
        store_tagged(
            sequence_row(worker.at<uint64_t>(segment.out), sequence(), segment.stride) + column / 2,
            x, next, worker.tag(segment.version));
      }
    }
    if (Head(code).head() && valid) {
      best.offer(x, product.first + column);
    }
  }
};

/// A product of the rows that are in LDS, by the team. Returns the best of its columns in this
/// thread.
WEFT_GPU Candidate multiply_rows(const Worker& worker, CodeRef code, Stream& stream) {
  const int slices = slices_of(code.product.k);
  Epilogue epilogue{
      .worker = worker,
      .code = code,
      .factor = product_factor(
          code, __builtin_elementwise_min(Epilogue::sequence(), worker.sequences() - 1)),
      .best = {}};
  // Of B's 16 columns two are a sequence's upper and lower parts.
  const int of_lane =
      __builtin_elementwise_min(lane_index() % kUnitColumns / 2, worker.sequences() - 1);
  const char* const row =
      reinterpret_cast<const char*>(row_part(of_lane, lane_index() % 2, code.product.k)) +
      lane_index() / kUnitColumns * 16;
  for (int first_unit = 0; first_unit < Head(code).units(); first_unit += kBlockUnits) {
    const int units = __builtin_elementwise_min(Head(code).units() - first_unit, kBlockUnits);
    if (first_unit > 0) {
      barrier();  // the sums have been read
    }
    const auto leave = [&](int unit, f32x4 sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] += from_lane<kSwapOnes>(sums[i]);
      }
      const int sequence = lane_index() % kUnitColumns / 2;
      if (lane_index() % 2 == 0 && sequence < worker.sequences()) {
        *reinterpret_cast<f32x4*>(&shared.sums[sequence][sums_place(unit, wave_index()) +
                                                         lane_index() / kUnitColumns * 4]) = sums;
      }
    };
    const auto add = [&](const Listed& listed) {
      const float weight = bf16_low(listed.weight) - bf16_low(windowed::kWindowBits);
      for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
        const float x = bf16_low(row_part(sequence, 0, code.product.k)[listed.k]) +
                        bf16_low(row_part(sequence, 1, code.product.k)[listed.k]);
        if (listed.sums != Listed::kNoSums) {
          shared.sums[sequence][listed.sums] += weight * x;
        }
      }
    };
    const uint32_t scales = stream.multiply(worker, row, leave, add);
    barrier();
    epilogue.finish(first_unit, units, Runs(units * slices), slices, scales);
  }
  return epilogue.best;
}

}  // namespace weft::cdna
