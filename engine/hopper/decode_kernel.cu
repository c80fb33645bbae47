// One CTA per SM walks its worker's codes, step after step. Eight warps form the team that
// computes; two threads beside them are loaders: they walk the same codes, know every
// weight byte of the step in order, and keep the ring of pages full. They never wait for an
// activation. Another thread fetches the codes, and one tells other workers of the best logits and
// the host of tokens. What workers tell one another carries tags, so whoever needs it waits for the
// data itself; logits that are sampled and rows of several sequences that come as operands alone
// have events, counters in global memory: a wait polls them with acquire loads, a signal is a
// release addition after the team's stores. Every spin has an end: a worker that waits too long
// writes what it waited for and everybody leaves.
//
// Between two steps stands what workers say of the next token (Draw): each waits for it, of all
// workers or of the one that samples, and takes the best for itself. Before a worker says it, it
// fences what it has written, and after it has read it, what it will read: rows of the KV cache
// have no tags.
#include "engine/hopper/decode_kernel.h"

#include <type_traits>

#include "ops/attention/hopper.cuh"
#include "ops/linear/hopper.cuh"
#include "ops/rmsnorm/hopper.cuh"
#include "ops/sample/hopper.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = Team::kThreads + 128;  // registers are moved between groups of four warps
/// Threads that finish the sums of a sequence.
template <int kBatch>
constexpr int kFinishThreads = Team::kThreads / kBatch;
constexpr int kTeamRegisters = 240;
constexpr int kLoaderRegisters = 24;
constexpr uint32_t kMostLooks = 1u << 22;  // of about half a microsecond
constexpr int32_t kAlign = 128;
constexpr int kMostHalf = 128;  // of the elements of a head
constexpr int kCodeSlots = 4;   // codes in shared memory at once

constexpr int32_t aligned(int32_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// What the loader needs of a code.
struct CodePages {
  uint32_t stream;  ///< see Code, likewise the others
  uint32_t slices : 30;
  uint32_t head : 1;
  uint32_t compressed : 1;
};

/// What lies at the beginning of shared memory, all of fixed size.
template <int kBatch>
struct Shared {
  Code codes[kCodeSlots];
  Barrier code_there[kCodeSlots];
  Barrier code_done[kCodeSlots];
  ProductState products[Team::kWarps];
  int code_count;          ///< in a step
  int code[Team::kWarps];  ///< the one that the warp runs, of all steps
  int step[Team::kWarps];  ///< the one that the warp is in
  int fed[kLoaders];       ///< of a step: the one whose pages a loader brings
  int32_t token[kBatch];   ///< of each sequence, that the step begins with
  uint32_t over[kBatch];   ///< whether the sequence has ended
  Barrier token_there;     ///< all sequences' are
  Barrier token_told;      ///< and the host knows of them
  uint32_t host_wish;      ///< Launch::stop, as last seen by who tells the host
  uint32_t tells;          ///< the worker has a part in sampling, and tells the host of tokens
  int writes;              ///< codes of a step until all is written but logits
  uint32_t embeds;         ///< it looks up a token's embedding
  uint32_t put[kLoaders];  ///< pages that a loader has put into the ring
  alignas(16) float sums[kBlockSums<kBatch>];
  /// Of rows that are normed: one sequence's by thread, several sequences' by warp.
  alignas(16) float squares[kBatch][kBatch == 1 ? Team::kThreads : Team::kWarps];
  float factor;  ///< of one sequence's norm
  float scratch[2 * Team::kWarps];
  Candidate best[Team::kWarps];
  Candidate best_of_all[kBatch];  ///< of the worker's columns, for each sequence
  Barrier best_there;
  float cosines[kBatch][kMostHalf];
  float sines[kBatch][kMostHalf];
  Barrier full[kMostPages];
  Barrier empty[kMostPages];
  uint32_t gave_up;  ///< somebody waited too long, here or elsewhere
  uint32_t leave;    ///< what thread 0 saw of gave_up between two steps: all act on the same
  uint32_t ended;    ///< the team has left: the others follow
  Launch launch;
};

/// What follows, in this order; all of it at places that only depend on the launch.
template <int kBatch>
struct Layout {
  int32_t code_pages, signals, scratch, pages, total;
  __host__ __device__ explicit Layout(const Launch& launch) {
    code_pages = aligned(static_cast<int32_t>(sizeof(Shared<kBatch>)));
    signals = code_pages + aligned(launch.most_codes * static_cast<int32_t>(sizeof(CodePages)));
    scratch = signals + aligned(2 * static_cast<int32_t>(launch.events));
    pages =
        scratch + aligned(max(launch.scratch_bytes, static_cast<int32_t>(sizeof(SampleScratch))));
    total = pages + launch.pages * launch.page_bytes;
  }
};

extern __shared__ __align__(1024) char memory[];

/// A worker's view of the launch. What can be said anew is not kept: registers are scarce.
/// kTraced: stamps the clock into the launch's trace. A kernel of its own: what nobody wants would
/// cost registers and instructions at every wait. kBatch: batch_of(the launch's sequences).
template <bool kTraced, int kBatch>
class Worker {
 public:
  /// For one code of a step.
  __device__ Worker(const Launch& launch, uint32_t step_tag)
      : launch_(launch), step_tag_(step_tag) {}
  /// For all, by all threads.
  __device__ explicit Worker(const Launch& launch) : launch_(launch) {
    const int count =
        static_cast<int>(launch.code_begin[blockIdx.x + 1] - launch.code_begin[blockIdx.x]);
    if (threadIdx.x == 0) {
      shared().tells = shared().embeds = 0;
      shared().writes = count;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const Code& code = in_memory(i);
      if (code.opcode == Opcode::sample) {
        shared().tells = 1;
      }
      if (code.candidates != 0) {
        shared().writes = i;
      }
      if (code.opcode == Opcode::embed) {
        shared().embeds = 1;
      }
      const int slices = code.units > 0 ? product_slices(code.k, code.units, code.fold) : 0;
      code_pages(i) = {code.stream, static_cast<uint32_t>(slices),
                       static_cast<uint32_t>(code.head != 0 ? 1 : 0),
                       static_cast<uint32_t>(code.compressed != 0 ? 1 : 0)};
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
    }
    if (threadIdx.x < kLoaders) {
      shared().put[threadIdx.x] = 0;
    }
    if (threadIdx.x < kBatch) {
      shared().over[threadIdx.x] = launch.ended >> threadIdx.x & 1;
    }
    if (threadIdx.x == 0) {
      shared().code_count = count;
      shared().gave_up = shared().ended = shared().host_wish = 0;
      shared().best_there.init(static_cast<uint32_t>(sequences()));
      shared().token_there.init(static_cast<uint32_t>(sequences()));
      shared().token_told.init(1);
      for (int i = 0; i < kCodeSlots; ++i) {
        shared().code_there[i].init(1);
        shared().code_done[i].init(Team::kWarps);
      }
      ring().init(kPageSlices);
    }
    __syncthreads();
  }

  __device__ void compute();
  /// By a thread of each loader.
  __device__ void load(int loader);
  /// By one thread each.
  __device__ void fetch_codes();
  __device__ void speak();

 private:
  __device__ static Shared<kBatch>& shared() { return *reinterpret_cast<Shared<kBatch>*>(memory); }
  __device__ Layout<kBatch> layout() const { return Layout<kBatch>(launch_); }
  __device__ PageRing ring() const {
    return {memory + layout().pages, shared().full, shared().empty, launch_.pages,
            launch_.page_bytes};
  }
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
  __device__ CodePages& code_pages(int i) const {
    return reinterpret_cast<CodePages*>(memory + layout().code_pages)[i];
  }
  __device__ uint32_t signals(int event) const {
    return reinterpret_cast<const uint16_t*>(memory + layout().signals)[event];
  }
  __device__ static Team team() {
    const int thread = made_here(static_cast<int>(threadIdx.x));
    return {thread, thread >> 5, thread & 31, shared().scratch};
  }
  __device__ static int index() { return static_cast<int>(blockIdx.x); }

  class ProductRows;
  class RowSource;
  class RowsSource;
  using Source = std::conditional_t<kBatch == 1, RowSource, RowsSource>;

  template <class T>
  __device__ T* at(Place place) const {
    return reinterpret_cast<T*>(launch_.arena + static_cast<int64_t>(place) * 16);
  }
  __device__ bool ended() const { return *static_cast<volatile uint32_t*>(&shared().ended) != 0; }
  __device__ bool gave_up() const {
    return *static_cast<volatile uint32_t*>(&shared().gave_up) != 0;
  }
  /// The tag of a version in this step.
  __device__ uint32_t tag(Version version) const {
    return step_tag_ + static_cast<uint32_t>(version);
  }
  /// Asked after each look that found nothing; true when it is time to give up.
  class Late {
   public:
    __device__ Late(Worker& worker, const Code* code, int event)
        : worker_(worker), code_(code), event_(event) {}
    __device__ bool operator()();

   private:
    Worker& worker_;
    const Code* code_;
    const int event_;  // -1: waits for data
    uint32_t looks_ = 0;
  };
  /// The rest of Late, which nobody should have to step over: a function of its own.
  __device__ static bool is_late(uint32_t looks, int operation, int event, uint32_t tag);
  __device__ void await_code(int slot, uint32_t phase) {
    Late late(*this, nullptr, -1);
    while (!shared().code_there[slot].try_wait(phase) && !late()) {
    }
  }
  /// By one thread: waits for an event.
  __device__ void poll(const Code* code, int event, uint32_t wanted);
  /// By the team: the code's events.
  __device__ void wait(const Code& code);
  /// By the team, after its stores.
  __device__ void signal(const Code& code);
  /// Whether all workers say which of their logits are the best, and each takes the best of all for
  /// the step's next token: nobody samples.
  __device__ bool all_say(int step) const {
    return !given(step) && launch_.sampling.temperature == 0 &&
           launch_.sampling.repetition_penalty == 1;
  }
  /// Whether a code's events are needless: what is said of the next token stands for them.
  __device__ bool eventless(const Code& code) const {
    return (code.candidates != 0 || code.opcode == Opcode::sample) && all_say(step());
  }
  __device__ Draw* draws(int sequence, uint32_t number) const {
    return launch_.draws +
           (static_cast<int>(number & 1) * sequences() + sequence) * launch_.workers;
  }
  /// By one thread, which has fenced what the worker wrote in the step: what it says of a
  /// sequence's next token.
  __device__ void say(int step, int sequence, const Candidate& best) const {
    static_assert(Draw::kNoToken == static_cast<uint32_t>(Candidate::kNone));
    const uint32_t number = launch_.first_draw + static_cast<uint32_t>(step);
    const bool stop = (load_shared_word(smem_address(&shared().host_wish)) >> sequence & 1) != 0;
    store_words(draws(sequence, number) + index(),
                {__float_as_uint(best.logit), number,
                 static_cast<uint32_t>(best.id) | (stop ? Draw::kStop : 0), number});
  }
  /// By a warp: waits for what is said of a sequence's next token after a step, and takes the best.
  /// `stop`: somebody wants the sequence ended.
  __device__ Candidate await_draws(int sequence, int step, bool& stop);
  /// By the team, when step() steps have been run: the tokens that the last of them drew. False:
  /// it is time to leave, in every thread.
  __device__ bool await_tokens();

  __device__ void stamp(int what) const {
    if (kTraced && team().thread == 0) {
      const int code = shared().code[0] % shared().code_count;
      launch_.trace[(static_cast<int64_t>(index()) * launch_.trace_codes + code) * 4 + what] =
          clock64();
    }
  }
  /// The step that the warp is in.
  __device__ static int step() { return *static_cast<volatile int*>(&shared().step[team().warp]); }
  __device__ int sequences() const { return kBatch == 1 ? 1 : launch_.shape.sequences; }
  __device__ int position_at(int step, int sequence) const {
    const int position = launch_.position[sequence] + step;
    return kBatch == 1 ? position : min(max(position, 0), launch_.shape.capacity - 1);
  }
  __device__ int position_of(int sequence) const { return position_at(step(), sequence); }
  /// The tokens of a sequence, by position.
  __device__ int32_t* tokens_of(int sequence) const {
    return launch_.tokens + sequence * (static_cast<int64_t>(launch_.shape.capacity) + 1);
  }
  /// Whether a step's next tokens are given.
  __device__ bool given(int step) const { return step < launch_.silent; }
  /// The keys of a split; `active`: splits that have any.
  __device__ void split_keys(int position, int split, int& first, int& last, int& active) const;
  __device__ void embed(const Code& code);
  __device__ void rope_angles(const Code& code);
  /// 1 / sqrt(mean of squares) of a tagged row of `count` elements, by the team.
  __device__ float row_norm(const Code& code, const Tagged* x, Version version, int count);
  /// By a warp: a head's row, normed where there is a weight, rotated and scaled, to shared memory.
  __device__ void head_row(const Code& code, const Tagged* from, Version version, Place weight,
                           float factor, bool rotate, float scale, float* to);
  /// By a warp: a row from shared memory to the cache, and as the cache has it to `rounded`.
  __device__ void append(Place cache, int64_t row, const float* x, char* rounded) const;
  /// Queries, and the step's own key and value, of a KV head to shared memory.
  __device__ NewRow head_rows(const Code& code, int kv_head, int position, bool own, float* rows,
                              float query_factor, float key_factor);
  /// A sequence's row of a tagged buffer with rows of `columns`.
  __device__ Tagged* row_at(Place place, int sequence, int columns) const {
    return at<Tagged>(place) + static_cast<int64_t>(sequence) * (columns / 2);
  }
  /// kDim, kF32: of WarpAttention; kDim 0: not by mma.
  template <int kDim, bool kF32>
  __device__ void attend_to(const Code& code);
  __device__ void norm_add(const Code& code);
  /// Waits until the whole rows of a product are there.
  __device__ void await_row(const Code& code);
  /// What attention left of a sequence; `active`: the splits that have any keys.
  __device__ Partials splits_of(const Code& code, int sequence, int& active) const {
    const ModelShape& shape = launch_.shape;
    int first;
    int last;
    split_keys(position_of(sequence), 0, first, last, active);
    return {at<Tagged>(code.a), sequence, shape.query_heads, shape.splits, shape.head_dim};
  }
  /// This thread's part of the row of one sequence.
  __device__ void merge(const Code& code, char* row);
  /// Where four elements' slice begins in rows that are operands.
  __device__ char* operand_slice(Place rows, int element) const {
    return at<char>(rows) + element / kSliceK * row_slice_bytes(kBatch);
  }
  /// Merges attention's splits for all: where there are several sequences, each worker's merging
  /// them for itself would cost too many trips.
  __device__ void combine(const Code& code);
  __device__ void product(const Code& code);
  __device__ void sample(const Code& code);
  /// Runs a code that is not a product, with a view of its own that is made from the launch's copy
  /// in shared memory: what it needs would otherwise stay in registers where the weights go by.
  /// False: it is time to leave.
  __device__ static bool run_apart(const Code* code);

  const Launch& launch_;
  uint32_t step_tag_ = 0;
};

template <bool kTraced, int kBatch>
__device__ bool Worker<kTraced, kBatch>::Late::operator()() {
  return ++looks_ % 64 == 0 &&
         is_late(looks_, code_ != nullptr ? code_->operation : -1, event_, worker_.step_tag_);
}

template <bool kTraced, int kBatch>
__device__ __noinline__ bool Worker<kTraced, kBatch>::is_late(uint32_t looks, int operation,
                                                              int event, uint32_t tag) {
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

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::poll(const Code* code, int event, uint32_t wanted) {
  const uint32_t* counter = launch_.counters + static_cast<int64_t>(event) * kCounterStride;
  Late late(*this, code, event);
  while (load_acquire(counter) < wanted && !late()) {
  }
}

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::wait(const Code& code) {
  if (eventless(code)) {
    return;
  }
  if (team().warp == 0 && team().lane < code.waits) {
    const uint16_t wait = code.wait[team().lane];
    const int event = wait & ~kPreviousStep;
    const uint32_t steps = static_cast<uint32_t>(step()) + ((wait & kPreviousStep) != 0 ? 0 : 1);
    poll(&code, event, steps * signals(event));
  }
  team().sync();
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ Candidate Worker<kTraced, kBatch>::await_draws(int sequence, int step,
                                                                          bool& stop) {
  constexpr int kAtOnce = 5;  // of a lane: those of all SMs
  Late late(*this, nullptr, -1);
  const uint32_t number = launch_.first_draw + static_cast<uint32_t>(step);
  const bool all = all_say(step);
  const int count = all ? launch_.workers : 1;
  const Draw* from = draws(sequence, number) + (all ? 0 : sequence % launch_.workers);
  Candidate best;
  stop = false;
#pragma unroll 1
  for (int base = team().lane; base < count; base += 32 * kAtOnce) {
    uint4 said[kAtOnce] = {};
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + 32 * i < count) {
          said[i] = load_words(from + base + 32 * i);
          // A later number: who has nothing to do has been left behind.
          there = there && static_cast<int>(said[i].y - number) >= 0 &&
                  static_cast<int>(said[i].w - number) >= 0;
        }
      }
    } while (!there && !late());
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool here = base + 32 * i < count && said[i].w == number;
      const uint32_t token = said[i].z & ~Draw::kStop;
      stop = stop || (here && (said[i].z & Draw::kStop) != 0);
      if (here && token != Draw::kNoToken) {
        best.offer(__uint_as_float(said[i].x), static_cast<int32_t>(token));
      }
    }
  }
  __syncwarp();
  stop = __any_sync(~0u, stop);
  return warp_best(best);
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ bool Worker<kTraced, kBatch>::await_tokens() {
  team().sync();  // all have read what was there before
  const int sequence = team().warp;
  if (sequence < sequences()) {
    const int drawn = step() - 1;
    bool stop = false;
    Candidate best;
    if (drawn >= 0) {
      best = await_draws(sequence, drawn, stop);
    }
    if (team().lane == 0) {
      int32_t token = best.id == Candidate::kNone ? 0 : best.id;  // nobody's: time to give up
      if (drawn < 0 || given(drawn)) {
        token = __ldcg(tokens_of(sequence) + position_of(sequence));
      } else {
        for (int i = 0; i < launch_.eos_count; ++i) {
          stop = stop || launch_.eos[i] == token;
        }
      }
      const bool tells = shared().tells != 0 && drawn >= 0;
      if (tells) {
        Late late(*this, nullptr, -1);
        while (!shared().token_told.try_wait(static_cast<uint32_t>(step()) & 1) && !late()) {
        }
      }
      shared().token[sequence] = token;
      shared().over[sequence] |= stop ? 1 : 0;
      if (tells) {
        shared().token_there.arrive();
      }
    }
    __syncwarp();
  }
  if (team().thread == 0) {
    shared().leave = gave_up() ? 1 : 0;
  }
  team().sync();
  bool over = true;
  for (int s = 0; s < sequences(); ++s) {
    over = over && shared().over[s] != 0;
  }
  const bool leaves = over || shared().leave != 0;
  if (leaves && team().thread == 0) {
    shared().ended = 1;
  }
  return !leaves;
}

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::signal(const Code& code) {
  if (eventless(code)) {
    return;
  }
  team().sync();
  if (team().thread < code.signals) {
    add_release(
        launch_.counters + static_cast<int64_t>(code.signal[team().thread]) * kCounterStride, 1);
  }
}

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::split_keys(int position, int split, int& first, int& last,
                                                    int& active) const {
  // Equal shares of the row's blocks of keys. Few keys are cut into few splits: each costs every
  // reader of the result something.
  constexpr int kBlock = 64;
  constexpr int kFewestBlocks = 2;  // of a split, before all splits are in use
  const ModelShape& shape = launch_.shape;
  const int end = made_here(position) + 1;
  const int begin = shape.window > 0 ? max(0, end - shape.window) : 0;
  const int block = begin / kBlock;
  const int blocks = (end + kBlock - 1) / kBlock - block;
  active = min(shape.splits, (blocks + kFewestBlocks - 1) / kFewestBlocks);
  const int each = small_quotient(blocks, active);
  const int more = blocks - each * active;  // splits that have one more
  const int before = block + split * each + min(split, more);
  first = max(begin, before * kBlock);
  last = min(end, (before + each + (split < more ? 1 : 0)) * kBlock);
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::embed(const Code& code) {
#pragma unroll 1
  for (int sequence = code.first; sequence < code.last; ++sequence) {
    const auto* row =
        at<const __nv_bfloat16>(code.a) + static_cast<int64_t>(shared().token[sequence]) * code.n;
    Tagged* to = row_at(code.b, sequence, code.n);
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int base = team().thread; 4 * base < code.n; base += kAtOnce * Team::kThreads) {
      uint2 quads[kAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * Team::kThreads;
        if (4 * i < code.n) {
          quads[j] = __ldg(reinterpret_cast<const uint2*>(row) + i);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * Team::kThreads;
        if (4 * i < code.n) {
          const float4 x = widen4(quads[j]);
          store_tagged(to + 2 * i, x.x * code.x, x.y * code.x, tag(code.version));
          store_tagged(to + 2 * i + 1, x.z * code.x, x.w * code.x, tag(code.version));
        }
      }
    }
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::rope_angles(const Code& code) {
#pragma unroll 1
  for (int sequence = 0; sequence < sequences(); ++sequence) {
    const auto position = static_cast<float>(position_of(sequence));
    for (int i = team().thread; i < code.n; i += Team::kThreads) {
      // The angle is rounded to f32, as checkpoints were trained with; then exact.
      const float angle = position * __ldg(at<const float>(code.a) + i);
      double sine;
      double cosine;
      sincos(static_cast<double>(angle), &sine, &cosine);
      shared().cosines[sequence][i] = static_cast<float>(cosine);
      shared().sines[sequence][i] = static_cast<float>(sine);
    }
  }
}

template <bool kTraced, int kBatch>
__device__ float Worker<kTraced, kBatch>::row_norm(const Code& code, const Tagged* x,
                                                   Version version, int count) {
  Late late(*this, &code, -1);
  float squares = 0;
#pragma unroll 1
  for (int i = team().thread; 4 * i < count; i += Team::kThreads) {
    const Tagged* from = x + 2 * i;
    squares += squares_of(await_quad(load_tagged_quad(from), from, tag(version), late));
  }
  squares = team_sum(team(), squares, 0);
  team().sync();  // the next sum takes the same place
  return norm_factor(squares, count, code.x);
}

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::head_row(const Code& code, const Tagged* from,
                                                  Version version, Place weight, float factor,
                                                  bool rotate, float scale, float* to) {
  const int dim = launch_.shape.head_dim;
  const int half = dim / 2;
  constexpr int kPairs = kMostHalf / 32;  // of a lane
  float2 x[kPairs] = {};
  Late late(*this, &code, -1);
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (team().lane + 32 * j < half) {
        const Tagged word = load_tagged(from + team().lane + 32 * j);
        there = there && word.tag() == tag(version);
        x[j] = {word.first(), word.second()};
      }
    }
  } while (!there && !late());
  __syncwarp();
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    squares += x[j].x * x[j].x + x[j].y * x[j].y;
  }
  if (weight != kNowhere && code.attention.whole_norm == 0) {
    factor = norm_factor(warp_sum(squares), dim, code.x);
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int d = 2 * (team().lane + 32 * j);
    if (d < dim) {
      float2 w{1, 1};
      if (weight != kNowhere) {
        const uint32_t pair = load_kept(at<const uint32_t>(weight) + d / 2);
        w = {factor * bf16_low(pair), factor * bf16_high(pair)};
      }
      reinterpret_cast<float2*>(to)[d / 2] = {x[j].x * w.x, x[j].y * w.y};
    }
  }
  __syncwarp();
  for (int i = team().lane; i < half && rotate; i += 32) {
    const float low = to[i];
    const float high = to[i + half];
    const float cosine = shared().cosines[code.row][i];
    const float sine = shared().sines[code.row][i];
    to[i] = (low * cosine - high * sine) * scale;
    to[i + half] = (high * cosine + low * sine) * scale;
  }
  __syncwarp();
}

template <bool kTraced, int kBatch>
__device__ void Worker<kTraced, kBatch>::append(Place cache, int64_t row, const float* x,
                                                char* rounded) const {
  const int dim = launch_.shape.head_dim;
#pragma unroll 1
  for (int d = team().lane; d < dim; d += 32) {
    if (launch_.shape.kv_f32) {
      at<float>(cache)[row * dim + d] = reinterpret_cast<float*>(rounded)[d] = x[d];
    } else {
      at<__nv_bfloat16>(cache)[row * dim + d] = reinterpret_cast<__nv_bfloat16*>(rounded)[d] =
          __float2bfloat16_rn(x[d]);
    }
  }
}

template <bool kTraced, int kBatch>
__device__ NewRow Worker<kTraced, kBatch>::head_rows(const Code& code, int kv_head, int position,
                                                     bool own, float* rows, float query_factor,
                                                     float key_factor) {
  const ModelShape& shape = launch_.shape;
  const int dim = made_here(shape.head_dim);
  const int group = made_here(shape.group);
#pragma unroll 1
  for (int job = team().warp; job < group + (own ? 2 : 0); job += Team::kWarps) {
    // A query, the key, or the value.
    const bool query = job < group;
    const bool value = job > group;
    const int head = query ? kv_head * group + job : kv_head;
    const Place norm = query   ? code.attention.query_norm
                       : value ? kNowhere
                               : code.attention.key_norm;
    const bool whole = norm != kNowhere && code.attention.whole_norm != 0;
    float* to = rows + job * dim;
    const Place from = query ? code.a : value ? code.c : code.b;
    const int heads = query ? shape.query_heads : shape.kv_heads;
    head_row(code, row_at(from, code.row, heads * dim) + head * (dim / 2),
             query   ? code.source
             : value ? code.attention.v
                     : code.attention.k,
             whole ? norm + static_cast<Place>(head * dim / 8) : norm,
             query ? query_factor : key_factor, !value, query ? shape.attention_scale : 1.0f, to);
    if (!query) {
      append(value ? code.e : code.d,
             static_cast<int64_t>(code.row * shape.kv_heads + kv_head) * shape.capacity + position,
             to, reinterpret_cast<char*>(to + 2 * dim));
    }
  }
  team().sync();
  return {own ? position : -1, reinterpret_cast<char*>(rows + (group + 2) * dim),
          reinterpret_cast<char*>(rows + (group + 3) * dim)};
}

template <bool kTraced, int kBatch>
template <int kDim, bool kF32>
__device__ __forceinline__ void Worker<kTraced, kBatch>::attend_to(const Code& code) {
  const ModelShape& shape = launch_.shape;
  const int dim = kDim != 0 ? kDim : made_here(shape.head_dim);
  const int group = made_here(shape.group);
  const int position = position_of(code.row);
  int first;
  int last;
  int active;
  split_keys(position, code.n, first, last, active);
  if (code.n >= active) {
    return;
  }
  const bool own = last == position + 1;  // the step's own row is among the keys
  float query_factor = 0;
  float key_factor = 0;
  if (code.attention.query_norm != kNowhere && code.attention.whole_norm != 0) {
    const int queries = shape.query_heads * dim;
    const int keys = shape.kv_heads * dim;
    query_factor = row_norm(code, row_at(code.a, code.row, queries), code.source, queries);
    key_factor = row_norm(code, row_at(code.b, code.row, keys), code.attention.k, keys);
  }
  // [group] queries, the new key, the new value, both as the cache has them; the warps' parts.
  auto* rows = reinterpret_cast<float*>(memory + layout().scratch);
  float* parts = rows + (group + 4) * dim;
  const Partials partials(at<Tagged>(code.f), code.row, shape.query_heads, shape.splits, dim);
#pragma unroll 1
  for (int kv_head = code.first; kv_head < code.last; ++kv_head) {
    const int64_t offset = static_cast<int64_t>(code.row * shape.kv_heads + kv_head) *
                           shape.capacity * dim * (shape.kv_f32 ? 4 : 2);
    const char* keys = at<const char>(code.d) + offset;
    const char* values = at<const char>(code.e) + offset;
    constexpr int kAtOnce = kDim != 0 ? kMmaHeads : kHeadsAtOnce;
    const int head_pitch = min(kAtOnce, group);
    const auto attend = [&](int at_once, int heads, auto run) {
      run([&](int h, int d, float x, float y, float maximum, float total) {
        const int64_t slot =
            static_cast<int64_t>(kv_head * group + at_once + h) * shape.splits + code.n;
        store_tagged(partials.sums + (slot * dim + d) / 2, x, y, tag(code.version));
        if (d == 0) {
          store_tagged(partials.tails + slot, maximum, total, tag(code.version));
        }
      });
    };
    NewRow new_row = {};
    bool there = false;
#pragma unroll 1
    for (int at_once = 0; at_once < group; at_once += kAtOnce) {
      const int heads = min(kAtOnce, group - at_once);
      const auto rows_there = [&] {
        if (!there) {
          new_row = head_rows(code, kv_head, position, own, rows, query_factor, key_factor);
          stamp(1);
          there = true;
        }
      };
      const float* queries = rows + at_once * dim;
      if constexpr (kDim != 0) {
        WarpAttention<kDim, kF32> warp(team(), keys, values, first, last);
        warp.ask(own ? position : -1);  // on their way while the queries come
        rows_there();
        warp.run(queries, heads, new_row, parts + team().warp * head_pitch * (dim + 2));
        attend(at_once, heads,
               [&](auto store) { merge_parts(team(), parts, head_pitch, heads, dim, store); });
      } else {
        rows_there();
        attend(at_once, heads, [&](auto store) {
          if (shape.kv_f32) {
            attention_range<true>(team(), queries, keys, values, new_row, dim, heads, first, last,
                                  parts, store);
          } else {
            attention_range<false>(team(), queries, keys, values, new_row, dim, heads, first, last,
                                   parts, store);
          }
        });
      }
    }
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::norm_add(const Code& code) {
#pragma unroll 1
  for (int sequence = 0; sequence < sequences(); ++sequence) {
    const Tagged* x = row_at(code.a, sequence, code.n);
    const float factor = row_norm(code, x, code.source, code.n) * code.y;
    // The worker's own: this thread wrote it before.
    Tagged* residual = row_at(code.c, sequence, code.n);
    for (int i = team().thread; 4 * i < code.n; i += Team::kThreads) {
      const float4 w = load_weight4(at<const __nv_bfloat16>(code.b), i);
      const float4 y = load_tagged_quad(x + 2 * i).values();
      const float4 before = load_tagged_quad(residual + 2 * i).values();
      store_tagged(residual + 2 * i, before.x + factor * w.x * y.x, before.y + factor * w.y * y.y,
                   tag(code.version));
      store_tagged(residual + 2 * i + 1, before.z + factor * w.z * y.z,
                   before.w + factor * w.w * y.w, tag(code.version));
    }
  }
}

/// What RowSource and RowsSource have in common.
template <bool kTraced, int kBatch>
class Worker<kTraced, kBatch>::ProductRows {
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

 protected:
  __device__ ProductRows(Worker& worker, const Code& code)
      : worker_(worker), code_(code), late_(worker, &code, -1) {}

  /// When the row has come. A worker without a part in the last products asked too early.
  __device__ void look_at_prior() {
    if (prior_at_ != nullptr && prior_.tag() != prior_tag_) {
      prior_ = load_tagged(prior_at_);
    }
  }

  Worker& worker_;
  const Code& code_;
  Late late_;

 private:
  const Tagged* prior_at_ = nullptr;
  uint32_t prior_tag_ = 0;
  Tagged prior_ = {};
};

/// The row that a product multiplies: a tagged row, perhaps with a norm's weights, or attention's
/// splits, merged. The norm's factor is left to the end of the product: it is known when all have
/// read the row.
template <bool kTraced, int kBatch>
class Worker<kTraced, kBatch>::RowSource : public Worker<kTraced, kBatch>::ProductRows {
 public:
  // See stream_product().
  static constexpr bool kRowFirst = false;
  __device__ static constexpr bool streams() { return false; }
  __device__ void take(int, int) {}
  __device__ static constexpr uint32_t place(int) { return 0; }

  __device__ RowSource(Worker& worker, const Code& code)
      : ProductRows(worker, code),
        row_(worker.at<const Tagged>(code.a) + 2 * team().thread),
        tag_(worker.tag(code.source)),
        quads_(code.k / 4 - team().thread),
        weight_(code.b != kNowhere ? worker.at<const __nv_bfloat16>(code.b) : nullptr) {}

  __device__ void ask(char*, const SliceRuns&, int) {
    if (code_.merged == 0) {
      ask_row(0);
#pragma unroll
      for (int q = 0; q < kWeightQuads; ++q) {
        weights_[q] = weight_ != nullptr && has(0, q) ? weights(0, q) : uint2{};
      }
    }
  }

  __device__ void make(char* row) {
    if (code_.merged != 0) {
      worker_.merge(code_, row);
      this->look_at_prior();
      return;
    }
    const int quads = row_slices(code_.k, code_.fold) * (kSliceK / 4);
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
          const float4 w = widen4(asked           ? weights_[q % kWeightQuads]
                                  : has(first, q) ? weights(first, q)
                                                  : uint2{});
          x = {x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w};
        }
        store_row_quad<1>(row, 0, warp_quad(first, q) + team().lane, x);
      }
    }
    if (weight_ != nullptr) {
      shared().squares[0][team().thread] = squares_;
    }
    this->look_at_prior();
    worker_.stamp(1);
  }

  /// By the last warp, which has the fewest slices to multiply.
  __device__ void publish() {
    if (weight_ != nullptr && team().warp == Team::kWarps - 1) {
      static_assert(Team::kThreads == 2 * 4 * 32);
      const auto* of_threads = reinterpret_cast<const float4*>(shared().squares[0]) + team().lane;
      const float4 a = of_threads[0];
      const float4 b = of_threads[32];
      const float squares = warp_sum(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)));
      if (team().lane == 0) {
        shared().factor = norm_factor(squares, code_.k, code_.x);
      }
    }
  }
  /// Of the row's norm, when the sums are there.
  __device__ float factor(int) const { return shared().factor; }

 private:
  using ProductRows::code_;
  using ProductRows::late_;
  using ProductRows::worker_;

  static constexpr int kQuads = 14;       // of a thread that are on their way at once
  static constexpr int kWeightQuads = 5;  // likewise, of the norm's weights

  /// The q-th quad of this warp's first thread, from quad `first` of the row on.
  __device__ static int warp_quad(int first, int q) {
    return first + q * Team::kThreads + team().warp * 32;
  }
  __device__ bool has(int first, int q) const { return first + q * Team::kThreads < quads_; }
  __device__ bool warp_has(int first, int q) const { return warp_quad(first, q) < code_.k / 4; }
  __device__ TaggedQuad load(int first, int q) const {
    return load_tagged_quad(row_ + 2 * (first + q * Team::kThreads));
  }
  __device__ uint2 weights(int first, int q) const {
    return load_kept(reinterpret_cast<const uint2*>(weight_) + warp_quad(first, q) + team().lane);
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
/// way; or rows that are operands already, which are copied to shared memory as they are. Short
/// code, on purpose: a step's should stay in the instruction cache.
template <bool kTraced, int kBatch>
class Worker<kTraced, kBatch>::RowsSource : public Worker<kTraced, kBatch>::ProductRows {
 public:
  static constexpr bool kRowFirst = true;  // many rows on their way want the registers

  __device__ RowsSource(Worker& worker, const Code& code) : ProductRows(worker, code) {}

  __device__ bool streams() const { return code_.streamed != 0; }

  __device__ void ask(char* row, const SliceRuns& runs, int slices) {
    row_ = row;
    if (streams()) {
      if (runs.count(team().warp) > 0) {
        copy(runs.first(team().warp) % slices, own_place(0));
      }
    } else if (team().warp < slices_of(code_.k)) {
      if (operands()) {
        copy(team().warp, slice_at(team().warp));
      } else {
        ask_for(team().warp, 0);
      }
    }
  }
  __device__ void make(char*) {
    if (streams()) {
      return;
    }
    const auto slices = slices_of(code_.k);
#pragma unroll 1
    for (int slice = team().warp; slice < slices; slice += Team::kWarps) {
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
    if (code_.b != kNowhere) {
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const float squares = warp_sum(squares_[s]);
        if (team().lane == 0) {
          shared().squares[s][team().warp] = squares;
        }
      }
    }
  }
  __device__ float factor(int sequence) const {
    static_assert(Team::kWarps == 8);
    const auto* of_warps = reinterpret_cast<const float4*>(shared().squares[sequence]);
    const float4 a = of_warps[0];
    const float4 b = of_warps[1];
    return norm_factor(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)), code_.k, code_.x);
  }
  __device__ void take(int i, int next) {
    if (next >= 0) {
      __syncwarp();  // all have multiplied what was there
      copy(next, own_place(i + 1));
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncwarp();
  }
  __device__ uint32_t place(int i) const { return smem_address(own_place(i)); }

 private:
  using ProductRows::code_;
  using ProductRows::late_;
  using ProductRows::worker_;

  static constexpr int kAtOnce = 4;                   // rows
  static constexpr int kRowQuads = kSliceK / 4 / 32;  // quads of a slice of the row, of a lane
  __device__ static int row_element(int slice, int quad) {
    return slice * kSliceK + 4 * (team().lane + 32 * quad);
  }
  __device__ char* slice_at(int slice) const { return row_ + slice * row_slice_bytes(kBatch); }
  /// Of a warp that takes its slices in turn.
  __device__ char* own_place(int i) const {
    return row_ + (team().warp * kStreamedSlices + i % kStreamedSlices) * row_slice_bytes(kBatch);
  }
  __device__ bool operands() const { return code_.source == kOperands; }
  /// A slice of operands, as a group of copies.
  __device__ __forceinline__ void copy(int slice, char* to) const {
    constexpr int kBytes = 16;
    const char* from = worker_.template at<const char>(code_.a) + slice * row_slice_bytes(kBatch);
#pragma unroll
    for (int i = 0; i < row_slice_bytes(kBatch) / kBytes / 32; ++i) {
      const int offset = (team().lane + 32 * i) * kBytes;
      const int element =
          slice * kSliceK + offset / kRowGroupBytes<kBatch> * kGroupK + offset % kColumnBytes / 2;
      copy_async_16(to + offset, from + offset, element < code_.k);
    }
    commit_copies();
  }
  __device__ bool there(int slice, int quad, int sequence) const {
    return row_element(slice, quad) < code_.k && sequence < worker_.sequences();
  }
  __device__ const Tagged* from(int slice, int quad, int sequence) const {
    return worker_.row_at(code_.a, sequence, code_.k) + row_element(slice, quad) / 2;
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
      if (code_.b != kNowhere && there(slice, q, first)) {
        weights_[q] = load_kept(reinterpret_cast<const uint2*>(
            worker_.template at<const __nv_bfloat16>(code_.b) + row_element(slice, q)));
      }
    }
  }
  /// Waits for what was asked for and stores it; adds to the rows' squares. Asks for the next,
  /// unless its slice is -1.
  __device__ __forceinline__ void bring(int slice, int first, char* to, int next_slice,
                                        int next_first) {
    const uint32_t tag = worker_.tag(code_.source);
    TaggedQuad rows[kAtOnce][kRowQuads];
    float4 weights[kRowQuads];
#pragma unroll
    for (int q = 0; q < kRowQuads; ++q) {
      weights[q] = code_.b != kNowhere ? widen4(weights_[q]) : float4{1, 1, 1, 1};
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
        for (int base = 0; base < kBatch; base += kAtOnce) {
          squares_[base + s] += first == base ? squares_of(x) : 0;
        }
        store_row_quad<kBatch>(
            to, first + s, team().lane + 32 * q,
            {x.x * weights[q].x, x.y * weights[q].y, x.z * weights[q].z, x.w * weights[q].w});
      }
    }
  }

  char* row_ = nullptr;
  float squares_[kBatch] = {};
  TaggedQuad asked_[kAtOnce][kRowQuads] = {};
  uint2 weights_[kRowQuads] = {};
};

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::merge(const Code& code, char* row) {
  Late late(*this, &code, -1);
  int active;
  const Partials partials = splits_of(code, 0, active);
  const int end = row_slices(code.k, code.fold) * kSliceK;
#pragma unroll 1
  for (int element = 8 * team().thread; element < end; element += 8 * Team::kThreads) {
    float4 x[2];
    merge_splits<true>(partials, tag(code.source), active, element < code.k ? element : -1, late,
                       x);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      store_row_quad<1>(row, 0, element / 4 + q, x[q]);
    }
  }
  stamp(1);
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::combine(const Code& code) {
  Late late(*this, &code, -1);
  constexpr int kElements = 8;  // of a thread
  const int head_dim = launch_.shape.head_dim;
  const int first_element = code.first * head_dim;
  const int of_row = (code.last - code.first) * head_dim / kElements;
#pragma unroll 1
  for (int i = team().thread; i < sequences() * of_row; i += Team::kThreads) {
    const int sequence = i / of_row;
    const int element = first_element + i % of_row * kElements;
    int active;
    const Partials partials = splits_of(code, sequence, active);
    float4 x[2];
    merge_splits<false>(partials, tag(code.source), active, element, late, x);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      store_row_quad<kBatch>(operand_slice(code.b, element), sequence, element % kSliceK / 4 + q,
                             x[q]);
    }
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::product(const Code& code) {
  const bool gated = code.opcode == Opcode::gated_linear;
  const bool normed = code.b != kNowhere;
  static_assert(kUnitColumns == 16);
  const int unit_shift = gated ? 3 : 4;  // columns of out in a unit, as a power of 2
  // This thread's sequence when it finishes a block's columns, and the first of them.
  const auto sequence = [&] { return kBatch == 1 ? 0 : team().thread / kFinishThreads<kBatch>; };
  const auto output = [&] { return team().thread & (kFinishThreads<kBatch> - 1); };
  const auto row_of = [&](const Segment& segment) {
    return kBatch == 1 ? int64_t{0} : static_cast<int64_t>(sequence()) * segment.stride;
  };
  Source source(*this, code);
  if (code.segment[0].accumulate != 0 && sequence() < sequences() &&
      output() < static_cast<int>(code.segment[0].columns)) {
    source.ask_prior(
        at<const Tagged>(code.segment[0].out) + (row_of(code.segment[0]) + output()) / 2,
        tag(code.segment[0].prior));
  }
  // Which warps' sums make this thread's first column: known before the row is.
  const SliceRuns first_runs = block_runs(code.k, code.units, code.fold, 0);
  const SumParts first_parts = sum_parts(first_runs, slices_of(code.k), output() >> unit_shift,
                                         min(kBlockUnits, code.units));
  Candidate best;
  const auto put = [&](const Segment& segment, int column, float x, bool valid) {
    if (segment.version == kPlain) {
      if (valid) {
        __stcg(at<float>(segment.out) + row_of(segment) + column, x);
      }
      return;
    }
    if (kBatch > 1 && segment.version == kOperands) {
      const float rounded = round_to_tagged(x);  // as one sequence's is on its way
      const float4 quad{rounded, __shfl_down_sync(~0u, rounded, 1),
                        __shfl_down_sync(~0u, rounded, 2), __shfl_down_sync(~0u, rounded, 3)};
      const int element = code.first + column;
      if (valid && column % 4 == 0) {
        store_row_quad<kBatch>(operand_slice(segment.out, element), sequence(),
                               element % kSliceK / 4, quad);
      }
      return;
    }
    const float next = __shfl_down_sync(~0u, x, 1);
    if (valid && column % 2 == 0) {
      store_tagged(at<Tagged>(segment.out) + (row_of(segment) + column) / 2, x, next,
                   tag(segment.version));
    }
  };
  const auto finish = [&](int first_unit, int units, const SliceRuns& runs, int slices) {
    const int unit_columns = 1 << unit_shift;
    const int outputs = units * unit_columns;
    constexpr int kWarpOf = ~31;
    if ((made_here(output()) & kWarpOf) >= outputs || sequence() >= sequences()) {
      return;
    }
    const float factor = normed ? source.factor(sequence()) : 1;
#pragma unroll 1
    for (int thread = output(); (thread & kWarpOf) < outputs; thread += kFinishThreads<kBatch>) {
      const bool there = thread < outputs;
      const int unit = there ? thread >> unit_shift : 0;
      const int of_unit = thread & (unit_columns - 1);
      const bool last = first_unit + unit + 1 == code.units;
      const bool first = first_unit == 0 && thread < kFinishThreads<kBatch>;
      // What only later blocks need is worked out for them alone.
      const auto later_parts = [&] {
        SliceRuns of_block = runs;
        of_block.each = made_here(of_block.each);
        of_block.more = made_here(of_block.more);
        return sum_parts(of_block, slices, unit, units);
      };
      const SumParts parts = first ? first_parts : later_parts();
      const auto sum = [&](int column) {
        return factor * gather<kBatch>(shared().sums, parts, unit, sequence(), column);
      };
      int column = first_unit * unit_columns + thread;
      if (gated) {
        const Segment& segment = code.segment[0];
        const bool valid = there && column < static_cast<int>(segment.columns);
        float gate = sum(of_unit);
        float up = sum((last ? unit_columns >> code.fold : unit_columns) + of_unit);
        if (segment.bias != kNowhere && valid) {
          const int element = column + segment.bias_skip;
          gate += load_kept(at<const __nv_bfloat16>(segment.bias) + element);
          up += load_kept(at<const __nv_bfloat16>(segment.bias_up) + element);
        }
        put(segment, column, __fdividef(gate, 1.0f + __expf(-gate)) * up, valid);
        continue;
      }
      int s = 0;  // each segment begins at a unit
      while (s + 1 < code.segments) {
        const int wide =
            static_cast<int>((code.segment[s].columns + kUnitColumns - 1) / kUnitColumns) *
            kUnitColumns;
        if (column < wide) {
          break;
        }
        column -= wide;
        ++s;
      }
      const Segment& segment = code.segment[s];
      const bool valid = there && column < static_cast<int>(segment.columns);
      float x = sum(of_unit);
      if (segment.bias != kNowhere && valid) {
        x += load_kept(at<const __nv_bfloat16>(segment.bias) + column + segment.bias_skip);
      }
      x *= segment.alpha;
      if (segment.accumulate != 0 && valid) {
        Late late(*this, &code, -1);
        const Tagged* from = at<const Tagged>(segment.out) + (row_of(segment) + column) / 2;
        const float2 pair =
            await_pair(first ? source.prior() : load_tagged(from), from, tag(segment.prior), late);
        x += column % 2 != 0 ? pair.y : pair.x;
      }
      __syncwarp();
      put(segment, column, x, valid);
      if (code.candidates != 0 && valid) {
        best.offer(x, code.first + column);
      }
    }
  };
  char* row = memory + layout().scratch;
  stream_product<kBatch>(team(), ring(), shared().products, row, code.k, code.units, code.fold,
                         code.compressed != 0, source, shared().sums, finish);
  if (code.candidates != 0) {
    best = warp_best(best);
    if (team().lane == 0) {
      shared().best[team().warp] = best;
    }
    team().sync();
    if (team().thread < sequences()) {
      constexpr int kWarps = Team::kWarps / kBatch;  // of a sequence
      const Candidate* of_warps = shared().best + team().thread * kWarps;
      best = of_warps[0];
      for (int w = 1; w < kWarps; ++w) {
        if (of_warps[w].id != Candidate::kNone) {
          best.offer(of_warps[w].logit, of_warps[w].id);
        }
      }
      shared().best_of_all[team().thread] = best;
      shared().best_there.arrive();
    }
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::sample(const Code& code) {
  if (all_say(step())) {
    return;
  }
  const int row = code.row;
  Candidate drawn;
  if (!given(step())) {
    SamplingOptions options = launch_.sampling;
    if (options.temperature == 0) {  // greedy with a penalty: the best of what it leaves
      options.temperature = 1;
      options.top_k = 1;
      options.top_p = 1;
      options.min_p = 0;
    }
    uint32_t* seen = launch_.seen + row * ((code.n + 31) / 32);
    float* logits = at<float>(code.a) + static_cast<int64_t>(row) * code.n;
    drawn.id = sample_row(team(), logits, code.n, options, seen,
                          __ldg(launch_.uniforms + row * launch_.steps + step()),
                          static_cast<uint2*>(launch_.kept) + static_cast<int64_t>(row) * code.n,
                          *reinterpret_cast<SampleScratch*>(memory + layout().scratch));
    if (team().thread == 0) {
      seen[drawn.id / 32] |= 1u << (drawn.id % 32);
    }
  }
  if (team().thread == 0) {
    fence_gpu();
    say(step(), row, drawn);
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::await_row(const Code& code) {
  Late late(*this, &code, -1);
#pragma unroll 1
  for (int sequence = 0; sequence < sequences(); ++sequence) {
    for (int i = team().thread; 4 * i < code.k; i += Team::kThreads) {
      const Tagged* from = row_at(code.a, sequence, code.k) + 2 * i;
      await_quad(load_tagged_quad(from), from, tag(code.source), late);
    }
  }
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ bool Worker<kTraced, kBatch>::run_apart(const Code* code) {
  const Launch& launch = shared().launch;
  Worker worker(launch, launch.first_tag + static_cast<uint32_t>(step()) * launch.versions);
  switch (code->opcode) {
    case Opcode::begin_step:
      worker.rope_angles(*code);
      if (!worker.await_tokens()) {
        return false;
      }
      if (shared().embeds == 0) {
        fence_gpu();
      }
      break;
    case Opcode::embed:
      worker.embed(*code);
      fence_gpu();  // nobody waits for this
      break;
    case Opcode::norm_add:
      worker.norm_add(*code);
      break;
    case Opcode::attention:
      if (launch.shape.head_dim == 64 && launch.shape.kv_f32) {
        worker.template attend_to<64, true>(*code);
      } else if (launch.shape.head_dim == 64) {
        worker.template attend_to<64, false>(*code);
      } else if (launch.shape.head_dim == 128 && !launch.shape.kv_f32) {
        worker.template attend_to<128, false>(*code);
      } else {
        worker.template attend_to<0, false>(*code);
      }
      break;
    case Opcode::combine:
      if constexpr (kBatch > 1) {
        worker.combine(*code);
      }
      break;
    case Opcode::sample:
      worker.sample(*code);
      break;
    case Opcode::linear:
    case Opcode::gated_linear:
      break;  // the caller's
  }
  return true;
}

template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::compute() {
  while (step() < launch_.steps) {
    step_tag_ = launch_.first_tag + static_cast<uint32_t>(step()) * launch_.versions;
    bool more = shared().code_count > 0;
    for (int next = shared().code[team().warp]; more; ++next) {
      const int slot = next & (kCodeSlots - 1);
      const Code& code = shared().codes[slot];
      await_code(slot, static_cast<uint32_t>(next) / kCodeSlots & 1);
      // What there is to do, in one load: each of its own would take as long.
      const CodeHead todo = head_of(code);
      stamp(0);
      if (todo.waits != 0) {
        wait(code);
      }
      stamp(1);
      const bool skipped = todo.head != 0 && given(step());
      if (todo.units > 0 && skipped) {
        await_row(code);  // the step is not over before: others would write the next one's rows
      } else if (todo.units > 0) {
        product(code);
      } else if (todo.opcode == Opcode::sample || !skipped) {
        if (!run_apart(&code)) {
          return;
        }
      }
      stamp(2);
      const CodeHead done = head_of(code);
      next = shared().code[team().warp];  // again: kept, it would take a register from the product
      if (done.signals != 0) {
        signal(code);
      }
      stamp(3);
      __syncwarp();
      if (team().lane == 0) {
        shared().code_done[next & (kCodeSlots - 1)].arrive();
        shared().code[team().warp] = next + 1;
      }
      more = done.ends_step == 0;
    }
    __syncwarp();  // all have read it
    if (team().lane == 0) {
      ++shared().step[team().warp];
    }
    __syncwarp();
  }
  if (shared().tells != 0 && !await_tokens()) {
    return;
  }
  if (team().thread == 0) {
    shared().ended = 1;
  }
}

/// Says what the worker's best logits are, and tells the host of the tokens of the sequences that
/// it samples: what the team need not wait for. Before the head's products are done, what the team
/// has written until then is fenced, which takes as long as an exchange.
template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::speak() {
  // Whether a barrier's phase has ended, before the team has.
  const auto await = [&](Barrier& barrier, uint32_t phase) {
    while (!barrier.try_wait(phase & 1)) {
      if (ended() && !barrier.test(phase & 1)) {
        return false;
      }
    }
    return true;
  };
  const bool has_head = shared().writes < shared().code_count;
  uint32_t over = launch_.ended;
  for (int step = 0; step < launch_.steps; ++step) {
    // In every step: of a phase that is further off only the parity would be seen.
    const int last = step * shared().code_count + shared().writes - 1;
    if (last >= 0 &&
        !await(shared().code_done[last % kCodeSlots], static_cast<uint32_t>(last / kCodeSlots))) {
      return;
    }
    if (all_say(step)) {
      fence_gpu();
    }
    if (has_head && !given(step) &&
        !await(shared().best_there, static_cast<uint32_t>(step - launch_.silent))) {
      return;
    }
    for (int s = 0; s < sequences() && all_say(step); ++s) {
      say(step, s, has_head ? shared().best_of_all[s] : Candidate{});
    }
    if (shared().tells == 0) {
      continue;
    }
    if (!await(shared().token_there, static_cast<uint32_t>(step))) {
      return;
    }
#pragma unroll 1
    for (int s = index(); s < sequences() && !given(step); s += launch_.workers) {
      const auto token = static_cast<int32_t>(load_shared_word(smem_address(&shared().token[s])));
      tokens_of(s)[position_at(step, s) + 1] = token;
      if ((over >> s & 1) == 0) {  // otherwise it only keeps the others company
        over |= load_shared_word(smem_address(&shared().over[s])) << s;
        const int count = step - launch_.silent;  // tokens before this one
        Mailbox* mailbox = launch_.mailbox;
        *static_cast<volatile int32_t*>(&mailbox->token[s * launch_.steps + count]) = token;
        store_release_system(&mailbox->tokens[s], static_cast<uint32_t>(count) + 1);
      }
    }
    store_shared_word(smem_address(&shared().host_wish), load_system(launch_.stop));
    shared().token_told.arrive();
  }
}

/// Brings the codes of the launch's steps, one at a time: it is far ahead.
template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::fetch_codes() {
  const int count = launch_.steps * shared().code_count;
  for (int i = 0; i < count; ++i) {
    const int slot = i % kCodeSlots;
    const uint32_t phase = static_cast<uint32_t>(i / kCodeSlots) & 1;
    while (!shared().code_done[slot].try_wait(phase ^ 1)) {
      if (ended()) {
        return;
      }
    }
    Barrier& there = shared().code_there[slot];
    there.arrive_expect(sizeof(Code));
    load_bytes(&shared().codes[slot], &in_memory(i % shared().code_count), sizeof(Code), there);
    while (!there.try_wait(phase)) {
    }
  }
}

/// Puts the pages of the launch's steps into the ring in the order in which they are used; this
/// loader every second one.
template <bool kTraced, int kBatch>
__device__ __forceinline__ void Worker<kTraced, kBatch>::load(int loader) {
  const uint64_t policy = evict_first();
  PageFeed<kLoaders> feed(
      ring(), {launch_.pages_in_flight, launch_.calm_pages_in_flight, launch_.hungry_slots}, loader,
      shared().put);
  const auto late = [&] { return ended(); };
  int& fed = shared().fed[loader];
  bool goes_on = true;
  bool own = loader == 0;  // the next page is this loader's
  for (int step = 0; step < launch_.steps && goes_on; ++step) {
    for (fed = 0; fed < shared().code_count && goes_on; ++fed) {
      const CodePages code = code_pages(fed);
      const bool compressed = code.compressed != 0;
      uint32_t left = code.head != 0 && given(step)
                          ? 0
                          : code.slices * static_cast<uint32_t>(weight_slice_bytes(compressed));
      const char* from = launch_.streams[index()] + static_cast<int64_t>(code.stream) * 16;
#pragma unroll 1
      while (left > 0 && goes_on) {
        const uint32_t bytes = min(left, static_cast<uint32_t>(page_bytes(compressed)));
        if (own) {
          goes_on = feed.put(from, bytes, policy, late);
        }
        own = !own;
        from += bytes;
        left -= bytes;
      }
    }
  }
  feed.land_all();
}

template <bool kTraced, int kBatch>
__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ Launch launch) {
  Worker<kTraced, kBatch> worker(launch);
  if (threadIdx.x < Team::kThreads) {
    raise_registers<kTeamRegisters>();
    worker.compute();
  } else {
    lower_registers<kLoaderRegisters>();
    static_assert(kLoaders == 2);
    if (threadIdx.x == Team::kThreads || threadIdx.x == Team::kThreads + 96) {
      worker.load(threadIdx.x == Team::kThreads ? 0 : 1);
    } else if (threadIdx.x == Team::kThreads + 32) {
      worker.fetch_codes();
    } else if (threadIdx.x == Team::kThreads + 64) {
      worker.speak();
    }
  }
  // All end here: ptxas gives a kernel with several ends no more registers than it began with.
  __syncthreads();
}

struct Kernel {
  const void* plain;
  const void* traced;
  int64_t (*shared_bytes)(const Launch& launch);
};

template <int kBatch>
Kernel kernel() {
  return {reinterpret_cast<const void*>(&decode_kernel<false, kBatch>),
          reinterpret_cast<const void*>(&decode_kernel<true, kBatch>),
          [](const Launch& launch) -> int64_t { return Layout<kBatch>(launch).total; }};
}

Kernel kernel_of(const Launch& launch) {
  static_assert(batch_of(kMostSequences) == 8);
  const int batch = batch_of(launch.shape.sequences);
  return batch == 1 ? kernel<1>() : batch == 4 ? kernel<4>() : kernel<8>();
}

}  // namespace

int64_t decode_shared_bytes(const Launch& launch) { return kernel_of(launch).shared_bytes(launch); }

cudaError_t launch_decode(const Launch& launch, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(decode_shared_bytes(launch));
  const Kernel kernel = kernel_of(launch);
  const void* function = launch.trace != nullptr ? kernel.traced : kernel.plain;
  const cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) {
    return error;
  }
  void* arguments[] = {const_cast<Launch*>(&launch)};
  return cudaLaunchCooperativeKernel(function, dim3(static_cast<unsigned>(launch.workers)),
                                     dim3(kThreads), arguments, bytes, stream);
}

}  // namespace weft::hopper
