// mla_prompt on the CPU: many rows by attention's blocks (ops/attention/chunk-inl.h) over keys and
// values that are multiplied out as the blocks come, few rows by what a decode step does.
#include "ops/mla_prompt/op.h"

#include <algorithm>
#include <type_traits>

#include "arch/cpu/dispatch.h"
#include "base/check.h"
#include "base/divide.h"
#include "ops/attention/op.h"
#include "ops/linear/op.h"
#include "ops/mla/product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mla_prompt/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/attention/chunk-inl.h"
#include "ops/mla/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Takes pieces of scratch, each aligned to a cache line. Of null it counts.
class Pieces {
 public:
  explicit Pieces(std::byte* scratch) : scratch_(scratch) {}
  template <class T>
  T* take(int64_t count) {
    const size_t at = bytes_;
    bytes_ += round_up(static_cast<size_t>(count) * sizeof(T), size_t{64});
    return scratch_ == nullptr ? nullptr : reinterpret_cast<T*>(scratch_ + at);
  }
  std::byte* rest() { return take<std::byte>(0); }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* scratch_;
  size_t bytes_ = 0;
};

/// Attention of many rows over a head's keys and values, which are multiplied out a stretch of
/// positions at a time, whole blocks: so no sum depends on where the rows end.
template <class Kernel, class Element>
class MultipliedAttention {
 public:
  MultipliedAttention(const LatentAttentionArgs& args, Range rows, std::byte* scratch)
      : args_(args), rows_(rows), pieces_(scratch) {
    queries_ = pieces_.take<Element>(rows.size() * size_);
    latents_ = pieces_.take<std::byte>(kStretch * of_.rank * (rounds_ ? 2 : 4));
    keys_ = pieces_.take<Element>(kStretch * size_);
    values_ = pieces_.take<Element>(kStretch * of_.value);
    LinearArgs product;
    product.w = of_.w;
    product.k = of_.rank;
    product_scratch_ = {
        pieces_.take<std::byte>(static_cast<int64_t>(cpu::linear_scratch_bytes(product, kStretch))),
        cpu::linear_scratch_bytes(product, kStretch)};
    attention_.q = {queries_, args.element, size_};
    attention_.cache.dtype = args.element;
    attention_.query_heads = attention_.kv_heads = 1;
    attention_.head_dim = size_;
    attention_.scale = args.scale;
  }

  size_t bytes() const {
    return pieces_.bytes() + Kernel(attention_, of_.value, lanes(), nullptr).bytes();
  }

  void run(int64_t head) {
    turn_queries(head);
    attention_.positions = args_.positions + rows_.begin;
    attention_.out = args_.out;
    attention_.out.data = static_cast<std::byte*>(args_.out.data) +
                          (rows_.begin * args_.out.stride + head * of_.value) *
                              static_cast<int64_t>(size_of(args_.out.dtype));
    const int64_t end = args_.positions[rows_.end - 1] + 1;
    Kernel kernel(attention_, of_.value, lanes(), pieces_.rest());
    int64_t made = 0;
    kernel.run({0, rows_.size()}, 0, [&](int64_t block) {
      if (block >= made) {
        multiply_out(head, {block, std::min(block + kStretch, end)});
        made = block + kStretch;
      }
      const int64_t at = block % kStretch;
      return ChunkKeys<Element>{keys_ + at * size_, values_ + at * of_.value};
    });
  }

 private:
  static constexpr int64_t kStretch = 256;
  static_assert(kStretch % kAttentionBlock == 0);

  int64_t lanes() const { return round_up(rows_.size(), kBlockLanes); }

  void turn_queries(int64_t head) {
    for (int64_t r = rows_.begin; r < rows_.end; ++r) {
      const float* from = row<float>(args_.q, r) + head * size_;
      Element* to = queries_ + (r - rows_.begin) * size_;
      std::transform(from, from + of_.unturned, to, converted<Element>);
      const int64_t angles = r * (of_.turned / 2);
      turn_pairs(from + of_.unturned, args_.cosines + angles, args_.sines + angles, of_.turned,
                 to + of_.unturned);
    }
  }

  void multiply_out(int64_t head, Range positions) {
    const bool cached_bf16 = args_.cache.dtype == DType::bf16;
    rounds_       ? gather<bf16, bf16>(positions)
    : cached_bf16 ? gather<bf16, float>(positions)
                  : gather<float, float>(positions);
    const auto multiply = [&](int64_t first, int64_t n, Element* out, int64_t stride) {
      LinearArgs product = rows_product(of_, first, n);
      product.a = {latents_, rounds_ ? DType::bf16 : DType::f32, of_.rank};
      product.out = {out, args_.element, stride};
      cpu::linear(product, {0, round_up(positions.size(), kAttentionBlock)}, {0, n},
                  product_scratch_);
    };
    multiply(of_.key_row(head), of_.unturned, keys_, size_);
    multiply(of_.value_row(head), of_.value, values_, of_.value);
  }

  /// Latents for the products, zeros up to a whole block; and of keys what RoPE turned.
  template <class Cache, class Latent>
  void gather(Range positions) {
    auto* latents = reinterpret_cast<Latent*>(latents_);
    const int64_t cached = of_.rank + of_.turned;
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      const Cache* from = static_cast<const Cache*>(args_.cache.keys) +
                          args_.cache.place(rows_.begin, 0, p, cached);
      copy(from, of_.rank, latents + (p - positions.begin) * of_.rank);
      copy(from + of_.rank, of_.turned, keys_ + (p - positions.begin) * size_ + of_.unturned);
    }
    std::fill(latents + positions.size() * of_.rank,
              latents + round_up(positions.size(), kAttentionBlock) * of_.rank, Latent{});
  }
  template <class From, class To>
  static void copy(const From* from, int64_t count, To* to) {
    if constexpr (std::is_same_v<From, To>) {
      std::copy_n(from, count, to);
    } else {
      std::transform(from, from + count, to, [](From x) { return converted<To>(to_float(x)); });
    }
  }

  const LatentAttentionArgs& args_;
  const Range rows_;
  const LatentHeads& of_ = args_.of;
  const int64_t size_ = of_.unturned + of_.turned;  // of a key
  /// Whether latents meet the weights in bf16.
  const bool rounds_ = args_.element == DType::bf16 && args_.cache.dtype == DType::bf16 &&
                       (of_.w.dtype == DType::bf16 || of_.w.dtype == DType::e4m3fn);
  Pieces pieces_;
  Element* queries_;    // [rows, size_], of the head
  std::byte* latents_;  // [kStretch, rank], bf16 or f32
  Element* keys_;       // [kStretch, size_]
  Element* values_;     // [kStretch, value]
  std::span<std::byte> product_scratch_;
  AttentionArgs attention_;
};

template <class F>
decltype(auto) with_multiplied(const LatentAttentionArgs& args, F&& f) {
  AttentionArgs of_kernel;
  of_kernel.q.dtype = of_kernel.cache.dtype = args.element;
  const bool pairs = (args.of.unturned + args.of.turned) % 2 == 0;
  const bool bf16_dot = pairs && cpu::current_isa() == cpu::Isa::avx512_bf16;
  return with_chunk_kernel(of_kernel, bf16_dot, [&](auto* type) {
    using Kernel = std::remove_pointer_t<decltype(type)>;
    return f(static_cast<MultipliedAttention<Kernel, typename Kernel::Key>*>(nullptr));
  });
}

void attend_multiplied(const LatentAttentionArgs& args, Range rows, Range heads,
                       std::byte* scratch) {
  with_multiplied(args, [&](auto* type) {
    std::remove_pointer_t<decltype(type)> attention(args, rows, scratch);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      attention.run(head);
    }
  });
}

size_t multiplied_bytes(const LatentAttentionArgs& args, int64_t rows) {
  return with_multiplied(args, [&](auto* type) {
    return std::remove_pointer_t<decltype(type)>(args, {0, rows}, nullptr).bytes();
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

/// Lanes of attention that are absorbed together: rows times heads.
constexpr int64_t kAbsorbedLanes = 256;

/// Heads [heads.begin, heads.end) alone.
LatentHeads some_of(const LatentHeads& of, Range heads) {
  LatentHeads some = of;
  const LinearArgs first = rows_product(of, of.key_row(heads.begin), 0);
  some.heads = heads.size();
  some.w = first.w;
  some.scales = first.scales;
  return some;
}

AttentionArgs absorbed_attention(const LatentAttentionArgs& args, int64_t heads) {
  AttentionArgs attention;
  attention.head_dim = args.of.rank + args.of.turned;
  attention.q = {nullptr, args.element, heads * attention.head_dim};
  attention.out = {nullptr, DType::f32, heads * attention.head_dim};
  attention.cache = args.cache;
  attention.cache.values = attention.cache.keys;
  attention.query_heads = heads;
  attention.kv_heads = 1;
  attention.scale = args.scale;
  return attention;
}

/// Bytes of queries in the rows' space, as much again of what they attend to, both in scratch.
size_t absorbed_bytes(const LatentAttentionArgs& args, int64_t lanes) {
  const int64_t elements = lanes * (args.of.rank + args.of.turned);
  return round_up(static_cast<size_t>(elements) * sizeof(float), size_t{64});
}

void attend_absorbed(const LatentAttentionArgs& args, Range rows, Range heads,
                     std::span<std::byte> scratch) {
  const LatentHeads of = some_of(args.of, heads);
  const size_t each = absorbed_bytes(args, rows.size() * heads.size());
  const std::span<std::byte> rest = scratch.subspan(2 * each);
  const Range own{0, rows.size()};
  AttentionArgs attention = absorbed_attention(args, heads.size());
  attention.q.data = scratch.data();
  attention.out.data = scratch.data() + each;
  attention.positions = args.positions + rows.begin;
  if (attention.cache.tables != nullptr) {
    attention.cache.tables += rows.begin;
  }
  const int64_t angles = rows.begin * (of.turned / 2);
  latent_queries({.of = of,
                  .q = {static_cast<const float*>(args.q.data) + rows.begin * args.q.stride +
                            heads.begin * (of.unturned + of.turned),
                        DType::f32, args.q.stride},
                  .cosines = args.cosines + angles,
                  .sines = args.sines + angles,
                  .out = {scratch.data(), args.element, attention.q.stride}},
                 own, {0, of.heads});
  cpu::attention(attention, own, {0, 1}, 0, rest);
  latent_values({.of = of,
                 .a = {attention.out.data, DType::f32, attention.out.stride},
                 .pitch = attention.head_dim,
                 .out = {static_cast<std::byte*>(args.out.data) +
                             (rows.begin * args.out.stride + heads.begin * of.value) *
                                 static_cast<int64_t>(size_of(args.out.dtype)),
                         args.out.dtype, args.out.stride}},
                own, {0, of.heads}, rest);
}

}  // namespace

void latent_attention(const LatentAttentionArgs& args, Range rows, Range heads,
                      std::span<std::byte> scratch) {
  WEFT_CHECK(scratch.size() >= latent_attention_scratch_bytes(args, rows.size(), heads.size()));
  if (rows.size() > kAttentionFewRows && !args.absorbs &&
      multiplies_out(args.of, rows.size(), args.positions[rows.end - 1] + 1)) {
    WEFT_CPU_DISPATCH(attend_multiplied)(args, rows, heads, scratch.data());
    return;
  }
  const int64_t together = std::max<int64_t>(1, kAbsorbedLanes / rows.size());
  for (int64_t head = heads.begin; head < heads.end; head += together) {
    attend_absorbed(args, rows, {head, std::min(head + together, heads.end)}, scratch);
  }
}

size_t latent_attention_scratch_bytes(const LatentAttentionArgs& args, int64_t rows,
                                      int64_t heads) {
  const int64_t lanes = std::max(rows, std::min(rows * heads, kAbsorbedLanes));
  LatentValuesArgs values;
  values.of = args.of;
  const size_t absorbed = 2 * absorbed_bytes(args, lanes) +
                          std::max(attention_scratch_bytes(absorbed_attention(args, heads), rows),
                                   latent_values_scratch_bytes(values, rows));
  return std::max(absorbed, WEFT_CPU_DISPATCH(multiplied_bytes)(args, rows));
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
