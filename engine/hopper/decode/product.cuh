// A product's instruction: its rows, its stream of weights, and what becomes of the sums.
#pragma once

#include "engine/hopper/decode/row_source.cuh"
#include "engine/hopper/decode/worker.cuh"
#include "ops/hopper_activation.cuh"

namespace weft::hopper {

/// What the team does with the sums of a block's columns: each thread finishes a column of one
/// sequence at a time.
template <class W>
class Epilogue {
 public:
  __device__ Epilogue(const W& worker, const Code& code, const UnitShare& share, Source<W>& source)
      : worker_(worker),
        code_(code),
        share_(share),
        source_(source),
        gated_(code.opcode == Opcode::gated_linear) {
    const Segment& segment = code.product.segment[0];
    if (code.product.accumulate != 0 && sequence() < worker.sequences() &&
        output() < static_cast<int>(segment.columns)) {
      source.ask_prior(at<const Tagged>(worker, segment.out) + (row_of(segment) + output()) / 2,
                       worker.tag(code.product.prior));
    }
    // Which warps' sums make this thread's first column: known before the row is.
    const SliceRuns first_runs =
        block_runs(code.product.k, share.count, code.product.fold, 0, of_union<W>(code));
    first_parts_ = sum_parts(first_runs, slices_of(code.product.k), output() >> unit_shift(),
                             min(kBlockUnits, share.count));
    ask_biases(0);
  }

  /// See stream_product().
  __device__ __forceinline__ void operator()(int first_unit, int units, const SliceRuns& runs,
                                             int slices) {
    if constexpr (W::kExperts && W::kBatch > 1) {
      if (product().draw == DrawOf::experts && !gated_) {
        add_slots(first_unit, units, runs, slices);
        return;
      }
    }
    const int unit_columns = 1 << unit_shift();
    const int outputs = units * unit_columns;
    leave_biases(first_unit + units);
    constexpr int kWarpOf = ~31;
    if ((made_here(output()) & kWarpOf) >= outputs || sequence() >= worker_.sequences()) {
      return;
    }
    const float factor = is_normed(product().form) ? source_.factor(sequence()) : 1;
#pragma unroll 1
    for (int thread = output(); (thread & kWarpOf) < outputs; thread += kFinishThreads) {
      const bool there = thread < outputs;
      const int unit = there ? thread >> unit_shift() : 0;
      const int of_unit = thread & (unit_columns - 1);
      const bool first = first_unit == 0 && thread < kFinishThreads;
      // What only later blocks need is worked out for them alone.
      const auto later_parts = [&] {
        SliceRuns of_block = runs;
        of_block.each = made_here(of_block.each);
        of_block.more = made_here(of_block.more);
        return sum_parts(of_block, slices, unit, units);
      };
      const SumParts parts = first ? first_parts_ : later_parts();
      const auto sum = [&](int column) {
        return factor * gather<W::kBatch>(worker_.shared().sums, parts, unit, sequence(), column);
      };
      const int column = first_unit * unit_columns + thread;
      if (gated_) {
        float gate = sum(of_unit);
        float up = sum((unit_columns >> fold_of(first_unit + unit)) + of_unit);
        if constexpr (kUnionBiases) {
          if (has_union_biases()) {
            const uint32_t biases = worker_.drawn().biases[thread];
            gate += bf16_low(biases);
            up += bf16_high(biases);
          }
        }
        put_gated(column, there, gate, up);
      } else {
        put_sum(column, there, first, sum(of_unit));
      }
    }
  }

  /// When all is stored: the best of the columns, for each sequence, to the publisher.
  __device__ __forceinline__ void leave_best() {
    auto& shared = worker_.shared();
    const Team team = worker_.team();
    best_ = warp_best(best_);
    if (team.lane == 0) {
      shared.best[team.warp] = best_;
    }
    team.sync();
    if (team.thread < worker_.sequences()) {
      constexpr int kWarps = Team::kWarps / W::kBatch;  // of a sequence
      const Candidate* of_warps = shared.best + team.thread * kWarps;
      Candidate best = of_warps[0];
      for (int w = 1; w < kWarps; ++w) {
        if (of_warps[w].id != Candidate::kNone) {
          best.offer(of_warps[w].logit, of_warps[w].id);
        }
      }
      shared.best_of_all[team.thread] = best;
      shared.best_there.arrive();
    }
  }

 private:
  static constexpr int kFinishThreads = Team::kThreads / W::kBatch;  // of a sequence
  /// First products of a union have biases, which depend on columns alone: a block's are asked for
  /// while the block is multiplied.
  static constexpr bool kUnionBiases = W::kMx && W::kBatch > 1;
  __device__ bool has_union_biases() const {
    return gated_ && product().draw == DrawOf::experts && product().segment[0].bias != kNowhere;
  }
  /// Of the block that begins at a unit, a thread a column: gate's and up's.
  __device__ __forceinline__ void ask_biases(int first_unit) {
    if constexpr (kUnionBiases) {
      const int unit = first_unit + W::team().thread / (kUnitColumns / 2);
      if (has_union_biases() && W::team().thread < kBlockUnits * (kUnitColumns / 2) &&
          unit < share_.count) {
        const int wide = product().segment[0].stride;
        const int of_all = (share_.first + first_unit) * (kUnitColumns / 2) + W::team().thread;
        const int which = small_quotient(of_all, wide);
        const int expert = worker_.drawn().id[which];
        const int column = of_all - which * wide;
        biases_ = pack_bf16(bias_of(product().segment[0].bias, expert, column),
                            bias_of(product().up_bias, expert, column));
      }
    }
  }
  /// Where all find them; asks for those of the next block.
  __device__ __forceinline__ void leave_biases(int next_unit) {
    if constexpr (kUnionBiases) {
      if (has_union_biases()) {
        if (W::team().thread < kBlockUnits * (kUnitColumns / 2)) {
          worker_.drawn().biases[W::team().thread] = biases_;
        }
        ask_biases(next_unit);
        worker_.team().sync();
      }
    }
  }

  __device__ int fold_of(int unit) const { return unit + 1 == code_.units ? product().fold : 0; }

  /// Columns of out in a unit, as a power of 2.
  __device__ int unit_shift() const {
    static_assert(kUnitColumns == 16);
    return gated_ ? 3 : 4;
  }
  /// This thread's sequence when it finishes a block's columns, and the first of them.
  __device__ static int sequence() {
    return W::kBatch == 1 ? 0 : W::team().thread / kFinishThreads;
  }
  __device__ static int output() { return W::team().thread & (kFinishThreads - 1); }
  __device__ static int64_t row_of(const Segment& segment) {
    return W::kBatch == 1 ? int64_t{0} : static_cast<int64_t>(sequence()) * segment.stride;
  }

  __device__ __forceinline__ void put_gated(int column, bool there, float gate, float up) {
    const Segment& segment = product().segment[0];
    const bool valid = there && column < static_cast<int>(segment.columns);
    if constexpr (W::kExperts && W::kBatch > 1) {
      if (product().draw == DrawOf::experts) {  // columns of one expert, then of the next
        const int wide = segment.stride;
        const int of_all = (share_.first << unit_shift()) + column;
        const int expert = small_quotient(of_all, wide);
        const int slot = there ? worker_.drawn().slot[expert][sequence()] : -1;
        put(segment, slot * wide + of_all - expert * wide - product().first, gated(gate, up),
            slot >= 0);
        return;
      }
    } else if constexpr (W::kExperts) {
      if (product().draw == DrawOf::experts) {  // columns of one slot, then of the next
        const bool flat = product().flat != 0;
        const int wide = flat ? segment.stride
                              : small_quotient(static_cast<int>(code_.units), product().slots)
                                    << unit_shift();
        const int of_all = flat ? product().first + column : column;
        const int slot = small_quotient(of_all, wide);
        const int of_slot = of_all - slot * wide;
        const bool of_expert = flat ? valid : there && of_slot < static_cast<int>(segment.columns);
        if (W::kGeneral && of_expert && segment.bias != kNowhere) {
          const int expert = worker_.drawn().id[product().first_slot + slot];
          gate += bias_of(segment.bias, expert, of_slot);
          up += bias_of(product().up_bias, expert, of_slot);
        }
        put(segment, flat ? column : slot * segment.stride + of_slot, gated(gate, up), of_expert);
        return;
      }
    }
    if (segment.bias != kNowhere && valid) {
      gate += load_kept(at<const __nv_bfloat16>(worker_, segment.bias) + column);
      up += load_kept(at<const __nv_bfloat16>(worker_, product().up_bias) + column);
    }
    const Activation activation = W::kGeneral ? product().activation : Activation::silu;
    put(segment, column, activate_fast(activation, gate) * up, valid);
  }
  /// Second products of experts that several sequences have drawn: adds up each one's own slots, in
  /// their order. Units are those of one column block's experts, then of the next block's.
  __device__ __forceinline__ void add_slots(int first_unit, int units, const SliceRuns& runs,
                                            int slices) requires(W::kExperts&& W::kBatch > 1) {
    if (output() >= 32 || sequence() >= worker_.sequences()) {  // whole warps
      return;
    }
    const auto& drawn = worker_.drawn();
    const int experts = drawn.count;
    const int slots = worker_.draws_nothing(sequence()) ? 0 : product().slots;
    const int end = first_unit + units;
#pragma unroll 1
    for (int unit = first_unit; unit < end;) {
      const int block = small_quotient(unit, experts);  // of 16 columns
      const int stop = min(end, (block + 1) * experts);
#pragma unroll 1
      for (; slot_ < slots; ++slot_) {
        const int at = block * experts + drawn.place[sequence()][slot_];
        if (at >= stop) {
          break;
        }
        const int of_block = at - first_unit;
        const SumParts parts = sum_parts(runs, slices, of_block, units);
        const float sum = gather<W::kBatch>(worker_.shared().sums, parts, of_block, sequence(),
                                            output() & (kUnitColumns - 1));
        slots_sum_ += drawn.weight[sequence()][slot_] * sum;
      }
      if (stop == (block + 1) * experts) {
        put_sum(block * kUnitColumns + output(), output() < kUnitColumns, block == 0, slots_sum_);
        slots_sum_ = 0;
        slot_ = 0;
      }
      unit = stop;
    }
  }
  /// Of drawn experts.
  __device__ __forceinline__ float gated(float gate, float up) const {
    return W::kGeneral ? gate_with(product().activation, product().limit, gate, up)
                       : activate_fast(Activation::silu, gate) * up;
  }
  /// What an expert adds to a column; `bias`: the first expert's.
  __device__ __forceinline__ float bias_of(Place bias, int expert, int column) const {
    return load_kept(at<const __nv_bfloat16>(worker_, bias) +
                     (static_cast<int64_t>(expert) * product().segment[0].stride + column));
  }
  /// `first`: the thread's first column of the product, whose prior value was asked for.
  __device__ __forceinline__ void put_sum(int column, bool there, bool first, float x) {
    int s = 0;  // each segment begins at a unit
    while (s + 1 < code_.segments) {
      const int wide =
          static_cast<int>((product().segment[s].columns + kUnitColumns - 1) / kUnitColumns) *
          kUnitColumns;
      if (column < wide) {
        break;
      }
      column -= wide;
      ++s;
    }
    const Segment& segment = product().segment[s];
    const bool valid = there && column < static_cast<int>(segment.columns);
    if constexpr (W::kExperts && W::kBatch > 1) {
      if (product().form == RowForm::slots && product().draw == DrawOf::shared) {
        x *= worker_.drawn().shared_weight[sequence()];
      }
    }
    if (W::kExperts && product().draw == DrawOf::experts) {
      if constexpr (W::kMx) {
        const auto& drawn = worker_.drawn();
        const bool biased = valid && segment.bias != kNowhere;
        const int slots =
            biased && !(W::kBatch > 1 && worker_.draws_nothing(sequence())) ? product().slots : 0;
#pragma unroll 4
        for (int i = 0; i < slots; ++i) {
          const int slot = product().first_slot + i;
          int expert;
          float weight;
          if constexpr (W::kBatch == 1) {
            expert = drawn.id[slot];
            weight = drawn.weight[slot];
          } else {
            expert = drawn.own[sequence()][slot];
            weight = drawn.weight[sequence()][slot];
          }
          x += weight * bias_of(segment.bias, expert, column);
        }
      }
    } else if (segment.bias != kNowhere && valid) {
      x += load_kept(at<const __nv_bfloat16>(worker_, segment.bias) + column);
    }
    x *= product().alpha;
    if constexpr (W::kGeneral) {
      x = activate_fast(product().activation, x);
      // Drawn experts' products have a limit there.
      const bool caps = product().draw == DrawOf::none && product().soft_cap > 0;
      x = caps ? cap_fast(x, product().soft_cap) : x;
    }
    if (product().accumulate != 0 && valid) {
      auto late = worker_.late(code_);
      const Tagged* from = at<const Tagged>(worker_, segment.out) + (row_of(segment) + column) / 2;
      const float2 pair = await_pair(first ? source_.prior() : load_tagged(from), from,
                                     worker_.tag(product().prior), late);
      x += column % 2 != 0 ? pair.y : pair.x;
    }
    __syncwarp();
    put(segment, column, x, valid);
    if (code_.head != 0 && valid) {
      best_.offer(x, product().first + column);
    }
  }
  /// Stores a column as its readers take it. By whole warps.
  __device__ __forceinline__ void put(const Segment& segment, int column, float x, bool valid) {
    if (segment.version == kPlain) {
      if (valid) {
        __stcg(at<float>(worker_, segment.out) + row_of(segment) + column, x);
      }
      return;
    }
    if (W::kBatch > 1 && segment.version == kOperands) {
      const float rounded = round_to_tagged(x);  // as one sequence's is on its way
      const float4 quad{rounded, __shfl_down_sync(~0u, rounded, 1),
                        __shfl_down_sync(~0u, rounded, 2), __shfl_down_sync(~0u, rounded, 3)};
      const int element = product().first + column;
      if (valid && column % 4 == 0) {
        char* slice = operand_slice(worker_, segment.out, element);
        const int of_slice = element % kSliceK / 4;
        if (W::kMx && form_of(code_) == StreamForm::mx) {  // what reads it is, too
          store_mx_quad<W::kBatch>(slice, sequence(), of_slice, quad,
                                   mx_clamped_exponent(product().limit));
        } else {
          store_row_quad<W::kBatch>(slice, sequence(), of_slice, quad);
        }
      }
      return;
    }
    const float next = __shfl_down_sync(~0u, x, 1);
    if (valid && column % 2 == 0) {
      store_tagged(at<Tagged>(worker_, segment.out) + (row_of(segment) + column) / 2, x, next,
                   worker_.tag(segment.version));
    }
  }

  __device__ const ProductCode& product() const { return code_.product; }

  const W& worker_;
  const Code& code_;
  Source<W>& source_;
  const bool gated_;
  const UnitShare share_;
  SumParts first_parts_;
  Candidate best_;  // of this thread's columns
  [[maybe_unused]] uint32_t biases_ = 0;
  // Of a union's second products, across blocks:
  int slot_ = 0;
  float slots_sum_ = 0;
};

template <class W>
__device__ __forceinline__ void product(const W& worker, const Code& code) {
  const UnitShare share = share_of(worker, code);
  Source<W> source(worker, code);
  Epilogue<W> epilogue(worker, code, share, source);
  // By reference: the best of its columns stays with it.
  const auto finish = [&](int first_unit, int units, const SliceRuns& runs, int slices) {
    epilogue(first_unit, units, runs, slices);
  };
  stream_product<W::kBatch, W::kGeneral, W::kMx, W::kExperts && (W::kBatch > 1)>(
      worker.team(), worker.ring(), worker.shared().products, worker.scratch(), code.product.k,
      share.count, code.product.fold, form_of(code), of_union<W>(code), source,
      worker.shared().sums, finish);
  if (code.head != 0) {
    epilogue.leave_best();
  }
}

}  // namespace weft::hopper
