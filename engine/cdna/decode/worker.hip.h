// A worker of the resident kernel as its parts see it: its LDS, the words that workers exchange,
// and the waits that all parts have in common.
#pragma once

#include "arch/cdna/bf16_pair.hip.h"
#include "arch/cdna/reduce.hip.h"
#include "engine/cdna/decode.h"

namespace weft::cdna {

using resident::Code;
using resident::kNowhere;
using resident::kOperands;
using resident::kPlain;
using resident::ModelShape;
using resident::Opcode;
using resident::Place;
using resident::Version;

/// Pointers to memory, and to memory that nobody writes while the kernel runs.
template <class T>
using Global = __attribute__((address_space(1))) T*;
template <class T>
using Constant = const __attribute__((address_space(4))) T*;
template <class T>
WEFT_GPU Constant<T> constant(const T* pointer) {
  return (Constant<T>)(reinterpret_cast<uintptr_t>(pointer));
}
using CodeRef = const __attribute__((address_space(4))) Code&;

/// Whose weights the kernel takes, see kernel_of().
#if defined(WEFT_FP8)
inline constexpr KernelWeights kWeights = KernelWeights::fp8;
#elif defined(WEFT_F16)
inline constexpr KernelWeights kWeights = KernelWeights::f16;
#elif defined(WEFT_MX)
inline constexpr KernelWeights kWeights = KernelWeights::mx;
#else
inline constexpr KernelWeights kWeights = KernelWeights::bf16;
#endif
/// Whether attention is over latent rows.
#if defined(WEFT_LATENTS)
inline constexpr bool kLatents = true;
#else
inline constexpr bool kLatents = false;
#endif
/// Whether the kernel draws experts: see ModelShape::experts.
#if defined(WEFT_EXPERTS) || defined(WEFT_MX) || defined(WEFT_LATENTS)
inline constexpr bool kExperts = true;
#else
inline constexpr bool kExperts = false;
#endif

/// What decides what is to be done. Fields of a byte are taken from words: there are no scalar
/// loads of bytes.
class Head {
 public:
  __device__ __attribute__((always_inline)) explicit Head(CodeRef code)
      : word_{((Constant<uint32_t>)&code)[0], ((Constant<uint32_t>)&code)[1]} {
    using Fields = resident::CodeHead;
    static_assert(
        __builtin_offsetof(Fields, waits) == 1 && __builtin_offsetof(Fields, signals) == 2 &&
        __builtin_offsetof(Fields, head) == 3 && __builtin_offsetof(Fields, units) == 4 &&
        __builtin_offsetof(Fields, ends_step) == 6 && __builtin_offsetof(Fields, segments) == 7);
  }
  __device__ __attribute__((always_inline)) Opcode opcode() const {
    return static_cast<Opcode>(word_[0] & 0xff);
  }
  __device__ __attribute__((always_inline)) int waits() const { return word_[0] >> 8 & 0xff; }
  __device__ __attribute__((always_inline)) int signals() const { return word_[0] >> 16 & 0xff; }
  __device__ __attribute__((always_inline)) bool head() const { return word_[0] >> 24 != 0; }
  __device__ __attribute__((always_inline)) int units() const { return word_[1] & 0xffff; }
  __device__ __attribute__((always_inline)) bool ends_step() const {
    return (word_[1] >> 16 & 0xff) != 0;
  }
  __device__ __attribute__((always_inline)) int segments() const { return word_[1] >> 24; }

 private:
  uint32_t word_[2];
};

/// Likewise of a product.
class ProductHead {
 public:
  using ProductCode = resident::ProductCode;
  __device__ __attribute__((always_inline)) explicit ProductHead(CodeRef code)
      : word_(((Constant<uint32_t>)&code.product)[kAt / 4]),
        weights_(((Constant<uint32_t>)&code.product)[kAt / 4 + 1]) {
    static_assert(kAt % 4 == 0 && __builtin_offsetof(ProductCode, form) == kAt + 1 &&
                  __builtin_offsetof(ProductCode, accumulate) == kAt + 2 &&
                  __builtin_offsetof(ProductCode, streamed) == kAt + 3 &&
                  __builtin_offsetof(ProductCode, weights) == kAt + 4 &&
                  __builtin_offsetof(ProductCode, draw) == kAt + 6 &&
                  __builtin_offsetof(ProductCode, first_slot) == kAt + 7 &&
                  __builtin_offsetof(ProductCode, slots) == kAt + 8);
    if constexpr (kExperts) {
      slots_ = ((Constant<uint32_t>)&code.product)[kAt / 4 + 2];
    }
  }
  __device__ __attribute__((always_inline)) Activation activation() const {
    return static_cast<Activation>(word_ & 0xff);
  }
  __device__ __attribute__((always_inline)) resident::RowForm form() const {
    return static_cast<resident::RowForm>(word_ >> 8 & 0xff);
  }
  __device__ __attribute__((always_inline)) bool accumulate() const {
    return (word_ >> 16 & 0xff) != 0;
  }
  /// Parts of k that rows come in.
  __device__ __attribute__((always_inline)) int parts() const {
    return __builtin_elementwise_max(1, static_cast<int>(word_ >> 24));
  }
  /// What the row is multiplied with on its way to LDS.
  __device__ __attribute__((always_inline)) float row_scale() const {
    if constexpr (kWeights != KernelWeights::fp8 && kWeights != KernelWeights::mx) {
      return 1;
    }
    const WeightForm weights = form_of_weights();
    return weights == WeightForm::fp8 || weights == WeightForm::fp8_blocks ||
                   weights == WeightForm::mx
               ? kFp8RowScale
               : 1;
  }
  __device__ __attribute__((always_inline)) WeightForm form_of_weights() const {
    return static_cast<WeightForm>(weights_ & 0xff);
  }
  // Of a kernel with kExperts.
  __device__ __attribute__((always_inline)) resident::DrawOf draw() const {
    return static_cast<resident::DrawOf>(weights_ >> 16 & 0xff);
  }
  __device__ __attribute__((always_inline)) int first_slot() const { return weights_ >> 24; }
  __device__ __attribute__((always_inline)) int slots() const { return slots_ & 0xff; }

 private:
  static constexpr int kAt = __builtin_offsetof(ProductCode, activation);
  uint32_t word_, weights_, slots_ = 0;
};

/// The same, but what is read through it is read anew: kept from before, it would take registers.
template <class T>
WEFT_GPU Constant<T> made_here(Constant<T> pointer) {
  asm volatile("" : "+s"(pointer));
  return pointer;
}

/// Sequences that the kernel has room for. One with several is a kernel of its own.
#if defined(WEFT_SEVERAL)
inline constexpr int kBatch = resident::kMostSequences;
#else
inline constexpr int kBatch = 1;
#endif
inline constexpr bool kSeveral = kBatch > 1;
inline constexpr int kBlockUnits = block_units(kBatch);
inline constexpr int kBlockSums = block_sums(kBlockUnits);
inline constexpr int kRowElements = most_elements(kTarget, kBatch);

inline constexpr float kInfinity = __builtin_inff();
inline constexpr int kMostHeadDim = 256;

/// Which token, and its logit: the better one is that with the larger logit, of equals the lower.
struct Candidate {
  static constexpr int32_t kNone = resident::Draw::kNoToken;

  float logit = -kInfinity;
  int32_t id = kNone;

  __device__ __attribute__((always_inline)) void offer(float x, int32_t i) {
    if (i != kNone && (x > logit || (x == logit && i < id) || id == kNone)) {
      logit = x == x ? x : -kInfinity;
      id = i;
    }
  }
};

/// What a worker has drawn of a layer's experts: see RouteCode.
struct DrawnExperts {
  int32_t id[kMostChosen];      ///< by slot
  float weight[kMostChosen];    ///< likewise
  float shared_weight;          ///< of the expert that every token has
  int32_t ranked[kMostChosen];  ///< the best one first
  float largest;                ///< logit
};

struct Shared {
  /// The rows of a product, as two bf16 that sum to its elements within 2^-17, see row_part().
  /// Attention works here, too.
  alignas(16) uint32_t row[kRowElements];
  alignas(16) float sums[kBatch][kBlockSums];
  float angles[kBatch][resident::kMostRopes][kMostHeadDim / 2][2];  ///< cosine, sine
  float squares[kBatch][kTeamWaves];                                ///< of rows, by wave
  float partial[2][16];  ///< of reductions over the waves
  float best_logit[kTeamWaves];
  int32_t best_id[kTeamWaves];
  uint32_t stop[kTeamWaves];
  int32_t token[kBatch];   ///< that the step begins with
  uint32_t ended[kBatch];  ///< the sequence draws no more
  uint32_t leave;          ///< all give up
  DrawnExperts drawn;      ///< of a kernel with kExperts
};
static_assert(sizeof(Shared) <= limits_of(kTarget).lds_bytes);
static __shared__ Shared shared;

/// a / b, of a from 0 to 2^20: half of 1 / b is farther than rounding goes.
WEFT_GPU int small_quotient(int a, int b) {
  return static_cast<int>((static_cast<float>(a) + 0.5f) *
                          __builtin_amdgcn_rcpf(static_cast<float>(b)));
}

/// The heads that a product of heads has columns of.
struct ProductHeads {
  int first, count;

  __device__ __attribute__((always_inline)) explicit ProductHeads(CodeRef code) {
    const auto& segment = code.product.segment[0];
    const int begin = code.product.first;
    const int last = begin + static_cast<int>(segment.columns) - 1;
    first = small_quotient(begin, segment.head_columns);
    count = small_quotient(last, segment.head_columns) - first + 1;
  }
};

/// The part of k of which a product's rows are in LDS.
struct RowPart {
  int first;     ///< element of k
  int end;       ///< up to whole slices
  int elements;  ///< of a part that is not the last

  __device__ __attribute__((always_inline)) RowPart(CodeRef code, int part) {
    int slices = slices_of(code.product.k);
    const int parts = ProductHead(code).parts();
    if (kExperts && ProductHead(code).draw() == resident::DrawOf::experts) {
      slices = round_up(slices, kSlotSteps / kSliceK);  // zeros, for the longest slices
    }
    const int each = parts > 1 ? part_slices(slices, parts) : slices;
    first = part * each * kSliceK;
    end = __builtin_elementwise_min((part + 1) * each, slices) * kSliceK;
    elements = each * kSliceK;
  }
  __device__ __attribute__((always_inline)) int slices() const { return (end - first) / kSliceK; }
};
/// The upper (0) or lower (1) parts of a sequence's elements in LDS, `elements` of a part of k.
WEFT_GPU uint16_t* row_part(int sequence, int half, int elements) {
  return reinterpret_cast<uint16_t*>(shared.row) +
         (kSeveral ? (2 * sequence + half) * row_pitch(elements) : half * kRowElements);
}

// Words that workers exchange. A load or store of device scope passes by what an XCD's L2 keeps to
// itself; system scope is for the host alone.
template <class T>
WEFT_GPU T load_shared_word(Global<const T> from) {
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T>
WEFT_GPU void store_shared_word(Global<T> to, T x) {
  __hip_atomic_store(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
/// What this wave has stored is where the others look for it.
WEFT_GPU void await_stores() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }
/// What others had stored before they said so is what is loaded from here on.
WEFT_GPU void acquire() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); }

/// Two values of 24 bits and a tag of 16: the number of the write that made them.
struct Tagged {
  uint64_t bits = 0;

  __device__ __attribute__((always_inline)) uint32_t tag() const {
    return static_cast<uint32_t>(bits >> 48);
  }
  __device__ __attribute__((always_inline)) float first() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 8);
  }
  __device__ __attribute__((always_inline)) float second() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits >> 16) & ~0xffu);
  }
};
using TaggedPlace = Global<uint64_t>;
/// A sequence's row of a tagged buffer with rows of `columns`.
WEFT_GPU TaggedPlace sequence_row(TaggedPlace buffer, int sequence, int columns) {
  return kSeveral ? buffer + static_cast<int64_t>(sequence) * (columns / 2) : buffer;
}

/// x rounded to its upper 24 bits, halves away from zero; a NaN stays one.
WEFT_GPU uint32_t upper24(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = __builtin_elementwise_min((bits & 0x7fffffffu) + 0x80u, 0x7fffffffu);
  return ((bits & 0x80000000u) | magnitude) >> 8;
}
WEFT_GPU void store_tagged(TaggedPlace to, float first, float second, uint32_t tag) {
  const uint64_t low = upper24(first);
  const uint64_t high = upper24(second);
  store_shared_word<uint64_t>(to, low | high << 24 | static_cast<uint64_t>(tag) << 48);
}
WEFT_GPU Tagged load_tagged(TaggedPlace from) {
  return {load_shared_word<uint64_t>((Global<const uint64_t>)from)};
}

WEFT_GPU float exp_fast(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504088896f); }
WEFT_GPU float divide_fast(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }
/// 1 / sqrt(mean of squares + epsilon).
WEFT_GPU float norm_factor(float squares, int columns, float epsilon) {
  return __builtin_amdgcn_rsqf(divide_fast(squares, static_cast<float>(columns)) + epsilon);
}
WEFT_GPU float activate(Activation activation, float x) {
  if (activation == Activation::none) {
    return x;
  }
  // GELU's tanh formula is x / (1 + exp(-y)), too.
  const float y =
      activation == Activation::gelu_tanh ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
  return divide_fast(x, 1.0f + exp_fast(-y));
}
/// c tanh(x / c) of a cap that there is.
WEFT_GPU float cap_softly(float x, float cap) {
  const float e = exp_fast(-2 * __builtin_fabsf(divide_fast(x, cap)));
  return __builtin_copysignf(cap * divide_fast(1 - e, 1 + e), x);
}

/// Rising with the logit, the same for both zeros; NaN is below everything.
WEFT_GPU uint32_t sample_key(float logit) {
  if (!(logit == logit)) {
    return 0;
  }
  const auto bits = __builtin_bit_cast(uint32_t, logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
WEFT_GPU float logit_of(uint32_t key) {
  return __builtin_bit_cast(float, (key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/// x of the lane whose number differs in the bits of `distance`.
template <class T>
WEFT_GPU T across(T x, int distance) {
  static_assert(sizeof(T) == 4);
  return __builtin_bit_cast(
      T, __builtin_amdgcn_ds_bpermute(4 * (lane_index() ^ distance), __builtin_bit_cast(int, x)));
}
inline constexpr int kSwapOnes = 0xb1;  ///< DPP control: of the lane beside
/// Over each `lanes` (8, 16 or 32) lanes beside each other, known to all of them.
WEFT_GPU float row_sum_within(float x, int lanes) {
  constexpr int kSwapPairs = 0x4e;  // DPP controls: of the pair beside, and mirrors
  constexpr int kHalfMirror = 0x141;
  constexpr int kMirror = 0x140;
  x += from_lane<kSwapOnes>(x);
  x += from_lane<kSwapPairs>(x);
  x += from_lane<kHalfMirror>(x);
  if (lanes > 8) {
    x += from_lane<kMirror>(x);
  }
  return lanes > 16 ? x + across(x, 16) : x;
}
/// Whether it is so in some lane.
WEFT_GPU bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }
/// LDS that lanes of this wave wrote may be read by the others.
WEFT_GPU void wave_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront", "local");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront", "local");
}

/// A step of one worker. What a code needs of the launch is read anew from the kernel's arguments:
/// kept from code to code, it would take all registers.
struct Worker {
  Constant<DecodeLaunch> arguments = nullptr;
  int step = 0;

  __device__ __attribute__((always_inline)) Worker made_here() const {
    Worker worker{
        weft::cdna::made_here((Constant<DecodeLaunch>)__builtin_amdgcn_kernarg_segment_ptr()),
        step};
    asm volatile("" : "+s"(worker.step));
    return worker;
  }

  template <class T>
  __device__ __attribute__((always_inline)) Global<T> at(Place place) const {
    return (Global<T>)(reinterpret_cast<uintptr_t>(arguments->arena) +
                       static_cast<uint64_t>(place));
  }
  /// The tag of a version in this step.
  __device__ __attribute__((always_inline)) uint32_t tag(Version version) const {
    return arguments->first_tag + static_cast<uint32_t>(step) * arguments->versions +
           static_cast<uint32_t>(version);
  }
  __device__ __attribute__((always_inline)) int sequences() const {
    return kSeveral ? arguments->shape.sequences : 1;
  }
  /// Of an idle sequence the first or the last there is.
  __device__ __attribute__((always_inline)) int position(int sequence) const {
    const int at = arguments->position[sequence] + step;
    return kSeveral ? __builtin_elementwise_min(__builtin_elementwise_max(at, 0),
                                                arguments->shape.capacity - 1)
                    : at;
  }
  /// The tokens of a sequence, by position.
  __device__ __attribute__((always_inline)) Global<int32_t> tokens(int sequence) const {
    return (Global<int32_t>)reinterpret_cast<uintptr_t>(arguments->tokens) +
           (kSeveral ? static_cast<int64_t>(sequence) * (arguments->shape.capacity + 1) : 0);
  }
  /// Whether a step's next token is forced, not drawn.
  __device__ __attribute__((always_inline)) bool forced(int of_step) const {
    return of_step < arguments->forced_steps;
  }
  /// The host wants all to leave.
  __device__ __attribute__((always_inline)) bool told_to_leave() const {
    const auto from = (Global<const uint32_t>)(reinterpret_cast<uintptr_t>(arguments->give_up) +
                                               static_cast<uintptr_t>(workgroup_index() *
                                                                      resident::kCounterStride) *
                                                   4);
    return load_shared_word<uint32_t>(from) != 0;
  }
  /// Leaves word of what was waited for; `event` -1: data.
  __device__ __attribute__((always_inline)) void report_failure(int operation, int event) const {
    const auto failure =
        (Global<resident::Failure>)(reinterpret_cast<uintptr_t>(arguments->failure)) +
        workgroup_index();
    if (lane_index() == 0) {
      failure->worker = workgroup_index();
      failure->operation = operation;
      failure->event = event;
      failure->tag = tag(0);
      failure->happened = 1;
    }
  }
  /// Looks again and again, by whole waves: `look()` says whether all is there. Gives up when the
  /// host says so.
  template <class Look>
  __device__ __attribute__((always_inline)) void await(int operation, int event,
                                                       const Look& look) const {
    while (any_lane(!look())) {
      if (told_to_leave()) {
        report_failure(operation, event);
        break;
      }
    }
  }
};

/// kCount words that carry a tag, of each lane.
template <int kCount, class PlaceOf>
WEFT_GPU void await_tagged(const Worker& worker, int operation, uint32_t tag,
                           Tagged (&words)[kCount], const PlaceOf& place_of) {
  worker.await(operation, -1, [&] {
    bool there = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      words[i] = load_tagged(place_of(i));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      there = there && words[i].tag() == tag;
    }
    return there;
  });
}

/// The sum over the team, in a fixed order; `slot`: of two that take turns.
WEFT_GPU float team_sum(float x, int slot) {
  barrier();  // all have read what was there before
  return workgroup_reduce<Sum>(x, shared.partial[slot], kTeamWaves);
}

}  // namespace weft::cdna
