// One CTA per SM walks its worker's codes, step after step. Eight warps form the team that
// computes; one thread beside them is the loader: it walks the same codes, knows every
// weight byte of the step in order, and keeps the ring of pages full. It never waits for an
// activation. Events are counters in global memory; a wait polls them with acquire loads, a signal
// is a release addition after the team's stores. Every spin has an end: a worker that waits too
// long writes what it waited for and everybody leaves.
#include <cooperative_groups.h>

#include "engine/hopper/decode_kernel.h"
#include "ops/attention/hopper.cuh"
#include "ops/linear/hopper.cuh"
#include "ops/rmsnorm/hopper.cuh"
#include "ops/sample/hopper.cuh"

namespace weft::hopper {
namespace {

static_assert(Team::kWarps == kTeamWarps);
constexpr int kThreads = Team::kThreads + 128;  // registers are moved between groups of four warps
constexpr int kTeamRegisters = 240;
constexpr int kLoaderRegisters = 24;
constexpr uint32_t kMostLooks = 1u << 22;  // of about half a microsecond
constexpr int64_t kAlign = 128;
constexpr int kMostHalf = 128;  // of the elements of a head

constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// What lies in shared memory after the ring, all of fixed size.
struct Shared {
  alignas(16) float sums[kSumsBytes / 4];
  alignas(16) char zeros[16];
  float scratch[2 * Team::kWarps];
  Candidate best[4];
  float cosines[kMostHalf];
  float sines[kMostHalf];
  Barrier full[16];
  Barrier empty[16];
  uint32_t gave_up;   ///< somebody waited too long, here or elsewhere
  uint32_t leave[2];  ///< what thread 0 saw of gave_up at the end of a code: all act on the same
  uint32_t ended;     ///< the team has left: the loader follows
  SampleScratch sample;
};

struct Layout {
  int64_t rows, codes, signals, shared, total;
  __host__ __device__ explicit Layout(const Launch& launch) {
    rows = static_cast<int64_t>(launch.pages) * kPageBytes;
    codes = rows + aligned(launch.scratch_bytes);
    signals = codes + aligned(launch.code_bytes);
    shared = signals + aligned(2 * static_cast<int64_t>(launch.events));
    total = shared + static_cast<int64_t>(sizeof(Shared));
  }
};

/// A worker's view of the launch.
class Worker {
 public:
  __device__ Worker(const Launch& launch, char* memory)
      : launch_(launch), index_(static_cast<int>(blockIdx.x)) {
    const Layout layout(launch);
    shared_ = reinterpret_cast<Shared*>(memory + layout.shared);
    codes_ = reinterpret_cast<const Code*>(memory + layout.codes);
    signals_ = reinterpret_cast<const uint16_t*>(memory + layout.signals);
    scratch_ = memory + layout.rows;
    row_ = {scratch_, scratch_ + launch.row_elements * 2, shared_->zeros};
    ring_ = {memory, shared_->full, shared_->empty, launch.pages};
    const uint32_t begin = launch.code_begin[index_];
    count_ = static_cast<int>(launch.code_begin[index_ + 1] - begin);
    team_ = {static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x / 32),
             static_cast<int>(threadIdx.x % 32), shared_->scratch};

    // Codes and signal counts into shared memory.
    const auto* from = reinterpret_cast<const uint4*>(launch.codes + begin);
    auto* to = reinterpret_cast<uint4*>(memory + layout.codes);
    for (int i = static_cast<int>(threadIdx.x); i < count_ * static_cast<int>(sizeof(Code) / 16);
         i += kThreads) {
      to[i] = from[i];
    }
    auto* signals = reinterpret_cast<uint16_t*>(memory + layout.signals);
    for (uint32_t i = threadIdx.x; i < launch.events; i += kThreads) {
      signals[i] = static_cast<uint16_t>(launch.event_signals[i]);
    }
    if (threadIdx.x == 0) {
      shared_->gave_up = shared_->ended = 0;
      *reinterpret_cast<uint4*>(shared_->zeros) = {};
      ring_.init();
    }
    __syncthreads();
  }

  __device__ void compute();
  __device__ void load();

 private:
  struct PageWalk;

  template <class T>
  __device__ T* at(Place place) const {
    return reinterpret_cast<T*>(launch_.arena + static_cast<int64_t>(place) * 16);
  }
  __device__ bool ended() const { return *static_cast<volatile uint32_t*>(&shared_->ended) != 0; }
  __device__ bool gave_up() const {
    return *static_cast<volatile uint32_t*>(&shared_->gave_up) != 0;
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
  /// By one thread: waits for an event.
  __device__ void poll(const Code* code, int event, uint32_t wanted);
  /// By the team: the code's events.
  __device__ void wait(const Code& code, int step);
  /// By the team, after its stores. `threads`: the first ones, which stored.
  __device__ void signal(const Code& code, int threads);
  /// By the team: whether it leaves, the same answer in every thread. `over`: thread 0's reason.
  __device__ bool leave(bool over);

  __device__ void stamp(int code, int what) const {
    if (launch_.trace != nullptr && team_.thread == 0) {
      launch_.trace[(static_cast<int64_t>(index_) * launch_.trace_codes + code) * 4 + what] =
          clock64();
    }
  }
  __device__ bool given(int position) const { return position + 1 < launch_.given; }
  /// What a code can do before its wait: bring what does not depend on others nearer.
  __device__ void prepare(const Code& code, int position);
  /// The keys of a split; `active`: splits that have any.
  __device__ void split_keys(int position, int split, int& first, int& last, int& active) const;
  __device__ void embed(const Code& code, int position);
  __device__ void rope_angles(const Code& code, int position);
  /// 1 / sqrt(mean of squares) of `count` elements.
  __device__ float norm_factor(const Code& code, const Tagged* x, Version version, int count);
  /// By a warp: a head's row, normed where there is a weight, rotated and scaled, to shared memory.
  __device__ void head_row(const Code& code, const Tagged* from, Version version, Place weight,
                           float factor, bool rotate, float scale, float* to);
  /// By a warp: a row from shared memory to the cache, and as the cache has it to `rounded`.
  __device__ void append(Place cache, int64_t row, const float* x, char* rounded) const;
  /// Zeros from `elements` to the end of the input row's last group.
  __device__ void pad_row(int elements) const;
  __device__ void attention(const Code& code, int position);
  __device__ void combine(const Code& code, int position);
  __device__ void norm_input(const Code& code);
  __device__ void norm_add(const Code& code);
  __device__ void product(const Code& code);
  __device__ void sample(const Code& code, int position, int step, uint32_t stop);

  const Launch& launch_;
  const int index_;
  int count_;
  Shared* shared_;
  const Code* codes_;
  const uint16_t* signals_;
  char* scratch_;
  SplitRow row_;
  PageRing ring_;
  Team team_;
  PageCursor cursor_;
  NormWeight norm_weight_;
  int block_round_ = 0;
  int sum_round_ = 0;
  uint32_t step_tag_ = 0;
  uint32_t leave_round_ = 0;
  uint32_t mailbox_count_ = 0;
};

__device__ bool Worker::Late::operator()() {
  if (++looks_ % 1024 != 0) {
    return false;
  }
  Failure* failure = worker_.launch_.failure;
  if (looks_ >= kMostLooks && atomicCAS(&failure->happened, 0u, 1u) == 0) {
    failure->worker = worker_.index_;
    failure->operation = code_ != nullptr ? code_->operation : -1;
    failure->event = event_;
    failure->tag = worker_.step_tag_;
  }
  if (worker_.gave_up() || load_acquire(&failure->happened) != 0) {
    worker_.shared_->gave_up = 1;
    return true;
  }
  return false;
}

__device__ void Worker::poll(const Code* code, int event, uint32_t wanted) {
  const uint32_t* counter = launch_.counters + static_cast<int64_t>(event) * kCounterStride;
  Late late(*this, code, event);
  while (load_acquire(counter) < wanted && !late()) {
  }
}

__device__ void Worker::wait(const Code& code, int step) {
  if (code.waits == 0) {
    return;
  }
  if (team_.warp == 0 && team_.lane < code.waits) {
    const uint16_t wait = code.wait[team_.lane];
    const int event = wait & ~kPreviousStep;
    const uint32_t steps = static_cast<uint32_t>(step) + ((wait & kPreviousStep) != 0 ? 0 : 1);
    poll(&code, event, steps * signals_[event]);
  }
  team_.sync();
}

__device__ bool Worker::leave(bool over) {
  uint32_t* slot = &shared_->leave[leave_round_++ & 1];
  if (team_.thread == 0) {
    *slot = over || gave_up() ? 1 : 0;
    if (*slot != 0) {
      shared_->ended = 1;
    }
  }
  team_.sync();
  return *static_cast<volatile uint32_t*>(slot) != 0;
}

__device__ void Worker::signal(const Code& code, int threads) {
  if (code.signals == 0) {
    return;
  }
  if (team_.thread < threads) {
    // Two barriers, since the other warps may be at the next one already.
    named_sync(threads == Team::kThreads ? 3 : 2, threads);
    if (team_.thread < code.signals) {
      add_release(
          launch_.counters + static_cast<int64_t>(code.signal[team_.thread]) * kCounterStride, 1);
    }
  }
}

__device__ void Worker::split_keys(int position, int split, int& first, int& last,
                                   int& active) const {
  // Equal shares of the row's blocks of keys. Few keys are cut into few splits: each costs every
  // reader of the result something.
  constexpr int kBlock = 64;
  constexpr int kFewestBlocks = 2;  // of a split, before all splits are in use
  const ModelShape& shape = launch_.shape;
  const int begin = shape.window > 0 ? max(0, position - shape.window + 1) : 0;
  const int end = position + 1;
  const int block = begin / kBlock;
  const int blocks = (end + kBlock - 1) / kBlock - block;
  active = min(shape.splits, (blocks + kFewestBlocks - 1) / kFewestBlocks);
  first = max(begin, (block + blocks * split / active) * kBlock);
  last = min(end, (block + blocks * (split + 1) / active) * kBlock);
}

__device__ void Worker::prepare(const Code& code, int position) {
  if (code.opcode == Opcode::norm_input || code.opcode == Opcode::norm_add) {
    norm_weight_.load(team_, at<const __nv_bfloat16>(code.b), code.n);
    return;
  }
  norm_weight_ = {};  // not to be kept
  if (code.opcode == Opcode::attention) {
    const ModelShape& shape = launch_.shape;
    const int64_t row_bytes = static_cast<int64_t>(shape.head_dim) * (shape.kv_f32 ? 4 : 2);
    int first;
    int last;
    int active;
    split_keys(position, code.n, first, last, active);
    if (code.n < active) {
      for (int head = code.first; head < code.last; ++head) {
        const int64_t offset = head * row_bytes * shape.capacity;
        prefetch_rows(team_, at<const char>(code.d) + offset, row_bytes, first, last);
        prefetch_rows(team_, at<const char>(code.e) + offset, row_bytes, first, last);
      }
    }
  }
}

__device__ void Worker::embed(const Code& code, int position) {
  const int32_t token = __ldcg(launch_.tokens + position);
  const auto* row = at<const __nv_bfloat16>(code.a) + static_cast<int64_t>(token) * code.n;
  for (int i = team_.thread; 4 * i < code.n; i += Team::kThreads) {
    const float4 x = load_weight4(row, i);
    Tagged* out = at<Tagged>(code.b) + 4 * i;
    store_tagged(out, x.x * code.x, tag(code.version));
    store_tagged(out + 1, x.y * code.x, tag(code.version));
    store_tagged(out + 2, x.z * code.x, tag(code.version));
    store_tagged(out + 3, x.w * code.x, tag(code.version));
  }
}

__device__ void Worker::rope_angles(const Code& code, int position) {
  for (int i = team_.thread; i < code.n; i += Team::kThreads) {
    // The angle is rounded to f32, as checkpoints were trained with; then exact.
    const float angle = static_cast<float>(position) * __ldg(at<const float>(code.a) + i);
    double sine;
    double cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    shared_->cosines[i] = static_cast<float>(cosine);
    shared_->sines[i] = static_cast<float>(sine);
  }
}

__device__ float Worker::norm_factor(const Code& code, const Tagged* x, Version version,
                                     int count) {
  Late late(*this, &code, -1);
  float squares = 0;
#pragma unroll 1
  for (int i = team_.thread; 2 * i < count; i += Team::kThreads) {
    float2 v[1] = {};
    await_pairs(
        v, 1, tag(version), [&](int) { return x + 2 * i; }, late);
    squares += v[0].x * v[0].x + v[0].y * v[0].y;
  }
  return 1.0f / sqrtf(team_sum(team_, squares, sum_round_++) / static_cast<float>(count) + code.x);
}

__device__ void Worker::head_row(const Code& code, const Tagged* from, Version version,
                                 Place weight, float factor, bool rotate, float scale, float* to) {
  const int dim = launch_.shape.head_dim;
  const int half = dim / 2;
  constexpr int kPairs = kMostHalf / 32;  // of a lane
  float2 x[kPairs] = {};
  uint32_t pending = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    pending |= 2 * (team_.lane + 32 * j) < dim ? 1u << j : 0;
  }
  Late late(*this, &code, -1);
  await_pairs(
      x, pending, tag(version), [&](int j) { return from + 2 * (team_.lane + 32 * j); }, late);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    squares += x[j].x * x[j].x + x[j].y * x[j].y;
  }
  if (weight != kNowhere && code.attention.whole_norm == 0) {
    factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + code.x);
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int d = 2 * (team_.lane + 32 * j);
    if (d < dim) {
      float2 w{1, 1};
      if (weight != kNowhere) {
        const uint32_t pair = __ldg(at<const uint32_t>(weight) + d / 2);
        w = {factor * bf16_low(pair), factor * bf16_high(pair)};
      }
      reinterpret_cast<float2*>(to)[d / 2] = {x[j].x * w.x, x[j].y * w.y};
    }
  }
  __syncwarp();
  for (int i = team_.lane; i < half && rotate; i += 32) {
    const float low = to[i];
    const float high = to[i + half];
    to[i] = (low * shared_->cosines[i] - high * shared_->sines[i]) * scale;
    to[i + half] = (high * shared_->cosines[i] + low * shared_->sines[i]) * scale;
  }
  __syncwarp();
}

__device__ void Worker::append(Place cache, int64_t row, const float* x, char* rounded) const {
  const int dim = launch_.shape.head_dim;
#pragma unroll 1
  for (int d = team_.lane; d < dim; d += 32) {
    if (launch_.shape.kv_f32) {
      at<float>(cache)[row * dim + d] = reinterpret_cast<float*>(rounded)[d] = x[d];
    } else {
      at<__nv_bfloat16>(cache)[row * dim + d] = reinterpret_cast<__nv_bfloat16*>(rounded)[d] =
          __float2bfloat16_rn(x[d]);
    }
  }
}

__device__ void Worker::attention(const Code& code, int position) {
  const ModelShape& shape = launch_.shape;
  const int dim = shape.head_dim;
  const int group = shape.query_heads / shape.kv_heads;
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
    query_factor =
        norm_factor(code, at<const Tagged>(code.a), code.source, shape.query_heads * dim);
    key_factor =
        norm_factor(code, at<const Tagged>(code.b), code.attention.k, shape.kv_heads * dim);
  }
  // [group] queries, the new key, the new value, both as the cache has them; the warps' parts.
  auto* rows = reinterpret_cast<float*>(scratch_);
  float* parts = rows + (group + 4) * dim;
  const Partials partials(at<Tagged>(code.f), shape.query_heads, shape.splits, dim);
#pragma unroll 1
  for (int kv_head = code.first; kv_head < code.last; ++kv_head) {
    const int64_t cache_row = static_cast<int64_t>(kv_head) * shape.capacity;
#pragma unroll 1
    for (int job = team_.warp; job < group + (own ? 2 : 0); job += Team::kWarps) {
      // A query, the key, or the value.
      const bool query = job < group;
      const bool value = job > group;
      const int head = query ? kv_head * group + job : kv_head;
      const Place norm = query   ? code.attention.query_norm
                         : value ? kNowhere
                                 : code.attention.key_norm;
      const bool whole = norm != kNowhere && code.attention.whole_norm != 0;
      float* to = rows + job * dim;
      head_row(code,
               at<const Tagged>(query   ? code.a
                                : value ? code.c
                                        : code.b) +
                   static_cast<int64_t>(head) * dim,
               query   ? code.source
               : value ? code.attention.v
                       : code.attention.k,
               whole ? norm + static_cast<Place>(head * dim / 8) : norm,
               query ? query_factor : key_factor, !value, query ? shape.attention_scale : 1.0f, to);
      if (!query) {
        append(value ? code.e : code.d, cache_row + position, to,
               reinterpret_cast<char*>(to + 2 * dim));
      }
    }
    team_.sync();
    const int64_t offset = cache_row * dim * (shape.kv_f32 ? 4 : 2);
    const NewRow new_row{own ? position : -1, reinterpret_cast<char*>(rows + (group + 2) * dim),
                         reinterpret_cast<char*>(rows + (group + 3) * dim)};
#pragma unroll 1
    for (int at_once = 0; at_once < group; at_once += kHeadsAtOnce) {
      const int heads = min(kHeadsAtOnce, group - at_once);
      const auto store = [&](int h, int d, float element, float maximum, float total) {
        const int64_t slot =
            static_cast<int64_t>(kv_head * group + at_once + h) * shape.splits + code.n;
        store_tagged(partials.sums + slot * dim + d, element, tag(code.version));
        if (d == 0) {
          store_tagged(partials.tails + 2 * slot, maximum, tag(code.version));
          store_tagged(partials.tails + 2 * slot + 1, total, tag(code.version));
        }
      };
      const float* queries = rows + at_once * dim;
      const char* keys = at<const char>(code.d) + offset;
      const char* values = at<const char>(code.e) + offset;
      if (shape.kv_f32) {
        attention_range<true>(team_, queries, keys, values, new_row, dim, heads, first, last, parts,
                              store);
      } else {
        attention_range<false>(team_, queries, keys, values, new_row, dim, heads, first, last,
                               parts, store);
      }
    }
  }
}

__device__ void Worker::combine(const Code& code, int position) {
  const ModelShape& shape = launch_.shape;
  int first;
  int last;
  int active;
  split_keys(position, 0, first, last, active);
  Late late(*this, &code, -1);
  attention_merge(team_,
                  Partials(at<Tagged>(code.f), shape.query_heads, shape.splits, shape.head_dim),
                  tag(code.source), active, shape.query_heads, shape.head_dim, late, row_);
  pad_row(shape.query_heads * shape.head_dim);
}

__device__ void Worker::pad_row(int elements) const {
  if (elements / 4 + team_.thread < groups_of(elements) * kGroupK / 4) {
    row_.store4(elements / 4 + team_.thread, float4{});
  }
}

__device__ void Worker::norm_input(const Code& code) {
  Late late(*this, &code, -1);
  norm_row(team_, at<const Tagged>(code.a), tag(code.source), norm_weight_, code.n, code.x,
           sum_round_++, late, [&](int i, float4 y) { row_.store4(i, y); });
}

__device__ void Worker::norm_add(const Code& code) {
  Tagged* residual = at<Tagged>(code.c);
  Late late(*this, &code, -1);
  norm_row(team_, at<const Tagged>(code.a), tag(code.source), norm_weight_, code.n, code.x,
           sum_round_++, late, [&](int i, float4 y) {
             // The worker's own: this thread wrote it before.
             const uint4 first = load_tagged_pair(residual + 4 * i);
             const uint4 second = load_tagged_pair(residual + 4 * i + 2);
             const auto add = [&](int j, uint32_t before, float x) {
               store_tagged(residual + 4 * i + j, __uint_as_float(before) + code.y * x,
                            tag(code.version));
             };
             add(0, first.x, y.x);
             add(1, first.z, y.y);
             add(2, second.x, y.z);
             add(3, second.z, y.w);
           });
}

__device__ void Worker::product(const Code& code) {
  Late late(*this, &code, -1);
  if (code.a != kNowhere) {
    if (code.source == kPlain) {
      load_row(team_, at<const float>(code.a), code.k, row_);
    } else {
      load_row(team_, at<const Tagged>(code.a), tag(code.source), code.k, late, row_);
    }
  }
  const bool gated = code.opcode == Opcode::gated_linear;
  // What the first block adds to: asked for now, needed when the product is there.
  uint4 prior = {};
  if (code.segment[0].accumulate != 0 &&
      team_.thread < min(kBlockUnits * kUnitColumns, static_cast<int>(code.segment[0].columns))) {
    prior = load_tagged_pair(at<const Tagged>(code.segment[0].out) + team_.thread / 2 * 2);
  }
  team_.sync();  // the row is there
  Candidate best;
  const auto put = [&](const Segment& segment, int column, float x) {
    if (segment.version == kPlain) {
      __stcg(at<float>(segment.out) + column, x);
    } else {
      store_tagged(at<Tagged>(segment.out) + column, x, tag(segment.version));
    }
  };
  const auto finish = [&](int first_unit, int units, const float* sums) {
    const int outputs = (gated ? units / 2 : units) * kUnitColumns;
    if (team_.thread >= outputs) {
      return;
    }
    const int in_unit = team_.thread % kUnitColumns;
    int column = (gated ? first_unit / 2 : first_unit) * kUnitColumns + team_.thread;
    if (gated) {
      const Segment& segment = code.segment[0];
      if (column >= static_cast<int>(segment.columns)) {
        return;
      }
      const int pair = team_.thread / kUnitColumns * 2 * kUnitColumns + in_unit;
      float gate = gather(sums, pair);
      float up = gather(sums, pair + kUnitColumns);
      if (segment.bias != kNowhere) {
        gate += __bfloat162float(at<const __nv_bfloat16>(segment.bias)[column]);
        up += __bfloat162float(at<const __nv_bfloat16>(segment.bias_up)[column]);
      }
      put(segment, column, gate / (1.0f + expf(-gate)) * up);
      return;
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
    if (column >= static_cast<int>(segment.columns)) {
      return;
    }
    float x = gather(sums, team_.thread);
    if (segment.bias != kNowhere) {
      x += __bfloat162float(at<const __nv_bfloat16>(segment.bias)[column]);
    }
    x *= segment.alpha;
    if (segment.accumulate != 0) {
      const bool odd = column % 2 != 0;
      if (first_unit != 0 || (odd ? prior.w : prior.y) != tag(segment.prior)) {
        float2 pair[1] = {};
        await_pairs(
            pair, 1, tag(segment.prior),
            [&](int) { return at<const Tagged>(segment.out) + column / 2 * 2; }, late);
        prior.x = __float_as_uint(pair[0].x);
        prior.z = __float_as_uint(pair[0].y);
      }
      x += __uint_as_float(odd ? prior.z : prior.x);
    }
    put(segment, column, x);
    if (code.candidates != 0) {
      best.offer(x, code.first + column);
    }
  };
  stream_product(team_, ring_, cursor_, row_, code.units, static_cast<int>(groups_of(code.k)),
                 shared_->sums, block_round_, finish);
  if (code.candidates != 0 && team_.warp < 4) {
    best = warp_best(best);
    if (team_.lane == 0) {
      shared_->best[team_.warp] = best;
    }
    named_sync(2, 128);
    if (team_.thread == 0) {
      for (int w = 1; w < 4; ++w) {
        if (shared_->best[w].id != 0x7fffffff) {
          best.offer(shared_->best[w].logit, shared_->best[w].id);
        }
      }
      static_cast<Candidate*>(launch_.candidates)[index_] = best;
    }
  }
}

__device__ void Worker::sample(const Code& code, int position, int step, uint32_t stop) {
  if (given(position)) {
    if (team_.thread == 0 && stop != 0) {
      *launch_.stop_step = static_cast<uint32_t>(step) + 1;
    }
    return;
  }
  const SamplingOptions& options = launch_.sampling;
  int32_t token = 0;
  if (options.temperature == 0 && options.repetition_penalty == 1) {
    if (team_.warp == 0) {
      Candidate best;
      for (int w = team_.lane; w < launch_.workers; w += 32) {
        const auto* from = static_cast<const Candidate*>(launch_.candidates) + w;
        const uint2 bits = __ldcg(reinterpret_cast<const uint2*>(from));
        if (bits.y != 0x7fffffff) {
          best.offer(__uint_as_float(bits.x), static_cast<int32_t>(bits.y));
        }
      }
      token = warp_best(best).id;
    }
  } else {
    SamplingOptions drawn = options;
    if (options.temperature == 0) {  // greedy with a penalty: the best of what it leaves
      drawn.temperature = 1;
      drawn.top_k = 1;
      drawn.top_p = 1;
      drawn.min_p = 0;
    }
    token = sample_row(team_, at<float>(code.a), code.n, drawn, launch_.seen,
                       __ldg(launch_.uniforms + step), shared_->sample);
  }
  if (team_.thread == 0) {
    launch_.tokens[position + 1] = token;
    launch_.seen[token / 32] |= 1u << (token % 32);
    bool end = stop != 0;
    for (int i = 0; i < launch_.eos_count; ++i) {
      end = end || launch_.eos[i] == token;
    }
    if (end) {
      *launch_.stop_step = static_cast<uint32_t>(step) + 1;
    }
    Mailbox* mailbox = launch_.mailbox;
    const uint32_t count = mailbox_count_++;
    *static_cast<volatile int32_t*>(&mailbox->token[count]) = token;
    store_release_system(&mailbox->tokens, count + 1);
  }
}

__device__ void Worker::compute() {
  for (int step = 0; step < launch_.steps; ++step) {
    const int position = launch_.position + step;
    step_tag_ = launch_.first_tag + static_cast<uint32_t>(step) * launch_.versions;
    if (step > 0) {
      bool over = false;
      if (team_.thread == 0) {
        poll(nullptr, launch_.sampled, static_cast<uint32_t>(step) * signals_[launch_.sampled]);
        over = static_cast<uint32_t>(step) >= __ldcg(launch_.stop_step);
      }
      if (leave(over)) {
        return;
      }
    }
    // Asked for now, needed when the token is known: the way to the host and back is long.
    uint32_t stop = 0;
    if (index_ == 0 && team_.thread == 0) {
      stop = load_system(&launch_.mailbox->stop);
    }
    for (int i = 0; i < count_; ++i) {
      const Code& code = codes_[i];
      stamp(i, 0);
      prepare(code, position);
      wait(code, step);
      stamp(i, 1);
      int stored = Team::kThreads;
      if (code.head == 0 || !given(position) || code.opcode == Opcode::sample) {
        switch (code.opcode) {
          case Opcode::embed:
            embed(code, position);
            break;
          case Opcode::rope_angles:
            rope_angles(code, position);
            break;
          case Opcode::norm_input:
            norm_input(code);
            pad_row(code.n);
            break;
          case Opcode::norm_add:
            norm_add(code);
            break;
          case Opcode::linear:
          case Opcode::gated_linear:
            product(code);
            stored = 128;
            break;
          case Opcode::attention:
            attention(code, position);
            break;
          case Opcode::attention_combine:
            combine(code, position);
            break;
          case Opcode::sample:
            sample(code, position, step, stop);
            break;
        }
      }
      stamp(i, 2);
      signal(code, stored);
      stamp(i, 3);
      // What a code leaves in shared memory and in this worker's own rows is there for the next.
      if (leave(false)) {
        return;
      }
    }
  }
}

/// Walks the pages of the launch's steps in the order in which they are used.
struct Worker::PageWalk {
  const Worker& worker;
  int step = 0;
  int code = -1;
  const char* from = nullptr;
  int64_t left = 0;

  /// False: there are no more. Otherwise `from` is the page and `bytes` its size, until taken.
  __device__ bool at_page(uint32_t& bytes) {
    while (left == 0) {
      if (++code == worker.count_) {
        code = 0;
        ++step;
      }
      if (step >= worker.launch_.steps) {
        return false;
      }
      const Code& next = worker.codes_[code];
      if (next.units > 0 && !(next.head != 0 && worker.given(worker.launch_.position + step))) {
        from = worker.launch_.streams[worker.index_] + static_cast<int64_t>(next.stream) * 16;
        left = static_cast<int64_t>(next.units) * groups_of(next.k) * kGroupBytes;
      }
    }
    bytes = static_cast<uint32_t>(min(left, static_cast<int64_t>(kPageBytes)));
    return true;
  }
  __device__ void take(uint32_t bytes) {
    from += bytes;
    left -= bytes;
  }
};

__device__ void Worker::load() {
  const uint64_t policy = evict_first();
  PageCursor next;    // to fill
  PageCursor oldest;  // of those in flight
  int in_flight = 0;
  const auto land = [&] {
    while (!ring_.full[oldest.slot].try_wait(oldest.phase)) {
    }
    oldest.advance(ring_.slots);
    --in_flight;
  };
  PageWalk walk{*this};
  uint32_t bytes;
  for (int64_t used = 0; walk.at_page(bytes); ++used) {
    if (used >= ring_.slots) {
      while (!ring_.empty[next.slot].try_wait(next.phase ^ 1)) {
        if (ended()) {
          break;
        }
      }
    }
    if (ended()) {
      break;
    }
    while (in_flight >= launch_.pages_in_flight) {
      land();
    }
    ring_.full[next.slot].arrive_expect(bytes);
    load_bytes(ring_.pages + next.slot * kPageBytes, walk.from, bytes, ring_.full[next.slot],
               policy);
    walk.take(bytes);
    next.advance(ring_.slots);
    ++in_flight;
  }
  // A CTA may not end while copies into its memory are on their way.
  while (in_flight > 0) {
    land();
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char memory[];
  Worker worker(launch, memory);
  if (threadIdx.x < Team::kThreads) {
    raise_registers<kTeamRegisters>();
    worker.compute();
  } else {
    lower_registers<kLoaderRegisters>();
    if (threadIdx.x == Team::kThreads) {
      worker.load();
    }
  }
}

}  // namespace

int64_t decode_shared_bytes(const Launch& launch) { return Layout(launch).total; }

cudaError_t launch_decode(const Launch& launch, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(decode_shared_bytes(launch));
  const cudaError_t error = cudaFuncSetAttribute(
      decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) {
    return error;
  }
  void* arguments[] = {const_cast<Launch*>(&launch)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(decode_kernel),
                                     dim3(static_cast<unsigned>(launch.workers)), dim3(kThreads),
                                     arguments, bytes, stream);
}

}  // namespace weft::hopper
