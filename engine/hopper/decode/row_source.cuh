// The rows that a product multiplies, as they come to shared memory: `Source` of stream_product()
// in ops/linear/hopper.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/decode/attention.cuh"
#include "engine/hopper/decode/experts.cuh"
#include "engine/hopper/decode/latent.cuh"
#include "engine/hopper/decode/worker.cuh"
#include "ops/rmsnorm/hopper.cuh"

namespace weft::hopper {

/// What RowSource and RowsSource have in common.
template <class W>
class ProductRows {
 public:
  /// Waits for a page. What Barrier::wait() does at its end, a trap, would cost registers.
  __device__ void await_page(Barrier& page, uint32_t phase) {
    while (!page.try_wait(phase) && !late_()) {
    }
  }
  /// What this thread's first column of the product is added to, which nobody writes meanwhile:
  /// asked for long before it is needed.
  __device__ void ask_prior(const Tagged* at, uint32_t tag) {
    prior_at_ = at;
    prior_tag_ = tag;
    prior_ = load_tagged(at);
  }
  __device__ Tagged prior() const { return prior_; }

  /// Slices before the row of a unit's head.
  __device__ int head_slices(int unit, int slices) const requires(W::kLatents) {
    const int columns = product().segment[0].head_columns;
    return columns == 0 ? 0
                        : (small_quotient(product().first + unit * kUnitColumns, columns) -
                           small_quotient(product().first, columns)) *
                              slices;
  }

 protected:
  __device__ ProductRows(const W& worker, const Code& code)
      : worker_(worker), code_(code), late_(worker.late(code)) {}

  /// When the row has come. A worker without a part in the last products asked too early.
  __device__ void look_at_prior() {
    if (prior_at_ != nullptr && prior_.tag() != prior_tag_) {
      prior_ = load_tagged(prior_at_);
    }
  }

  __device__ const ProductCode& product() const { return code_.product; }
  /// The norm's weights, of what is stored of them.
  __device__ float4 offset(float4 w) const {
    return W::kGeneral ? with_offset(w, product().weight_offset) : w;
  }

  const W& worker_;
  const Code& code_;
  typename W::Late late_;

 private:
  const Tagged* prior_at_ = nullptr;
  uint32_t prior_tag_ = 0;
  Tagged prior_ = {};
};

/// A sequence's row, LayerNormed, as products take it. By the team, which holds it in registers: a
/// mean must be known before the squares about it.
template <class W>
__device__ __forceinline__ void layer_norm(const W& worker, const Code& code, int sequence,
                                           char* row) {
  const ProductCode& product = code.product;
  const Team team = worker.team();
  constexpr int kQuads = kMostLayerNorm / (4 * Team::kThreads);
  const auto element = [&](int q) { return 4 * (team.thread + q * Team::kThreads); };
  const auto from = [&](int q) {
    return row_at(worker, product.row, sequence, product.k) + element(q) / 2;
  };
  const uint32_t tag = worker.tag(product.source);
  auto late = worker.late(code);
  TaggedQuad quads[kQuads] = {};
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (element(q) < product.k && !quads[q].has(tag)) {
        quads[q] = load_tagged_quad(from(q));
        there = there && quads[q].has(tag);
      }
    }
  } while (!there && !late());
  const auto each = [&](int q, float mean) {
    const float4 x = quads[q].values();
    return element(q) < product.k ? float4{x.x - mean, x.y - mean, x.z - mean, x.w - mean}
                                  : float4{};
  };
  float sum = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const float4 x = each(q, 0);
    sum += (x.x + x.y) + (x.z + x.w);
  }
  const float mean = team_sum(team, sum, 0) / static_cast<float>(product.k);
  float squares = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    squares += squares_of(each(q, mean));
  }
  const float factor = norm_factor(team_sum(team, squares, 1), product.k, product.epsilon);
  const int end = row_slices(product.k, product.fold) * kSliceK;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if (element(q) < end) {
      float4 x = each(q, mean);
      if (element(q) < product.k) {
        const float4 w = load_weight4(at<const __nv_bfloat16>(worker, product.norm_weight),
                                      element(q) / 4, product.weight_offset);
        const float4 b = product.norm_bias == kNowhere
                             ? float4{}
                             : load_weight4(at<const __nv_bfloat16>(worker, product.norm_bias),
                                            element(q) / 4, 0);
        x = {factor * x.x * w.x + b.x, factor * x.y * w.y + b.y, factor * x.z * w.z + b.z,
             factor * x.w * w.w + b.w};
      }
      store_row_quad<W::kBatch>(row, sequence, element(q) / 4, x);
    }
  }
}

/// The row that a product multiplies: a tagged row, perhaps with a norm's weights, the slots of a
/// mixture, or attention's splits, merged. The norm's factor is left to the end of the product: it
/// is known when all have read the row. kQuads: of a thread that are on their way at once.
template <class W, int kQuads = W::kExperts ? 4 : 14>
class RowSource : public ProductRows<W> {
 public:
  // See stream_product().
  static constexpr bool kRowFirst = false;
  static constexpr bool kOfExperts = W::kExperts;
  __device__ static constexpr bool streams() { return false; }
  __device__ void take(int, int) {}
  __device__ static constexpr uint32_t place(int) { return 0; }
  __device__ static void state_unit(uint32_t*) {}
  __device__ static constexpr int sequences() { return 1; }

  __device__ RowSource(const W& worker, const Code& code)
      : ProductRows<W>(worker, code),
        row_(at<const Tagged>(worker, code.product.row) + 2 * W::team().thread),
        tag_(worker.tag(code.product.source)),
        quads_(code.product.k / 4 - W::team().thread),
        weight_(is_normed(code.product.form)
                    ? at<const __nv_bfloat16>(worker, code.product.norm_weight)
                    : nullptr) {}

  __device__ void ask(char*, const SliceRuns&, int) {
    if (product().form <= RowForm::rms_norm) {
      ask_plain();
    } else if (has_shared_row()) {
      ask_shared_row();
    }
  }

  /// Whether it is as the weights' form takes it: a code before has made it, or it is made so.
  __device__ bool made() const { return W::kExperts && (normed_before() || slots_in_f16()); }

  __device__ void make(char* row) {
    if (product().form <= RowForm::rms_norm) {
      make_plain(row);
    } else if (!normed_before()) {
      if (W::kLatents && product().form == RowForm::heads) {
        take_heads(worker_, code_, row);
      } else if (W::kLatents && product().form == RowForm::merged) {
        merge_heads(worker_, code_, row);
      } else if (W::kExperts && product().form == RowForm::slots) {
        if (slots_in_f16()) {
          weigh_slots<W::kMx>(row);
        } else {
          weigh_slots<false>(row);
        }
      } else if (W::kGeneral && product().form == RowForm::layer_norm) {
        layer_norm(worker_, code_, 0, row);
      } else {
        merge(worker_, code_, row);
      }
    }
    this->look_at_prior();
    worker_.stamp(1);
  }

  // Of a row that is plain or normed by its squares.
  __device__ __forceinline__ void ask_plain() {
    ask_row(0);
#pragma unroll
    for (int q = 0; q < kWeightQuads; ++q) {
      weights_[q] = weight_ != nullptr && has(0, q) ? weights(0, q) : uint2{};
    }
  }
  __device__ __forceinline__ void make_plain(char* row) {
    const int quads = row_slices(product().k, product().fold) * (kSliceK / 4);
#pragma unroll 1
    for (int first = 0; warp_quad(first, 0) < quads; first += kQuads * Team::kThreads) {
      if (first > 0) {
        ask_row(first);
      }
      await(first);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (warp_quad(first, q) >= quads) {
          break;
        }
        float4 x = has(first, q) ? asked_[q].values() : float4{};
        if (weight_ != nullptr) {
          squares_ += squares_of(x);
          // Those that were not asked for are of rows that only the largest models have.
          const bool asked = first == 0 && q < kWeightQuads;
          const float4 w = offset(widen4(asked           ? weights_[q % kWeightQuads]
                                         : has(first, q) ? weights(first, q)
                                                         : uint2{}));
          x = {x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w};
        }
        store_row_quad<1>(row, 0, warp_quad(first, q) + W::team().lane, x);
      }
    }
    if (weight_ != nullptr) {
      W::shared().squares[0][W::team().thread] = squares_;
    }
  }

  /// By the last warp, which has the fewest slices to multiply.
  __device__ void publish() {
    if (weight_ != nullptr && W::team().warp == Team::kWarps - 1) {
      static_assert(Team::kThreads == 2 * 4 * 32);
      const auto* of_threads =
          reinterpret_cast<const float4*>(W::shared().squares[0]) + W::team().lane;
      const float4 a = of_threads[0];
      const float4 b = of_threads[32];
      const float squares = warp_sum(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)));
      if (W::team().lane == 0) {
        W::shared().factor = norm_factor(squares, product().k, product().epsilon);
      }
    }
  }
  /// Of the row's norm, when the sums are there.
  __device__ float factor(int) const { return W::shared().factor; }

 private:
  using ProductRows<W>::code_;
  using ProductRows<W>::late_;
  using ProductRows<W>::offset;
  using ProductRows<W>::product;
  using ProductRows<W>::worker_;

  static constexpr int kWeightQuads = kQuads < 5 ? kQuads : 5;  // likewise, of the norm's weights

  /// The q-th quad of this warp's first thread, from quad `first` of the row on.
  __device__ static int warp_quad(int first, int q) {
    return first + q * Team::kThreads + W::team().warp * 32;
  }
  __device__ bool has(int first, int q) const { return first + q * Team::kThreads < quads_; }
  __device__ bool warp_has(int first, int q) const { return warp_quad(first, q) < product().k / 4; }
  __device__ TaggedQuad load(int first, int q) const {
    return load_tagged_quad(row_ + 2 * (first + q * Team::kThreads));
  }
  __device__ uint2 weights(int first, int q) const {
    return load_kept(reinterpret_cast<const uint2*>(weight_) + warp_quad(first, q) +
                     W::team().lane);
  }
  __device__ void ask_row(int first) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (!warp_has(first, q)) {
        break;
      }
      if (has(first, q)) {
        asked_[q] = load(first, q);
      }
    }
  }
  /// What was asked for before it was written is asked for again, all of it at once: one by one,
  /// each would cost a trip of its own.
  __device__ void await(int first) {
    while (true) {
      uint32_t missing = 0;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (!warp_has(first, q)) {
          break;
        }
        missing |= has(first, q) && !asked_[q].has(tag_) ? 1u << q : 0u;
      }
      if (missing == 0 || late_()) {
        return;
      }
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (!warp_has(first, q)) {
          break;
        }
        if ((missing >> q & 1) != 0) {
          asked_[q] = load(first, q);
        }
      }
    }
  }

  static constexpr bool kSharedRow = W::kExperts && W::kLatents;  // others would pay for the code
  __device__ bool has_shared_row() const {
    return kSharedRow && product().form == RowForm::slots && product().shared.elements > 0;
  }
  __device__ bool normed_before() const { return product().form == RowForm::rms_normed; }
  /// Whether what bounds the slots is known, and with it their power of two. A weight is at most 1
  /// but where a model scales them.
  __device__ bool slots_in_f16() const {
    return W::kMx && !W::kLatents && product().form == RowForm::slots && product().limit > 0;
  }

  /// Where a quad of the row of slots is: they lie one after the other, each from a slice on.
  struct SlotQuad {
    int slot;
    int quad;  ///< of the slot

    /// To the quad that this thread has next.
    __device__ __forceinline__ void advance(const SlotQuad& step, int each) {
      slot += step.slot;
      quad += step.quad;
      const bool beyond = quad >= each;
      slot += beyond ? 1 : 0;
      quad -= beyond ? each : 0;
    }
  };
  /// Asks for what is not there yet of this thread's part of the row of the expert that every token
  /// has; whether all of it is.
  __device__ __forceinline__ bool ask_shared_row() {
    static_assert(4 * kQuads * Team::kThreads >= kMostSharedRow || !kSharedRow);
    const Tagged* from = at<const Tagged>(worker_, product().shared_row) + 2 * W::team().thread;
    const uint32_t tag = worker_.tag(product().shared.source);
    const int elements = product().shared_row != kNowhere ? product().shared.elements : 0;
    bool there = true;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int quad = W::team().thread + q * Team::kThreads;
      if (4 * quad < elements && !asked_[q].has(tag)) {
        asked_[q] = load_tagged_quad(from + 2 * q * Team::kThreads);
        there = there && asked_[q].has(tag);
      }
    }
    return there;
  }
  /// Leaves it from a quad of the product's row on, zeros up to whole slices.
  __device__ __forceinline__ void take_shared_row(char* row, int first) {
    while (!ask_shared_row() && !late_()) {
    }
    const int end = slices_of(product().shared.elements) * (kSliceK / 4);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int quad = W::team().thread + q * Team::kThreads;
      if (quad < end) {
        store_row_quad<1>(row, 0, first + quad, asked_[q].values());
      }
    }
  }
  /// This thread's part of the row of slots, each times its weight: quads are dealt to the threads
  /// in turn, zeros between slots among them. kF16: as MXFP4 takes them.
  template <bool kF16>
  __device__ __forceinline__ void weigh_slots(char* row) {
    const bool shared = product().draw == DrawOf::shared;
    const int slots = product().slots;
    const int elements = product().slot_elements;
    const int half = quotient(elements, 2);                // pairs of a slot
    const int each = slices_of(elements) * (kSliceK / 4);  // quads of a slot in the row
    const auto split = [&](int quads) {
      const int slot = small_quotient(quads, each);
      return SlotQuad{slot, quads - slot * each};
    };
    const SlotQuad step = split(Team::kThreads);
    SlotQuad next = split(W::team().thread);
    const int all = slots * each;
    int end = row_slices(product().k, product().fold) * (kSliceK / 4);
    if (has_shared_row()) {
      take_shared_row(row, all);
      end = all;
    }
    const Tagged* from = row_ - 2 * W::team().thread + product().first_slot * half;
    const auto there_is = [&](const SlotQuad& at) {
      return at.slot < slots && 4 * at.quad < elements;
    };
    const uint32_t exponent = kF16 ? mx_clamped_exponent(product().limit) : 0;
    constexpr int kAtOnce = 12;  // quads of a thread that are on their way
#pragma unroll 1
    for (int first = 0; first < end; first += kAtOnce * Team::kThreads) {
      TaggedQuad quads[kAtOnce] = {};
      bool there;
      do {  // all that is not there yet at once
        there = true;
        SlotQuad at = next;
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) {
          if (first + q * Team::kThreads >= all) {
            break;
          }
          if (there_is(at) && !quads[q].has(tag_)) {
            quads[q] = load_tagged_quad(from + at.slot * half + 2 * at.quad);
            there = there && quads[q].has(tag_);
          }
          at.advance(step, each);
        }
      } while (!there && !late_());
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        if (first + q * Team::kThreads >= end) {
          break;
        }
        float4 x = {};  // between slots, and after them
        if (there_is(next)) {
          const float weight = shared ? worker_.drawn().shared_weight
                                      : worker_.drawn().weight[product().first_slot + next.slot];
          x = quads[q].values();
          x = {weight * x.x, weight * x.y, weight * x.z, weight * x.w};
        }
        const int quad = first + q * Team::kThreads + W::team().thread;
        if (quad < end) {
          if constexpr (kF16) {
            store_mx_quad<1>(row, 0, quad, x, exponent);
          } else {
            store_row_quad<1>(row, 0, quad, x);
          }
        }
        next.advance(step, each);
      }
    }
    if constexpr (kF16) {
      const int slices = slices_of(product().k);
      if (end > slices * (kSliceK / 4)) {  // the zeros after them lie where the units do
        W::team().sync();
      }
      if (W::team().thread < slices) {
        mx_row_units<1>(row, slices)[W::team().thread] = mx_row_unit(exponent);
      }
    }
  }

  // Copies: read from the code they would be loaded again after every look at memory.
  const Tagged* row_;  // from this thread's first quad on
  const uint32_t tag_;
  const int quads_;  // from there to the row's end
  const __nv_bfloat16* weight_;
  float squares_ = 0;
  TaggedQuad asked_[kQuads] = {};
  uint2 weights_[kWeightQuads] = {};
};

/// The rows of several sequences, likewise: a slice of four rows at a time, the next ones on their
/// way; or rows that are operands already, which are copied to shared memory as they are. Of heads'
/// rows those of one head follow another's. Short code, on purpose: a step's should stay in the
/// instruction cache.
template <class W>
class RowsSource : public ProductRows<W> {
 public:
  static constexpr bool kRowFirst = true;    // many rows on their way want the registers
  static constexpr bool kOfExperts = false;  // units are of one expert each

  __device__ RowsSource(const W& worker, const Code& code) : ProductRows<W>(worker, code) {}

  __device__ bool streams() const { return product().streamed != 0; }
  /// In f16: what turns it looks at all rows.
  __device__ bool made() const { return W::kMx && row_is_there() && noted().f16; }
  __device__ int sequences() const { return worker_.sequences(); }
  /// Of rows between experts' products in MXFP4: what bounds them is known. After a barrier, all
  /// see it.
  __device__ void state_unit(uint32_t* units) const {
    if (W::team().thread < W::kBatch) {
      units[W::team().thread] = mx_row_unit(mx_clamped_exponent(product().limit));
    }
  }

  __device__ void ask(char* row, const SliceRuns& runs, int slices) {
    row_ = row;
    if (row_is_there()) {
      return;
    }
    if (streams()) {
      begin_block(0, runs, slices);
    } else if (W::team().warp < this->slices() && !layer_normed()) {
      if (operands()) {
        copy(W::team().warp, slice_at(W::team().warp));
      } else {
        ask_for(W::team().warp, 0);
      }
    }
  }
  /// Of a row that streams: asks for the first slice of the warp's run.
  __device__ void begin_block(int first_unit, const SliceRuns& runs, int slices) {
    const int warp = W::team().warp;
    if (runs.count(warp) > 0) {
      if constexpr (W::kExperts) {
        unit_ = first_unit + small_quotient(runs.first(warp), slices);
      }
      copy(runs.first(warp) % slices, own_place(0));
    }
  }
  __device__ void make(char*) {
    if (streams()) {
      return;
    }
    if (row_is_there()) {
      this->look_at_prior();
      worker_.stamp(1);
      return;
    }
    if (layer_normed()) {
#pragma unroll 1
      for (int sequence = 0; sequence < worker_.sequences(); ++sequence) {
        layer_norm(worker_, code_, sequence, row_);
      }
      this->look_at_prior();
      worker_.stamp(1);
      return;
    }
    const int slices = this->slices();
#pragma unroll 1
    for (int slice = W::team().warp; slice < slices; slice += Team::kWarps) {
      const int next = slice + Team::kWarps < slices ? slice + Team::kWarps : -1;
      if (operands()) {
        if (next >= 0) {
          copy(next, slice_at(next));
        }
      } else {
#pragma unroll 1
        for (int first = 0; first < worker_.sequences(); first += kAtOnce) {
          const bool more = first + kAtOnce < worker_.sequences();
          bring(slice, first, slice_at(slice), more ? slice : next, more ? first + kAtOnce : 0);
        }
      }
    }
    if (operands()) {
      await_copies<0>();
    }
    this->look_at_prior();
    worker_.stamp(1);
  }
  __device__ void publish() {
    const bool there = row_is_there();  // and its squares
    if (!there || W::kMx) {
      note_row();
    }
    if (normed() && !there) {
#pragma unroll
      for (int s = 0; s < W::kBatch; ++s) {
        const float squares = warp_sum(squares_[s]);
        if (W::team().lane == 0) {
          W::shared().squares[s][W::team().warp] = squares;
        }
      }
    }
  }
  __device__ float factor(int sequence) const {
    static_assert(Team::kWarps == 8);
    const auto* of_warps = reinterpret_cast<const float4*>(W::shared().squares[sequence]);
    const float4 a = of_warps[0];
    const float4 b = of_warps[1];
    return norm_factor(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)), product().k,
                       product().epsilon);
  }
  __device__ void take(int i, int next) {
    if (next >= 0) {
      __syncwarp();  // all have multiplied what was there
      if constexpr (W::kExperts) {
        unit_ += next == 0 ? 1 : 0;
      }
      copy(next, own_place(i + 1));
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncwarp();
  }
  __device__ uint32_t place(int i) const { return smem_address(own_place(i)); }

 private:
  using ProductRows<W>::code_;
  using ProductRows<W>::late_;
  using ProductRows<W>::offset;
  using ProductRows<W>::product;
  using ProductRows<W>::worker_;

  static constexpr int kAtOnce = 4;                   // rows
  static constexpr int kRowQuads = kSliceK / 4 / 32;  // quads of a slice of the row, of a lane
  __device__ static int row_element(int slice, int quad) {
    return slice * kSliceK + 4 * (W::team().lane + 32 * quad);
  }
  __device__ bool of_heads() const { return W::kLatents && product().form == RowForm::heads; }
  /// Of all rows that a sequence has.
  __device__ int slices() const {
    const int of_row = slices_of(product().k);
    return of_heads() ? ProductHeads(product()).count * of_row : of_row;
  }
  __device__ char* slice_at(int slice) const { return row_ + slice * row_slice_bytes(W::kBatch); }
  /// Of a warp that takes its slices in turn.
  __device__ char* own_place(int i) const {
    return row_ +
           (W::team().warp * kStreamedSlices + i % kStreamedSlices) * row_slice_bytes(W::kBatch);
  }
  __device__ static const NormedRow& noted() { return W::shared().normed_row[W::team().warp]; }
  __device__ bool in_f16() const { return W::kMx && form_of(code_) == StreamForm::mx; }
  /// Whether the normed row is in its place since another code (Shared::normed_row), or what it is
  /// turned to f16 from.
  __device__ bool row_is_there() const {
    if constexpr (W::kExperts) {
      const NormedRow& last = noted();
      return normed() && last.row == product().row && last.norm == product().norm_weight &&
             last.tag == worker_.tag(product().source) && (in_f16() || !last.f16);
    }
    return false;
  }
  __device__ void note_row() const {
    if constexpr (W::kExperts) {
      __syncwarp();  // all have looked at the last one
      if (W::team().lane == 0) {
        W::shared().normed_row[W::team().warp] =
            normed() ? NormedRow{product().row, product().norm_weight,
                                 worker_.tag(product().source), in_f16()}
                     : NormedRow{};
      }
      __syncwarp();
    }
  }
  __device__ bool operands() const { return product().source == kOperands; }
  __device__ bool normed() const { return product().form == RowForm::rms_norm; }
  __device__ bool layer_normed() const {
    return W::kGeneral && product().form == RowForm::layer_norm;
  }
  /// Of what sequences have between an expert's products, where they have drawn it: a slice of k,
  /// zeros for the others.
  __device__ __forceinline__ void copy_drawn(int slice, char* to) const
      requires(W::kExperts&& W::kBatch > 1) {
    static_assert(kRowGroupBytes<W::kBatch> == 32 * 16);  // a lane has one column of B
    const int lane = W::team().lane;
    const auto& drawn = worker_.drawn();
    const int expert = unit_ - small_quotient(unit_, drawn.count) * drawn.count;
    const int column = lane / (kColumnBytes / 16);
    const int slot = drawn.slot[expert][column / row_parts(W::kBatch)];
    const int elements = product().slot_elements;
    const int of_group = lane % (kColumnBytes / 16) * 8;
    const char* rows = at<const char>(worker_, product().row);
#pragma unroll
    for (int group = 0; group < kSliceGroups; ++group) {
      const int k = slice * kSliceK + group * kGroupK + of_group;
      const bool there = slot >= 0 && k < elements;
      const int element = there ? slot * elements + k : 0;
      const char* from = rows + element / kGroupK * kRowGroupBytes<W::kBatch> +
                         column * kColumnBytes + element % kGroupK * 2;
      copy_async_16(to + group * kRowGroupBytes<W::kBatch> + lane * 16, from, there);
    }
    commit_copies();
  }
  /// A slice of operands, as a group of copies. Of heads' rows that come in parts: of the unit's.
  __device__ __forceinline__ void copy(int slice, char* to) const {
    if constexpr (W::kExperts && W::kBatch > 1) {
      if (product().draw == DrawOf::experts) {
        copy_drawn(slice, to);
        return;
      }
    }
    constexpr int kBytes = 16;
    const char* from = at<const char>(worker_, product().row) + slice * row_slice_bytes(W::kBatch);
    if constexpr (W::kLatents) {
      if (of_heads()) {
        static_assert(kLatentRank % kSliceK == 0);
        constexpr int kSlices = kLatentRank / kSliceK;
        const int before = streams() ? this->head_slices(unit_, kSlices) : 0;
        from += (ProductHeads(product()).first * kSlices + before) * row_slice_bytes(W::kBatch);
        slice = 0;  // all of its elements are there
      }
    }
#pragma unroll
    for (int i = 0; i < row_slice_bytes(W::kBatch) / kBytes / 32; ++i) {
      const int offset = (W::team().lane + 32 * i) * kBytes;
      const int element = slice * kSliceK + offset / kRowGroupBytes<W::kBatch> * kGroupK +
                          offset % kColumnBytes / 2;
      copy_async_16(to + offset, from + offset, element < product().k);
    }
    commit_copies();
  }
  /// The head that a slice is of, among those that the product has.
  __device__ int head_of(int slice) const {
    return of_heads() ? small_quotient(slice, slices_of(product().k)) : 0;
  }
  __device__ bool there(int slice, int quad, int sequence) const {
    const int of_row = slice - head_of(slice) * slices_of(product().k);
    return row_element(of_row, quad) < product().k && sequence < worker_.sequences();
  }
  __device__ const Tagged* from(int slice, int quad, int sequence) const {
    if (of_heads()) {
      const int head = head_of(slice);
      const int pitch = product().head_pitch;
      return row_at(worker_, product().row, sequence, worker_.launch().shape.query_heads * pitch) +
             head * (pitch / 2) + row_element(slice - head * slices_of(product().k), quad) / 2;
    }
    return row_at(worker_, product().row, sequence, product().k) + row_element(slice, quad) / 2;
  }
  /// Asks for a slice of the rows of sequences first .. first + 3 that there are.
  __device__ __forceinline__ void ask_for(int slice, int first) {
#pragma unroll
    for (int q = 0; q < kRowQuads; ++q) {
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        asked_[s][q] = {};
        if (there(slice, q, first + s)) {
          asked_[s][q] = load_tagged_quad(from(slice, q, first + s));
        }
      }
      weights_[q] = {};
      if (normed() && there(slice, q, first)) {
        weights_[q] = load_kept(reinterpret_cast<const uint2*>(
            at<const __nv_bfloat16>(worker_, product().norm_weight) + row_element(slice, q)));
      }
    }
  }
  /// Waits for what was asked for and stores it; adds to the rows' squares. Asks for the next,
  /// unless its slice is -1.
  __device__ __forceinline__ void bring(int slice, int first, char* to, int next_slice,
                                        int next_first) {
    const uint32_t tag = worker_.tag(product().source);
    TaggedQuad rows[kAtOnce][kRowQuads];
    float4 weights[kRowQuads];
#pragma unroll
    for (int q = 0; q < kRowQuads; ++q) {
      weights[q] = normed() ? offset(widen4(weights_[q])) : float4{1, 1, 1, 1};
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        rows[s][q] = asked_[s][q];
      }
    }
    // The same elements of all rows come together: while the first row's are not there nobody looks
    // for the others', which are then asked for again all at once.
    for (bool all = false; !all && !late_();) {
      all = true;
      bool first_there = true;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
#pragma unroll
        for (int q = 0; q < kRowQuads; ++q) {
          const bool missing = there(slice, q, first + s) && !rows[s][q].has(tag);
          all = all && !missing;
          if (missing && (s == 0 || first_there)) {
            rows[s][q] = load_tagged_quad(from(slice, q, first + s));
          }
          first_there = first_there && (s > 0 || !missing);
        }
      }
    }
    if (next_slice >= 0) {
      ask_for(next_slice, next_first);
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
#pragma unroll
      for (int q = 0; q < kRowQuads; ++q) {
        const float4 x = rows[s][q].values();  // zeros where there is nothing
#pragma unroll
        for (int base = 0; base < W::kBatch; base += kAtOnce) {
          squares_[base + s] += first == base ? squares_of(x) : 0;
        }
        store_row_quad<W::kBatch>(
            to, first + s, W::team().lane + 32 * q,
            {x.x * weights[q].x, x.y * weights[q].y, x.z * weights[q].z, x.w * weights[q].w});
      }
    }
  }

  char* row_ = nullptr;
  int unit_ = 0;  // that the slice that was asked for last is of
  float squares_[W::kBatch] = {};
  TaggedQuad asked_[kAtOnce][kRowQuads] = {};
  uint2 weights_[kRowQuads] = {};
};

/// Of a row that has just been made whole.
template <class W, class Source>
__device__ __forceinline__ void turn_if_mx(const W& worker, const Code& code,
                                           const Source& source) {
  if (W::kMx && form_of(code) == StreamForm::mx) {
    worker.team().sync();
    turn_rows_to_f16<W::kBatch>(worker.team(), worker.scratch(), slices_of(code.product.k),
                                source.sequences());
  }
}

/// While the logits are on their way to the draw: makes the row of the product after it. By the
/// team; what others see of it they see after a barrier.
template <class W>
__device__ __forceinline__ void make_row_ahead(W& worker, NextRow next_row) {
  __syncwarp();  // one lane has written which code this is
  const int next = worker.shared().code[W::team().warp] + 1;
  const int slot = next & (kCodeSlots - 1);
  worker.await_code(slot, static_cast<uint32_t>(next) / kCodeSlots & 1);
  const Code& code = worker.shared().codes[slot];
  if constexpr (W::kBatch == 1) {
    RowSource<W, 2> source(worker, code);  // short code
    if (!W::kMx || next_row == NextRow::made) {
      source.ask_plain();
      source.make_plain(worker.scratch());
    }
    turn_if_mx(worker, code, source);
  } else if (code.opcode == Opcode::gated_linear && code.product.form == RowForm::rms_norm) {
    RowsSource<W> source(worker, code);
    source.ask(worker.scratch(), SliceRuns(0), 0);
    source.make(worker.scratch());
    turn_if_mx(worker, code, source);
    source.publish();
  }
}

template <class W>
using Source = std::conditional_t<W::kBatch == 1, RowSource<W>, RowsSource<W>>;

}  // namespace weft::hopper
