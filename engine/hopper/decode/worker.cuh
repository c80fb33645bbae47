// A worker of the resident kernel as its parts see it: where things are, which step it is, and the
// waits that all parts have in common.
#pragma once

#include <type_traits>

#include "engine/hopper/decode/shared.cuh"

namespace weft::hopper {

/// What can be said anew is not kept: registers are scarce. kTracing: stamps the clock into the
/// launch's trace. A kernel of its own: what nobody wants would cost registers and instructions at
/// every wait. kMost: batch_of(the launch's sequences). kAny: for a program of any layers, see
/// ModelShape::general; what few models need is not in others' way. kMixes: ModelShape::experts.
/// kOverLatents: Launch::latents.
template <bool kTracing, int kMost, bool kAny, bool kMixes, bool kOverLatents>
class Worker {
 public:
  static constexpr bool kTraced = kTracing;
  static constexpr int kBatch = kMost;
  static constexpr bool kGeneral = kAny;
  static constexpr bool kExperts = kMixes;
  static constexpr bool kLatents = kOverLatents;
  /// MXFP4 is among the forms.
  static constexpr bool kMx = kGeneral && kExperts && (kBatch == 1 || !kLatents);
  using Pages = std::conditional_t<kGeneral || kExperts, AnyCodePages, CodePages>;

  /// For one code of a step.
  __device__ Worker(const Launch& launch, uint32_t step_tag)
      : launch_(launch), step_tag_(step_tag) {}
  /// For all, by all threads.
  __device__ explicit Worker(const Launch& launch);

  __device__ const Launch& launch() const { return launch_; }
  __device__ static Shared<kBatch>& shared() { return *reinterpret_cast<Shared<kBatch>*>(memory); }
  __device__ Layout<kBatch> layout() const { return Layout<kBatch>(launch_); }
  __device__ PageRing ring() const {
    return {memory + layout().pages, shared().full, shared().empty, launch_.pages,
            launch_.page_bytes};
  }
  /// Where rows of products, attention and sampling work.
  __device__ char* scratch() const { return memory + layout().scratch; }
  __device__ static Team team() {
    const int thread = made_here(static_cast<int>(threadIdx.x));
    return {thread, thread >> 5, thread & 31, shared().scratch};
  }
  __device__ static int index() { return static_cast<int>(blockIdx.x); }
  /// Where kExperts.
  __device__ Drawn<kBatch>& drawn() const {
    return *reinterpret_cast<Drawn<kBatch>*>(memory + layout().drawn);
  }

  /// Cosines and sines of a sequence's position.
  __device__ float2* angles(int rope, int sequence) const {
    return reinterpret_cast<float2*>(memory + layout().angles) +
           (rope * kBatch + sequence) * launch_.shape.rope_half;
  }

  // Codes.
  /// Of a code in shared memory, read here and now.
  __device__ static CodeHead head_of(const Code& code) {
    const uint4 bits = load_shared_bits(smem_address(&code));
    CodeHead head;
    static_assert(sizeof(head) == sizeof(bits));
    memcpy(&head, &bits, sizeof(head));
    return head;
  }
  __device__ const Code& in_memory(int i) const {
    return launch_.codes[launch_.code_begin[index()] + static_cast<uint32_t>(i)];
  }
  __device__ Pages& code_pages(int i) const {
    return reinterpret_cast<Pages*>(memory + layout().code_pages)[i];
  }

  // Steps and sequences.
  /// The step that the warp is in.
  __device__ static int step() { return *static_cast<volatile int*>(&shared().step[team().warp]); }
  __device__ void begin_step() {
    step_tag_ = launch_.first_tag + static_cast<uint32_t>(step()) * launch_.versions;
  }
  /// The tag of a version in this step.
  __device__ uint32_t tag(Version version) const {
    return step_tag_ + static_cast<uint32_t>(version);
  }
  /// Whether a step's next tokens are forced, not drawn.
  __device__ bool forced(int step) const { return step < launch_.forced_steps; }
  __device__ int sequences() const { return kBatch == 1 ? 1 : launch_.shape.sequences; }
  __device__ int position_at(int step, int sequence) const {
    const int position = launch_.position[sequence] + step;
    return kBatch == 1 ? position : min(max(position, 0), launch_.shape.capacity - 1);
  }
  __device__ int position_of(int sequence) const { return position_at(step(), sequence); }
  /// Whether a sequence has no experts: nobody takes anything of one that had ended before.
  __device__ bool draws_nothing(int sequence) const { return (launch_.ended >> sequence & 1) != 0; }
  /// The tokens of a sequence, by position.
  __device__ int32_t* tokens_of(int sequence) const {
    return launch_.tokens + sequence * (static_cast<int64_t>(launch_.shape.capacity) + 1);
  }

  // Waits. Each gives up in time.
  /// The team has left, or somebody has waited too long.
  __device__ bool team_ended() const {
    return *static_cast<volatile uint32_t*>(&shared().team_ended) != 0;
  }
  __device__ bool gave_up() const {
    return *static_cast<volatile uint32_t*>(&shared().gave_up) != 0;
  }
  /// Asked after each look that found nothing; true when it is time to give up.
  class Late {
   public:
    __device__ Late(const Worker& worker, const Code* code, int event)
        : worker_(worker), code_(code), event_(event) {}
    __device__ bool operator()() {
      return ++looks_ % 64 == 0 &&
             is_late(looks_, code_ != nullptr ? code_->operation : -1, event_, worker_.step_tag_);
    }

   private:
    const Worker& worker_;
    const Code* code_;
    const int event_;  // -1: waits for data
    uint32_t looks_ = 0;
  };
  __device__ Late late() const { return {*this, nullptr, -1}; }
  __device__ Late late(const Code& code) const { return {*this, &code, -1}; }
  __device__ void await_code(int slot, uint32_t phase) {
    Late late = this->late();
    while (!shared().code_there[slot].try_wait(phase) && !late()) {
    }
  }
  /// By the team: the code's events.
  __device__ void wait(const Code& code);
  /// By the team, after its stores: the code's events.
  __device__ void signal(const Code& code);

  __device__ void stamp(int what) const {
    if (kTraced && team().thread == 0) {
      const int code = shared().code[0] % shared().code_count;
      launch_.trace[(static_cast<int64_t>(index()) * launch_.trace_codes + code) * 4 + what] =
          clock64();
    }
  }

 private:
  static constexpr uint32_t kMostLooks = 1u << 22;  // of about half a microsecond

  /// The rest of Late, which nobody should have to step over: a function of its own.
  __device__ static bool is_late(uint32_t looks, int operation, int event, uint32_t tag);
  /// By one thread: waits for an event.
  __device__ void poll(const Code* code, int event, uint32_t wanted);
  __device__ uint32_t signals(int event) const {
    return reinterpret_cast<const uint16_t*>(memory + layout().signals)[event];
  }

  const Launch& launch_;
  uint32_t step_tag_ = 0;
};

template <class T, class W>
__device__ T* at(const W& worker, Place place) {
  return reinterpret_cast<T*>(worker.launch().arena + place);
}
/// A sequence's row of a tagged buffer with rows of `columns`.
template <class W>
__device__ Tagged* row_at(const W& worker, Place place, int sequence, int columns) {
  return at<Tagged>(worker, place) + static_cast<int64_t>(sequence) * (columns / 2);
}
/// Where four elements' slice begins in rows that are operands.
template <class W>
__device__ char* operand_slice(const W& worker, Place rows, int element) {
  return at<char>(worker, rows) + element / kSliceK * row_slice_bytes(W::kBatch);
}

/// Whether a product is of experts that several sequences have drawn.
template <class W>
__device__ __forceinline__ bool of_union(const Code& code) {
  if constexpr (W::kExperts && W::kBatch > 1) {
    return code.product.draw == DrawOf::experts;
  }
  return false;
}
/// The units of a product that are this worker's, which with several sequences depends on what
/// these have drawn: known after the draw.
struct UnitShare {
  int first;  ///< of all units, where the product is flat
  int count;
};
template <class W>
__device__ __forceinline__ UnitShare share_of(const W& worker, const Code& code) {
  const int units = code.units;
  if constexpr (W::kExperts && W::kBatch > 1) {
    const ProductCode& product = code.product;
    if (of_union<W>(code)) {
      const int drawn = *static_cast<const volatile int32_t*>(&worker.drawn().count);
      if (product.flat == 0) {
        return {0, units * drawn};
      }
      const int before = product.first / (kUnitColumns / 2);
      const int first = small_quotient(before * drawn, product.slots);
      return {first, small_quotient((before + units) * drawn, product.slots) - first};
    }
  }
  return {0, units};
}

template <class W>
__device__ typename W::Pages pages_of(const Code& code) {
  if constexpr (W::kExperts) {
    if (code.opcode == Opcode::route && code.route.draw == DrawOf::experts) {
      return {0, 0, 0, AnyCodePages::kDraws};
    }
  }
  if (code.units == 0) {
    return {};
  }
  const ProductCode& product = code.product;
  if constexpr (W::kExperts) {
    if (product.draw == DrawOf::experts) {
      return {product.stream, static_cast<uint32_t>(product_slices(product.k, code.units, 0)), 0,
              AnyCodePages::kDraws};
    }
  }
  return {product.stream,
          static_cast<uint32_t>(product_slices(product.k, code.units, product.fold)),
          static_cast<uint32_t>(code.head != 0 ? 1 : 0),
          W::kGeneral || W::kExperts
              ? product.weights
              : static_cast<uint32_t>(form_of(code) != StreamForm::plain ? 1 : 0)};
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__device__ Worker<kTraced, kBatch, kGeneral, kExperts, kLatents>::Worker(const Launch& launch)
    : launch_(launch) {
  const int count =
      static_cast<int>(launch.code_begin[blockIdx.x + 1] - launch.code_begin[blockIdx.x]);
  if (threadIdx.x == 0) {
    shared().reports = shared().embeds = 0;
    shared().codes_before_head = count;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const Code& code = in_memory(i);
    if (code.opcode == Opcode::sample) {
      shared().reports = 1;
    }
    if (code.units > 0 && code.head != 0) {
      shared().codes_before_head = i;
    }
    if (code.opcode == Opcode::embed) {
      shared().embeds = 1;
    }
    code_pages(i) = pages_of<Worker>(code);
  }
  auto* signals = reinterpret_cast<uint16_t*>(memory + layout().signals);
  for (uint32_t i = threadIdx.x; i < launch.events; i += kThreads) {
    signals[i] = static_cast<uint16_t>(launch.event_signals[i]);
  }
  const auto* words = reinterpret_cast<const uint32_t*>(&launch);
  for (uint32_t i = threadIdx.x; i < sizeof(Launch) / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(&shared().launch)[i] = words[i];
  }
  if (threadIdx.x < Team::kWarps) {
    shared().products[threadIdx.x] = {};
    shared().code[threadIdx.x] = shared().step[threadIdx.x] = 0;
    shared().normed_row[threadIdx.x] = {};
  }
  if (threadIdx.x < kLoaders) {
    shared().put[threadIdx.x] = 0;
  }
  if (threadIdx.x < kBatch) {
    shared().sequence_ended[threadIdx.x] = launch.ended >> threadIdx.x & 1;
  }
  if (threadIdx.x == 0) {
    shared().code_count = count;
    shared().gave_up = shared().team_ended = shared().stop_requests = 0;
    shared().best_there.init(static_cast<uint32_t>(sequences()));
    shared().token_there.init(static_cast<uint32_t>(sequences()));
    shared().token_reported.init(1);
    for (int i = 0; i < kCodeSlots; ++i) {
      shared().code_there[i].init(1);
      shared().code_done[i].init(Team::kWarps);
    }
    if constexpr (kExperts) {
      if constexpr (kBatch == 1) {
        drawn().known.init(DrawnExperts::kArrivals);
      } else {
        drawn().draws = 0;
      }
    }
    ring().init(page_readers(kGeneral));
  }
  __syncthreads();
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__device__ __noinline__ bool Worker<kTraced, kBatch, kGeneral, kExperts, kLatents>::is_late(
    uint32_t looks, int operation, int event, uint32_t tag) {
  volatile uint32_t& gave_up = shared().gave_up;
  if (gave_up != 0 || looks % 1024 != 0) {
    return gave_up != 0;
  }
  Failure* failure = shared().launch.failure;
  if (looks >= kMostLooks && atomicCAS(&failure->happened, 0u, 1u) == 0) {
    failure->worker = index();
    failure->operation = operation;
    failure->event = event;
    failure->tag = tag;
  }
  if (load_acquire(&failure->happened) != 0) {
    gave_up = 1;
  }
  return gave_up != 0;
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__device__ void Worker<kTraced, kBatch, kGeneral, kExperts, kLatents>::poll(const Code* code,
                                                                            int event,
                                                                            uint32_t wanted) {
  const uint32_t* counter = launch_.counters + static_cast<int64_t>(event) * kCounterStride;
  Late late(*this, code, event);
  while (load_acquire(counter) < wanted && !late()) {
  }
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__device__ void Worker<kTraced, kBatch, kGeneral, kExperts, kLatents>::wait(const Code& code) {
  if (team().warp == 0 && team().lane < code.waits) {
    const uint16_t wait = code.wait[team().lane];
    const int event = wait & ~kPreviousStep;
    const uint32_t steps = static_cast<uint32_t>(step()) + ((wait & kPreviousStep) != 0 ? 0 : 1);
    poll(&code, event, steps * signals(event));
  }
  team().sync();
}

template <bool kTraced, int kBatch, bool kGeneral, bool kExperts, bool kLatents>
__device__ void Worker<kTraced, kBatch, kGeneral, kExperts, kLatents>::signal(const Code& code) {
  team().sync();
  if (team().thread < code.signals) {
    add_release(
        launch_.counters + static_cast<int64_t>(code.signal[team().thread]) * kCounterStride, 1);
  }
}

}  // namespace weft::hopper
