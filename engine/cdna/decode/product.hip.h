// Products on the resident kernel: a worker's weights in the order of their use, multiplied with
// the row in LDS. Layout: engine/cdna/layout.h.
#pragma once

#include "arch/cdna/mma.hip.h"
#include "engine/cdna/decode/attention.hip.h"
#include "engine/cdna/decode/experts.hip.h"
#include "engine/cdna/decode/latent.hip.h"
#include "engine/cdna/decode/next_token.hip.h"
#include "ops/linear/forms/fp8/cdna.hip.h"
#include "ops/linear/forms/mxfp4/cdna.hip.h"
#include "ops/linear/forms/packed/cdna.hip.h"
#include "ops/linear/forms/plain/cdna.hip.h"

namespace weft::cdna {

/// What a thread's sums are multiplied with: its column's, or gate's and up's.
struct ColumnScales {
  float first = 1;
  float second = 1;
};

/// Where the units of a block find their rows in LDS, in bytes one after the other: of drawn
/// experts those of slots, of a product of heads those of heads.
struct RowsOfUnits {
  int slot_bytes = 0;
  // With kLatents:
  int head_bytes = 0;
  int head_units = 0;  ///< of a head; 0: all units have one row
  int first_unit = 0;  ///< of the block, from the first row's on
};

/// Units of a block that has each of some slots.
WEFT_GPU int block_of_slots(int slots) {
  return kExperts && slots > 1 ? kBlockUnits / slots * slots : kBlockUnits;
}

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
  /// been left. `row`: this lane's column of B, of the first of `rows`. Returns the scales of the
  /// thread's columns.
  template <class Finish, class List>
  __device__ __attribute__((always_inline)) ColumnScales multiply(const Worker& worker,
                                                                  const char* row,
                                                                  const RowsOfUnits& rows,
                                                                  const Finish& finish,
                                                                  const List& list) {
    const ProductPlace place = at(worker, next_);
    ColumnScales scales;
    with_form(
        place, [&](auto form) __attribute__((always_inline)) {
          if constexpr (form.value == WeightForm::packed) {
            // Exponents, a byte each.
            scales = {__builtin_bit_cast(float, (scales_[0] & 0xff) << 23),
                      __builtin_bit_cast(float, (scales_[0] >> 8 & 0xff) << 23)};
          } else if constexpr (form.value == WeightForm::fp8) {
            const auto both = __builtin_bit_cast(Vector<float, 2>, scales_);
            scales = {both[0], both[1]};
          } else if constexpr (form.value == WeightForm::mx) {
            scales = {kMxSumScale, kMxSumScale};
          }
          multiply_run<form.value>(worker, place, row, rows, finish);
          if constexpr (form.value == WeightForm::packed) {
            multiply_listed(worker, place, list);
          }
        });
    first_slice_ += place.part;
    if (first_slice_ >= place.slices) {
      first_slice_ = 0;
      first_unit_ += block_of_slots(place.walked_slots());
    }
    if (first_unit_ >= place.units) {
      advance(worker);
    }
    ask_first(worker);
    return scales;
  }
  /// The experts that the next product takes have been drawn.
  __device__ __attribute__((always_inline)) void take_drawn(const Worker& worker) {
    if ((at(worker, next_).flags & ProductPlace::kAwaitsDraw) != 0) {
      ask_first(worker, true);
    }
  }

 private:
  template <WeightForm kForm>
  struct Form {
    static constexpr WeightForm value = kForm;
  };
  /// Calls body(Form<...>) with the form of a product's weights, of those that the kernel has.
  template <class Body>
  __device__ __attribute__((always_inline)) static void with_form(const ProductPlace& place,
                                                                  const Body& body) {
    if constexpr (kWeights == KernelWeights::f16) {
      body(Form<WeightForm::f16>{});
    } else if (kWeights == KernelWeights::fp8 && place.form() == WeightForm::fp8) {
      body(Form<WeightForm::fp8>{});
    } else if (kWeights == KernelWeights::fp8 && place.form() == WeightForm::fp8_blocks) {
      body(Form<WeightForm::fp8_blocks>{});
    } else if (kWeights == KernelWeights::mx && place.form() == WeightForm::mx) {
      body(Form<WeightForm::mx>{});
    } else if (kWeights == KernelWeights::bf16 && place.form() == WeightForm::packed) {
      body(Form<WeightForm::packed>{});
    } else {
      body(Form<WeightForm::plain>{});
    }
  }
  /// Of a form's slices, of which each takes so many of `ahead_`: those of mx, and their scales.
  template <WeightForm kForm>
  static constexpr int kAheadOf = kForm == WeightForm::mx ? 2 : 1;
  template <WeightForm kForm>
  static constexpr int kAhead = kSlicesAhead / kAheadOf<kForm>;
  /// Whether it is the form of drawn experts.
  template <WeightForm kForm>
  static constexpr bool kDrawn = kExperts&& kForm == (kWeights == KernelWeights::mx
                                                          ? WeightForm::mx
                                                          : WeightForm::plain);
  /// Where a wave is in a block.
  struct Walk {
    int slices;
    int unit;
    int slice;  ///< the next one, in the unit
    const char* row;
    int slots = 1;
    int slot = 0;
    int slot_bytes = 0;
    int head_units = 0;
    int head_left = 0;  ///< units of the head; below 1: there are no heads
    int head_bytes = 0;
    f32x4 sums = {0, 0, 0, 0};
    bool any = false;

    /// A slice's weights, as load() left them; `scale`: of WeightForm::fp8_blocks.
    template <WeightForm kForm, class Finish>
    __device__ __attribute__((always_inline)) void multiply(const u32x4* ahead, float scale,
                                                            const Finish& finish) {
      const u32x4 weights = ahead[0];
      if (slice == slices) {
        end(finish);
        sums = f32x4{0, 0, 0, 0};
        slice = 0;
        ++unit;
        if constexpr (kDrawn<kForm>) {
          slot = slot + 1 < slots ? slot + 1 : 0;
        }
        if (kLatents && --head_left == 0) {
          head_left = head_units;
          row += head_bytes;
        }
      }
      const auto* const of_row = reinterpret_cast<const u32x4*>(
          row + (kDrawn<kForm> ? slot * slot_bytes : 0) + slice * (slice_k(kForm) * 2));
      const u32x4 b = *of_row;
      if constexpr (kForm == WeightForm::f16) {
        const HalfParts parts(weights);
        sums = mma_bf16(parts.upper, b, sums);
        sums = mma_bf16(parts.lower, b, sums);
      } else if constexpr (kForm == WeightForm::fp8_blocks) {
        sums += scale * mma_bf16(operand<kForm>(weights), b, f32x4{0, 0, 0, 0});
      } else if constexpr (kForm == WeightForm::mx) {
#pragma unroll
        for (int block = 0; block < 4; ++block) {
          const f32x4 x = mma_bf16(mx_operand(weights[block]), of_row[block * (kSliceK * 2 / 16)],
                                   f32x4{0, 0, 0, 0});
          sums += mx_scales(ahead[1][block]) * x;
          __builtin_amdgcn_sched_barrier(0);  // see below
        }
      } else {
        sums = mma_bf16(operand<kForm>(weights), b, sums);
      }
      if constexpr (lane_bytes(kForm) == 8) {
        // Operands of several slices, and their sums, would take registers each.
        __builtin_amdgcn_sched_barrier(0);
      }
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
    return kExperts ? ProductPlace{place.stream, place.units, place.slices, place.part,
                                   place.flags,  place.lists, place.slots,  place.expert_units}
                    : ProductPlace{place.stream, place.units, place.slices,
                                   place.part,   place.flags, place.lists};
  }
  /// Units of the next block, and slices of its next part.
  __device__ __attribute__((always_inline)) int units_of(const ProductPlace& place) const {
    return __builtin_elementwise_min(place.units - first_unit_,
                                     block_of_slots(place.walked_slots()));
  }
  __device__ __attribute__((always_inline)) int slices_of(const ProductPlace& place) const {
    return __builtin_elementwise_min(place.slices - first_slice_, place.part);
  }
  __device__ __attribute__((always_inline)) Runs runs_of(const ProductPlace& place) const {
    return Runs(units_of(place) * slices_of(place));
  }
  /// From a slice of the next block's part on, in bytes from the stream's beginning.
  struct From {
    uint32_t slices;
    uint32_t scales = 0;  ///< of WeightForm::fp8_blocks
    // Of kDrawn, where each load goes on to the next slice:
    int unit = 0;  ///< of an expert
    int slot = 0;
    int left = 0;  ///< slices of the unit, `slices` the first of them
  };
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) From stream_of(const ProductPlace& place,
                                                           int slice) const {
    const auto in_product =
        static_cast<uint32_t>(first_unit_ * place.slices + units_of(place) * first_slice_ + slice);
    From from{place.stream * 16 + in_product * slice_bytes(kForm)};
    if constexpr (kDrawn<kForm>) {
      from.left = kLinear;
      if (place.slots != 0) {
        const int of_block = slice / place.slices;
        from.unit = (first_unit_ + of_block) / place.walked_slots();
        from.slot = first_unit_ + of_block - from.unit * place.walked_slots();
        begin_unit<kForm>(place, from);
        const int before = slice - of_block * place.slices;
        from.slices += before * slice_bytes(kForm);
        from.left -= before;
      }
    }
    if constexpr (kForm == WeightForm::fp8_blocks) {
      from.scales = scales_of<kForm>(place) + in_product * kSliceScaleBytes;
    }
    return from;
  }
  static constexpr int kLinear = 1 << 30;  ///< From::left: the next slices follow, all of them
  /// A unit of a drawn expert: those of a unit's slots follow one another.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static void begin_unit(const ProductPlace& place,
                                                                   From& from) {
    const int expert =
        __builtin_amdgcn_readfirstlane(shared.drawn.id[place.first_slot() + from.slot]);
    from.left = place.slices;
    from.slices = place.stream * 16 +
                  static_cast<uint32_t>((expert * place.expert_units + from.unit) * place.slices) *
                      slice_bytes(kForm);
  }
  /// Where a product's scales are.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static uint32_t scales_of(const ProductPlace& place) {
    return place.stream * 16 +
           static_cast<uint32_t>(place.units * place.slices) * slice_bytes(kForm);
  }
  /// A lane's weights of slice i after `from`, as they lie there. With kDrawn of the next one.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static void load(u32x4* ahead, const Buffer& buffer,
                                                             const ProductPlace& place, From& from,
                                                             int i) {
    const auto lane = static_cast<uint32_t>(lane_index() * lane_bytes(kForm));
    uint32_t at = from.slices + i * slice_bytes(kForm);
    if constexpr (kDrawn<kForm>) {
      if (from.left == 0) {
        if (++from.slot == place.walked_slots()) {
          from.slot = 0;
          ++from.unit;
        }
        begin_unit<kForm>(place, from);
      }
      at = from.slices;
      from.slices += slice_bytes(kForm);
      --from.left;
    }
    if constexpr (kForm == WeightForm::packed) {
      // Words that are none of it (-1) have no register then.
      const u32x3 words = buffer.load_three_once(lane, at);
      ahead[0] = __builtin_shufflevector(words, words, 0, 1, 2, -1);
    } else if constexpr (lane_bytes(kForm) == 8) {
      const u32x2 words = buffer.load_pair_once(lane, at);
      ahead[0] = __builtin_shufflevector(words, words, 0, 1, -1, -1);
    } else if constexpr (kForm == WeightForm::mx) {
      ahead[0] = buffer.load_once(static_cast<uint32_t>(lane_index() * 16), at);
      ahead[1] = buffer.load_once(static_cast<uint32_t>(lane_index() / kUnitColumns * 16),
                                  at + kWaveLanes * 16);
    } else {
      ahead[0] = buffer.load_once(lane, at);
    }
  }
  /// The scales of the kSlicesAhead slices after `from`, one a lane.
  __device__ __attribute__((always_inline)) static uint32_t load_scales(const Buffer& buffer,
                                                                        const From& from) {
    static_assert(kSlicesAhead * kSliceScaleBytes / 4 <= kWaveLanes);
    return buffer.load_word(static_cast<uint32_t>(lane_index() * 4), from.scales);
  }
  /// That of slice i for this lane, whose sums are of columns of one half.
  __device__ __attribute__((always_inline)) static float scale_of(uint32_t scales, int i) {
    const auto low = static_cast<uint32_t>(__builtin_amdgcn_readlane(scales, 2 * i));
    const auto high = static_cast<uint32_t>(__builtin_amdgcn_readlane(scales, 2 * i + 1));
    return __builtin_bit_cast(float, lane_index() < kWaveLanes / 2 ? low : high);
  }
  /// The operand A of it.
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) static u32x4 operand(u32x4 weights) {
    if constexpr (kForm == WeightForm::plain) {
      return weights;
    } else if constexpr (lane_bytes(kForm) == 8) {
      return fp8_operand(weights);
    } else {
      return packed_operand(weights);
    }
  }
  template <WeightForm kForm, class Finish>
  __device__ __attribute__((always_inline)) void multiply_run(const Worker& worker,
                                                              const ProductPlace& place,
                                                              const char* row,
                                                              const RowsOfUnits& rows,
                                                              const Finish& finish) {
    const Buffer buffer = buffer_of(worker);
    const int slices = slices_of(place);
    const Runs runs = runs_of(place);
    const int first = runs.first(wave_index());
    int left = runs.count(wave_index());
    Walk walk{.slices = slices, .unit = first / slices, .slice = 0, .row = row};
    walk.slice = first - walk.unit * slices;
    if constexpr (kDrawn<kForm>) {
      walk.slots = place.walked_slots();
      walk.slot = walk.unit % walk.slots;
      walk.slot_bytes = rows.slot_bytes;
    }
    if (kLatents && rows.head_units > 0) {
      const int unit = rows.first_unit + walk.unit;
      const int head = small_quotient(unit, rows.head_units);
      walk.row += head * rows.head_bytes;
      walk.head_left = (head + 1) * rows.head_units - unit;
      walk.head_units = rows.head_units;
      walk.head_bytes = rows.head_bytes;
    }
    From from = stream_of<kForm>(place, first + kAhead<kForm>);
    constexpr bool kScaled = kForm == WeightForm::fp8_blocks;
    const auto multiply = [&](uint32_t scales, int i) __attribute__((always_inline)) {
      walk.template multiply<kForm>(ahead_ + kAheadOf<kForm> * i, kScaled ? scale_of(scales, i) : 1,
                                    finish);
    };
    const auto next_scales = [&] {
      const uint32_t scales = scales_[0];
      if constexpr (kScaled) {
        scales_[0] = load_scales(buffer, from);
      }
      return scales;
    };
    // Whole turns: each slice's place is taken by that which comes kAhead<kForm> later.
    for (; left >= 2 * kAhead<kForm>; left -= kAhead<kForm>) {
      const uint32_t scales = next_scales();
#pragma unroll
      for (int i = 0; i < kAhead<kForm>; ++i) {
        multiply(scales, i);
        load<kForm>(ahead_ + kAheadOf<kForm> * i, buffer, place, from, i);
      }
      if constexpr (!kDrawn<kForm>) {
        from.slices += kAhead<kForm> * slice_bytes(kForm);
      }
      from.scales += kSlicesAhead * kSliceScaleBytes;
    }
    // The rest, in a turn or two.
#pragma unroll 1
    for (; left > 0; left -= kAhead<kForm>) {
      const uint32_t scales = left > kAhead<kForm> ? next_scales() : scales_[0];
#pragma unroll
      for (int i = 0; i < kAhead<kForm>; ++i) {
        if (i < left) {
          multiply(scales, i);
        }
        if (i + kAhead<kForm> < left) {
          load<kForm>(ahead_ + kAheadOf<kForm> * i, buffer, place, from, i);
        }
      }
    }
    walk.end(finish);
  }

  /// What is listed of the wave's run, 0 .. size - 1: one after the other in memory.
  struct List {
    Global<const u32x2> from;
    int size;

    __device__ __attribute__((always_inline))
    List(const Worker& worker, const ProductPlace& place, int first_unit, int first_slice) {
      int part = first_unit / kBlockUnits;  // of the product's blocks and their parts
      if (place.part < place.slices) {
        part = part * ceil_div(place.slices, place.part) + first_slice / place.part;
      }
      const auto begin =
          constant(worker.arguments->list_begin) + place.lists + part * kTeamWaves + wave_index();
      from = (Global<const u32x2>)reinterpret_cast<uintptr_t>(worker.arguments->listed) + begin[0];
      size = static_cast<int>(begin[1] - begin[0]);
    }
  };
  template <class Add>
  __device__ __attribute__((always_inline)) void multiply_listed(const Worker& worker,
                                                                 const ProductPlace& place,
                                                                 const Add& add) {
    const List list(worker, place, first_unit_, first_slice_);
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
    first_slice_ = 0;
    do {
      if (++next_ >= end) {
        next_ = begin;
        ++step_;
      }
    } while (step_ < worker.arguments->forced_steps && begin < end &&
             (at(worker, next_).flags & ProductPlace::kHead) != 0);
  }
  /// Asks for the first slices of the next run, and for what goes with it.
  __device__ __attribute__((always_inline)) void ask_first(const Worker& worker,
                                                           bool drawn = false) {
    if (step_ >= worker.arguments->steps) {
      return;
    }
    const ProductPlace place = at(worker, next_);
    if (kExperts && !drawn && first_unit_ == 0 && (place.flags & ProductPlace::kAwaitsDraw) != 0) {
      return;
    }
    // Threads that finish no column of the block may ask for scales beyond the stream's end.
    const auto column = static_cast<uint32_t>(kSeveral ? lane_index() : thread_index());
    with_form(
        place, [&](auto form) __attribute__((always_inline)) {
          constexpr WeightForm kForm = form.value;
          ask_slices<kForm>(worker, place);
          const uint32_t scales = scales_of<kForm>(place) +
                                  first_unit_ * static_cast<uint32_t>(unit_scale_bytes(kForm));
          if constexpr (kForm == WeightForm::packed) {
            scales_[0] = buffer_of(worker).load_half(scales + column * 2);
            const List list(worker, place, first_unit_, first_slice_);
            if (lane_index() < list.size) {
              listed_ = list.from[lane_index()];
            }
          } else if constexpr (kForm == WeightForm::fp8) {
            scales_ = buffer_of(worker).load_pair(scales + column * 8);
          }
        });
  }
  template <WeightForm kForm>
  __device__ __attribute__((always_inline)) void ask_slices(const Worker& worker,
                                                            const ProductPlace& place) {
    const Buffer buffer = buffer_of(worker);
    const Runs runs = runs_of(place);
    const int count = runs.count(wave_index());
    From from = stream_of<kForm>(place, runs.first(wave_index()));
#pragma unroll
    for (int i = 0; i < kAhead<kForm>; ++i) {
      if (i < count) {
        load<kForm>(ahead_ + kAheadOf<kForm> * i, buffer, place, from, i);
      }
    }
    if constexpr (kForm == WeightForm::fp8_blocks) {
      scales_[0] = load_scales(buffer, from);
    }
  }

  int next_;             // product, of all workers'
  int step_ = 0;         // of it
  int first_unit_ = 0;   // of its next block
  int first_slice_ = 0;  // of that block's next part
  u32x4 ahead_[kSlicesAhead] = {};
  /// Of this thread's columns in that block, as they lie there; or load_scales() of those slices.
  u32x2 scales_ = {};
  u32x2 listed_ = {};  // this lane's of the wave's list there
};

/// Makes a part of a product's rows in LDS, by the team.
WEFT_GPU void make_rows(const Worker& worker, CodeRef code, const RowPart& part) {
  if (kSeveral && code.product.source == kOperands) {
    return copy_operands(worker, code, part);
  }
  const resident::RowForm form = ProductHead(code).form();
  if (!kSeveral && form == resident::RowForm::merged) {
    return make_merged_row(worker, code, part);
  }
  if (kExperts && form == resident::RowForm::slots) {
    return make_slots_row(worker, code, part);
  }
  if (kLatents && form == resident::RowForm::heads) {
    return make_heads_row(worker, code, part);
  }
  for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
    if (form == resident::RowForm::layer_norm) {
      make_layer_norm(worker, code, sequence, part);
    } else {
      make_plain_row(worker, code, sequence, part);
    }
  }
}

/// What the team does with the sums of a block's columns: each thread finishes one, of several
/// sequences a wave those of one.
struct Epilogue {
  const Worker& worker;
  CodeRef code;
  Candidate best;
  float sum = 0;  ///< of this thread's column of the block, or of gate's
  float up = 0;

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

  /// The sum of a unit's row of weights over the waves that had slices of it.
  __device__ __attribute__((always_inline)) float gather(const Runs& runs, int slices, int unit,
                                                         int row, float scale) const {
    float sum = 0;
#pragma unroll
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      const int first = runs.first(wave);
      const int last = runs.first(wave + 1);
      if (first < last && first < (unit + 1) * slices && last > unit * slices) {
        sum += shared.sums[sequence()][sums_place(unit, wave) + row];
      }
    }
    return sum * scale;
  }
  __device__ __attribute__((always_inline)) float bias(Place place, int column) const {
    return weight_pair(worker.at<const uint16_t>(place)[column])[0];
  }

  /// Whether columns are of experts that were drawn: a unit of each slot, and then the next ones.
  __device__ __attribute__((always_inline)) bool drawn() const {
    return kExperts && ProductHead(code).draw() == resident::DrawOf::experts;
  }
  /// Units of a block that are one: of all slots that are summed.
  __device__ __attribute__((always_inline)) int summed() const {
    return drawn() && !gated() ? ProductHead(code).slots() : 1;
  }

  /// Takes the sums of a part of the block's k.
  __device__ __attribute__((always_inline)) void collect(int units, int slices,
                                                         const ColumnScales& scales) {
    const int unit = of_block() / unit_columns();
    const int row = of_block() & (unit_columns() - 1);
    const Runs runs(units * slices);
    if (const int slots = summed(); slots > 1) {
#pragma unroll 1
      for (int slot = 0; slot < slots; ++slot) {
        if (unit * slots + slot < units) {
          sum += gather(runs, slices, unit * slots + slot, row, scales.first);
        }
      }
      return;
    }
    if (unit < units && sequence() < worker.sequences()) {
      sum += gather(runs, slices, unit, row, scales.first);
      up += gated() ? gather(runs, slices, unit, kUnitColumns / 2 + row, scales.second) : 0;
    }
  }
  /// Of a slot's expert; `place`: of the first expert's.
  __device__ __attribute__((always_inline)) float expert_bias(Place place, int slot,
                                                              int column) const {
    const int expert = shared.drawn.id[ProductHead(code).first_slot() + slot];
    return bias(place, expert * code.product.segment[0].stride + column);
  }
  __device__ __attribute__((always_inline)) float slots_bias(int column) const {
    float sum = 0;
#pragma unroll 1
    for (int slot = 0; slot < ProductHead(code).slots(); ++slot) {
      sum += shared.drawn.weight[ProductHead(code).first_slot() + slot] *
             expert_bias(code.product.segment[0].bias, slot, column);
    }
    return sum;
  }
  /// A column of a slot's gated product.
  __device__ __attribute__((always_inline)) void put_slot(int unit, bool there, float gate,
                                                          float up_sum) const {
    const auto& product = code.product;
    const auto& segment = product.segment[0];
    const int slots = ProductHead(code).slots();
    const int of_expert = unit / slots;
    const int slot = unit - of_expert * slots;
    const int column = of_expert * unit_columns() + (of_block() & (unit_columns() - 1));
    const bool valid = there && column < static_cast<int>(segment.columns);
    if (valid && segment.bias != kNowhere) {
      gate += expert_bias(segment.bias, slot, column);
      up_sum += expert_bias(product.up_bias, slot, column);
    }
    float x;
    if (product.limit > 0) {
      gate = __builtin_fminf(gate, product.limit);
      up_sum = __builtin_fmaxf(__builtin_fminf(up_sum, product.limit), -product.limit);
      x = divide_fast(gate, 1 + exp_fast(-1.702f * gate)) * (up_sum + 1);
    } else {
      x = activate(ProductHead(code).activation(), gate) * up_sum;
    }
    const float next = across(x, 1);
    if (valid && column % 2 == 0) {
      store_tagged(worker.at<uint64_t>(segment.out) + (slot * segment.stride + column) / 2, x, next,
                   worker.tag(segment.version));
    }
  }

  /// When all parts' sums have been taken.
  __device__ __attribute__((always_inline)) void finish(int first_unit, int units) {
    const auto& product = code.product;
    const int unit = of_block() / unit_columns();
    const float factor =
        product_factor(code, __builtin_elementwise_min(sequence(), worker.sequences() - 1));
    float x = factor * sum;
    float other = factor * up;
    sum = up = 0;
    if (kSeveral ? sequence() >= worker.sequences()
                 : wave_index() * kWaveLanes >= units * unit_columns()) {
      return;
    }
    if (drawn() && gated()) {
      return put_slot(first_unit + unit, unit < units, x, other);
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
    if (valid) {
      const bool biased = segment.bias != kNowhere;
      if (gated()) {
        if (biased) {
          x += bias(segment.bias, column);
          other += bias(product.up_bias, column);
        }
        x = activate(ProductHead(code).activation(), x) * other;
      } else {
        if (drawn()) {
          x += biased ? slots_bias(column) : 0;
        } else {
          x += biased ? bias(segment.bias, column) : 0;
        }
        x *= product.alpha;
        x = activate(ProductHead(code).activation(), x);
        // Drawn experts' products have a limit there.
        x = !drawn() && product.soft_cap > 0 ? cap_softly(x, product.soft_cap) : x;
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

/// A product, of whose rows the first part is in LDS, by the team. Returns the best of its columns
/// in this thread.
WEFT_GPU Candidate multiply_rows(const Worker& worker, CodeRef code, Stream& stream) {
  Epilogue epilogue{.worker = worker, .code = code, .best = {}};
  const int parts = ProductHead(code).parts();
  // Of drawn experts there is each unit in each slot.
  const int slots = epilogue.drawn() ? ProductHead(code).slots() : 1;
  const int all_units = Head(code).units() * slots;
  const int block = block_of_slots(slots);
  for (int first_unit = 0; first_unit < all_units; first_unit += block) {
    const int units = __builtin_elementwise_min(all_units - first_unit, block);
    for (int part = 0; part < parts; ++part) {
      const RowPart rows(code, part);
      if (first_unit + part > 0) {
        barrier();  // the sums have been read, and the rows
        if (parts > 1) {
          make_rows(worker.made_here(), *made_here(&code), rows);
          barrier();
        }
      }
      // Of B's 16 columns two are a sequence's upper and lower parts.
      const int of_lane =
          __builtin_elementwise_min(lane_index() % kUnitColumns / 2, worker.sequences() - 1);
      const char* const row =
          reinterpret_cast<const char*>(row_part(of_lane, lane_index() % 2, rows.elements)) +
          lane_index() / kUnitColumns * 16;
      const auto leave = [&](int unit, f32x4 sums) {
        sums += f32x4{from_lane<kSwapOnes>(sums[0]), from_lane<kSwapOnes>(sums[1]),
                      from_lane<kSwapOnes>(sums[2]), from_lane<kSwapOnes>(sums[3])};
        const int sequence = lane_index() % kUnitColumns / 2;
        if (lane_index() % 2 == 0 && sequence < worker.sequences()) {
          *reinterpret_cast<f32x4*>(&shared.sums[sequence][sums_place(unit, wave_index()) +
                                                           lane_index() / kUnitColumns * 4]) = sums;
        }
      };
      const auto add = [&](const Listed& listed) {
        const float weight = bf16_low(listed.weight) - bf16_low(windowed::kWindowBits);
        for (int sequence = 0; sequence < worker.sequences(); ++sequence) {
          const float x = bf16_low(row_part(sequence, 0, rows.elements)[listed.k]) +
                          bf16_low(row_part(sequence, 1, rows.elements)[listed.k]);
          if (listed.sums != Listed::kNoSums) {
            shared.sums[sequence][listed.sums] += weight * x;
          }
        }
      };
      // Of slots that are summed each has its part of the row.
      int slices = rows.slices();
      RowsOfUnits of_units;
      if (epilogue.drawn()) {
        const bool summed = !epilogue.gated();
        const int k = summed ? code.product.slot_elements : code.product.k;
        slices = slices_of(k, ProductHead(code).form_of_weights());
        of_units.slot_bytes = summed ? round_up(k, kSlotSteps) * 2 : 0;
      }
      if (const int columns = code.product.segment[0].head_columns; kLatents && columns > 0) {
        of_units.head_bytes = slices * (kSliceK * 2);
        of_units.head_units = columns / kUnitColumns;
        of_units.first_unit =
            (code.product.first - ProductHeads(code).first * columns) / kUnitColumns + first_unit;
      }
      const ColumnScales scales = stream.multiply(worker, row, of_units, leave, add);
      barrier();
      epilogue.collect(units, slices, scales);
    }
    epilogue.finish(first_unit / epilogue.summed(), units / epilogue.summed());
  }
  return epilogue.best;
}

}  // namespace weft::cdna
