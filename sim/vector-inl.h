// Reading sources and writing results of vector instructions, for all 64 lanes at once. Included
// inside foreach_isa.h only.
//
// An instruction's function is a loop over lanes between `source()` and `finish()`. Loops carry
// `ivdep`: a result register may be a source register, but then lane l only ever meets lane l, so
// every order of the lanes is right as long as a lane's sources are read before its result is
// written.
//
// Numbers: NaN results are quiet, their payload and sign are the host's. Transcendental functions
// are computed in double and rounded once, which is within every accuracy that the manuals state.

#define WEFT_SIM_LANES _Pragma("GCC ivdep") for (int l = 0; l < kLanes; ++l)

namespace weft::sim {
namespace WEFT_SIM_ISA {

// What an operand is to a row's function: `T` is the C++ type of a lane.
template <class Type_, Type kType_>
struct Word {
  using T = Type_;
  static constexpr Type kType = kType_;
  static constexpr int kWords = 1;
  static T get(const uint32_t* p, int l) { return std::bit_cast<T>(p[l]); }
  static void put(uint32_t* p, int l, T value) { p[l] = std::bit_cast<uint32_t>(value); }
};
template <class Type_, Type kType_>
struct Pair {
  using T = Type_;
  static constexpr Type kType = kType_;
  static constexpr int kWords = 2;
  static T get(const uint32_t* p, int l) {
    return std::bit_cast<T>(p[l] | static_cast<uint64_t>(p[l + kLanes]) << 32);
  }
  static void put(uint32_t* p, int l, T value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    p[l] = static_cast<uint32_t>(bits);
    p[l + kLanes] = static_cast<uint32_t>(bits >> 32);
  }
};
template <class Type_>
struct Half {  // a 16-bit integer
  using T = Type_;
  static constexpr Type kType = Type::b16;
  static constexpr int kWords = 1;
  static T get(const uint32_t* p, int l) { return static_cast<T>(p[l]); }
  static void put(uint32_t* p, int l, T value) { p[l] = static_cast<uint16_t>(value); }
};
using U32 = Word<uint32_t, Type::b32>;
using I32 = Word<int32_t, Type::b32>;
using F32 = Word<float, Type::f32>;
using U64 = Pair<uint64_t, Type::b64>;
using I64 = Pair<int64_t, Type::i64>;
using F64 = Pair<double, Type::f64>;
using U16 = Half<uint16_t>;
using I16 = Half<int16_t>;
/// binary16: widened to float when read, rounded once when written.
struct F16 : Word<float, Type::f16> {};

inline void splat(uint32_t* out, uint32_t value) {
  WEFT_SIM_LANES { out[l] = value; }
}

/// Register contents of an operand, `words` times 64 lanes; `tmp` holds them when no register does.
inline const uint32_t* plain_source(Wave& w, const Operand& o, uint32_t* tmp, int words) {
  if (o.kind == Operand::Kind::vgpr) {
    return w.lanes(o.index);
  }
  if (o.kind == Operand::Kind::constant) {
    return o.lanes;
  }
  const uint64_t value = w.read64(o);
  splat(tmp, static_cast<uint32_t>(value));
  if (words == 2) {
    splat(tmp + kLanes, static_cast<uint32_t>(value >> 32));
  }
  return tmp;
}

/// Writes lanes of `mask`, `words` registers.
inline void blend(uint32_t* to, const uint32_t* from, uint64_t mask, int words) {
  for (int word = 0; word < words; ++word, to += kLanes, from += kLanes) {
#if WEFT_SIM_AVX512
    for (int l = 0; l < kLanes; l += 16) {
      _mm512_mask_storeu_epi32(to + l, static_cast<__mmask16>(mask >> l),
                               _mm512_loadu_si512(from + l));
    }
#else
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (int l = 0; l < kLanes; l += 8) {
      const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask >> l)), bit);
      _mm256_maskstore_epi32(reinterpret_cast<int*>(to + l), _mm256_cmpeq_epi32(set, bit),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + l)));
    }
#endif
  }
}

/// A register's lanes as DPP moves them; those that are not in `readable` become 0.
inline void move_lanes(const DppLanes& lanes, uint64_t readable, const uint32_t* p, uint32_t* out) {
#if WEFT_SIM_AVX512
  if (lanes.within_rows) {
    for (int l = 0; l < kLanes; l += 16) {
      const __m512i from = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes.from.data() + l)));
      const __m512i row = _mm512_loadu_si512(p + l);
      _mm512_storeu_si512(out + l, _mm512_maskz_permutexvar_epi32(
                                       static_cast<__mmask16>(readable >> l), from, row));
    }
    return;
  }
#endif
  alignas(64) uint32_t all[kLanes];
  WEFT_SIM_LANES { all[l] = p[lanes.from[l]]; }
  std::memset(out, 0, sizeof all);
  blend(out, all, readable, 1);
}

/// A source after lane permutation, SDWA selection, abs and neg, in `tmp`.
[[gnu::noinline]] inline const uint32_t* modified_source(Wave& w, const Instruction& i, int k,
                                                         const uint32_t* p, uint32_t* tmp,
                                                         int words, Type type) {
  const Operand& o = i.operand[k];
  alignas(64) uint32_t moved[2 * kLanes];
  if (i.dpp != Dpp::none && k == i.row->results) {
    const DppLanes& lanes = find_dpp_lanes(i);
    const uint64_t readable = dpp_readable(lanes, w.exec());
    const bool whole = o.select == 6 && !o.negate && !o.absolute && p != tmp;
    uint32_t* to = whole ? tmp : moved;
    for (int word = 0; word < words; ++word) {
      move_lanes(lanes, readable, p + word * kLanes, to + word * kLanes);
    }
    if (whole) {
      return tmp;
    }
    p = moved;
  }
  if (words == 2) {
    const uint32_t clear = o.absolute && type == Type::f64 ? 0x7fffffff : 0xffffffff;
    const uint32_t flip = o.negate && type == Type::f64 ? 0x80000000 : 0;
    WEFT_SIM_LANES {
      const uint32_t low = p[l];
      const uint32_t high = (p[l + kLanes] & clear) ^ flip;
      tmp[l] = low;
      tmp[l + kLanes] = high;
    }
    return tmp;
  }
  const int shift = o.select < 4 ? 8 * o.select : o.select == 5 ? 16 : 0;
  const int keep = o.select < 4 ? 24 : o.select < 6 ? 16 : 0;  // 32 less the width
  const bool half = type == Type::f16;
  const uint32_t sign = half ? 0x8000 : 0x80000000;
  const bool is_float = type == Type::f32 || half;
  const uint32_t clear = o.absolute && is_float ? ~sign : 0xffffffff;
  const uint32_t flip = o.negate && is_float ? sign : 0;
  if (keep == 0) {
    WEFT_SIM_LANES { tmp[l] = (p[l] & clear) ^ flip; }
  } else if (o.sign_extend) {
    WEFT_SIM_LANES {
      tmp[l] = static_cast<uint32_t>(static_cast<int32_t>(p[l] >> shift << keep) >> keep);
    }
  } else {
    WEFT_SIM_LANES { tmp[l] = ((p[l] >> shift << keep >> keep) & clear) ^ flip; }
  }
  return tmp;
}

inline const uint32_t* source(Wave& w, const Instruction& i, int k, uint32_t* tmp, int words,
                              Type type) {
  const uint32_t* p = plain_source(w, i.operand[k], tmp, words);
  return i.modified ? modified_source(w, i, k, p, tmp, words, type) : p;
}

/// binary16 in the low halves of 64 words, as float bits. A signalling NaN stays one, which the
/// processor's own conversion does not do.
inline void widen(const uint32_t* halves, uint32_t* out) {
#if WEFT_SIM_AVX512
  for (int l = 0; l < kLanes; l += 16) {
    const __m512i words =
        _mm512_and_si512(_mm512_loadu_si512(halves + l), _mm512_set1_epi32(0xffff));
    const __mmask16 signaling =
        _mm512_cmpeq_epi32_mask(_mm512_and_si512(words, _mm512_set1_epi32(0x7e00)),
                                _mm512_set1_epi32(0x7c00)) &
        _mm512_test_epi32_mask(words, _mm512_set1_epi32(0x1ff));
    const __m512i wide = _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)));
    _mm512_storeu_si512(out + l,
                        _mm512_mask_xor_epi32(wide, signaling, wide, _mm512_set1_epi32(0x400000)));
  }
#else
  for (int l = 0; l < kLanes; l += 8) {
    const __m256i words =
        _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + l)),
                         _mm256_set1_epi32(0xffff));
    const __m256i quiet_clear = _mm256_cmpeq_epi32(
        _mm256_and_si256(words, _mm256_set1_epi32(0x7e00)), _mm256_set1_epi32(0x7c00));
    const __m256i payload = _mm256_cmpgt_epi32(_mm256_and_si256(words, _mm256_set1_epi32(0x1ff)),
                                               _mm256_setzero_si256());
    const __m128i h =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m256i wide = _mm256_castps_si256(_mm256_cvtph_ps(h));
    const __m256i flip =
        _mm256_and_si256(_mm256_and_si256(quiet_clear, payload), _mm256_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + l), _mm256_xor_si256(wide, flip));
  }
#endif
}

/// Floats to binary16 in the low halves; upper halves become zero. MODE's rounding for halves.
inline void narrow(const Wave& w, const uint32_t* floats, uint32_t* out) {
  const auto* f = reinterpret_cast<const float*>(floats);
#if WEFT_SIM_AVX512
  for (int l = 0; l < kLanes; l += 16) {
    const __m512 x = _mm512_loadu_ps(f + l);
    const __m256i h = w.special_float
                          ? _mm512_cvtps_ph(x, _MM_FROUND_CUR_DIRECTION)
                          : _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm512_storeu_si512(out + l, _mm512_cvtepu16_epi32(h));
  }
#else
  for (int l = 0; l < kLanes; l += 8) {
    const __m256 x = _mm256_loadu_ps(f + l);
    const __m128i h = w.special_float ? _mm256_cvtps_ph(x, _MM_FROUND_CUR_DIRECTION)
                                      : _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + l), _mm256_cvtepu16_epi32(h));
  }
#endif
  if ((w.mode >> 23 & 1) != 0) {  // FP16_OVFL: overflow stops at the largest number
    WEFT_SIM_LANES {
      const bool was_finite = (floats[l] & 0x7f800000) != 0x7f800000;
      out[l] = was_finite && (out[l] & 0x7fff) == 0x7c00 ? out[l] - 1 : out[l];
    }
  }
}

/// Source `k` counted from the first source, as S reads it.
template <class S>
const uint32_t* load(Wave& w, const Instruction& i, int k, uint32_t* tmp) {
  const int first = i.row->results;
  const uint32_t* p = source(w, i, first + k, tmp, S::kWords, S::kType);
  if constexpr (S::kType == Type::f16 || S::kType == Type::b16) {
    if ((i.op_sel >> k & 1) != 0) {
      // neg and abs came first and went to the low half: done again for the high one.
      const Operand& o = i.operand[first + k];
      const uint32_t* q = plain_source(w, o, tmp, 1);
      const bool is_float = S::kType == Type::f16;
      const uint32_t clear = o.absolute && is_float ? 0x7fff : 0xffff;
      const uint32_t flip = o.negate && is_float ? 0x8000 : 0;
      WEFT_SIM_LANES { tmp[l] = (q[l] >> 16 & clear) ^ flip; }
      p = tmp;
    }
    if constexpr (S::kType == Type::f16) {
      widen(p, tmp);
      p = tmp;
    }
  }
  return p;
}

/// Whether a result can go straight into its register.
inline bool direct(const Wave& w, const Instruction& i) {
  return w.exec() == ~uint64_t{0} && !i.altered && i.dpp == Dpp::none;
}

/// omod, then clamp to [0, 1]; NaN clamps to 0 under DX10_CLAMP. MODE.IEEE and denormal results
/// turn omod off; it makes zeros positive (CDNA 3 and 4 manuals, section 6.2.2).
template <class D>
void float_modifiers(const Wave& w, const Instruction& i, uint32_t* out) {
  using T = typename D::T;
  static constexpr float kFactors[] = {1, 2, 4, 0.5F};
  const T factor = kFactors[i.omod];
  const bool ieee = (w.mode >> 9 & 1) != 0;
  const bool denormals = (w.mode >> (D::kType == Type::f32 ? 4 : 6) & 2) != 0;
  const bool scales = i.omod != 0 && !ieee && !denormals;
  const bool dx10 = (w.mode >> 8 & 1) != 0;
  for (int l = 0; l < kLanes; ++l) {
    T x = D::get(out, l);
    if (scales) {
      x = x == 0 ? T(0) : x * factor;
    }
    if (i.clamp) {
      x = x != x ? (dx10 ? T(0) : x) : x > T(1) ? T(1) : x > T(0) ? x : T(0);
    }
    D::put(out, l, x);
  }
}

/// Puts a result of D (floats of F16 not yet narrowed) that lies in `out` into its register.
template <class D>
void finish(Wave& w, const Instruction& i, uint32_t* out) {
  uint32_t* to = w.lanes(i.operand[0].index);
  if constexpr (D::kType == Type::f32 || D::kType == Type::f64 || D::kType == Type::f16) {
    if (i.clamp || i.omod != 0) {
      float_modifiers<D>(w, i, out);
    }
  }
  if constexpr (D::kType == Type::f16) {
    narrow(w, out, out);
  }
  if constexpr (D::kType == Type::f16 || D::kType == Type::b16) {
    const int sources = i.operands - i.row->results;
    if ((i.op_sel >> sources & 1) != 0) {
      WEFT_SIM_LANES { out[l] = out[l] << 16 | (to[l] & 0xffff); }
    } else if ((i.row->flags & kKeepsHigh) != 0 && i.destination_select == 6) {
      WEFT_SIM_LANES { out[l] = (out[l] & 0xffff) | (to[l] & 0xffff0000); }
    }
  }
  if (i.destination_select != 6) {
    select_destination(i, to, out);
  }
  if (out != to) {
    const uint64_t mask = write_mask(w, i);
    if (mask == ~uint64_t{0}) {
      std::memcpy(to, out, sizeof(uint32_t) * kLanes * D::kWords);
    } else {
      blend(to, out, mask, D::kWords);
    }
  }
}

/// Whether rounding or denormals of this type are not the host's own way; then the host is told.
class FloatMode {
 public:
  [[gnu::always_inline]] FloatMode(const Wave& w, Type type) {
    if (w.special_float) [[unlikely]] {
      change(w.mode, type);
    }
  }
  ~FloatMode() {
    if (changed_) [[unlikely]] {
      _mm_setcsr(saved_);
    }
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  [[gnu::noinline]] void change(uint32_t mode, Type type) {
    saved_ = _mm_getcsr();
    const bool single = type == Type::f32;
    const uint32_t round = mode >> (single ? 0 : 2) & 3;
    const uint32_t denormal = mode >> (single ? 4 : 6) & 3;
    // MXCSR: rounding in 14:13 (0 nearest, 1 down, 2 up, 3 zero), FTZ 15, DAZ 6.
    static constexpr uint32_t kRound[] = {0, 2, 1, 3};
    _mm_setcsr((saved_ & ~0xe040U) | kRound[round] << 13 | ((denormal & 2) == 0 ? 0x8000U : 0) |
               ((denormal & 1) == 0 ? 0x40U : 0));
    changed_ = true;
  }

  uint32_t saved_ = 0;
  bool changed_ = false;
};

/// One lane at a time: D f(S...). The shape of nearly every vector instruction.
template <class Signature, class F>
struct Elementwise;

template <class D, class... S, class F>
struct Elementwise<D(S...), F> {
  static void run(Wave& w, const Instruction& i) {
    alignas(64) uint32_t tmp[sizeof...(S)][2 * kLanes];
    alignas(64) uint32_t result[2 * kLanes];
    const FloatMode mode(w, D::kType == Type::f32 || D::kType == Type::b32
                                ? std::tuple_element_t<0, std::tuple<S...>>::kType
                                : D::kType);
    constexpr bool kStaged = D::kType == Type::f16 || D::kType == Type::b16;
    const bool straight = !kStaged && direct(w, i);
    uint32_t* out = straight ? w.lanes(i.operand[0].index) : result;
    each(w, i, out, tmp, std::index_sequence_for<S...>());
    if (!straight) {
      finish<D>(w, i, out);
    }
  }

 private:
  template <size_t... K>
  static void each(Wave& w, const Instruction& i, uint32_t* out, uint32_t (*tmp)[2 * kLanes],
                   std::index_sequence<K...>) {
    const uint32_t* const p[] = {load<S>(w, i, K, tmp[K])...};
    const F f{};
    WEFT_SIM_LANES { D::put(out, l, f(S::get(p[K], l)...)); }
  }
};

template <class Signature>
struct Types;
template <class D, class... S>
struct Types<D(S...)> {
  static constexpr int kSources = sizeof...(S);
  static constexpr Row fill(Row row) {
    const Type types[] = {D::kType, S::kType...};
    for (size_t k = 0; k < std::size(types); ++k) {
      row.types[k] = types[k];
    }
    return row;
  }
};

/// A row whose function is F for each lane.
template <class Signature, class F>
constexpr Row row(std::string_view name, F, uint8_t flags = 0, Class cost = Class::valu) {
  return Types<Signature>::fill(
      {.name = name, .run = &Elementwise<Signature, F>::run, .cost = cost, .flags = flags});
}
/// The same at a quarter of the rate.
template <class Signature, class F>
constexpr Row slow(std::string_view name, F f, uint8_t flags = 0) {
  return row<Signature>(name, f, flags, Class::valu_slow);
}

/// The result register is the last source, too: v_fmac and the like, where it is printed once.
template <class Signature, class F>
struct Accumulate;
template <class D, class... S, class F>
struct Accumulate<D(S...), F> {
  static void run(Wave& w, const Instruction& i) {
    alignas(64) uint32_t tmp[sizeof...(S)][2 * kLanes];
    alignas(64) uint32_t old[2 * kLanes];
    alignas(64) uint32_t result[2 * kLanes];
    const FloatMode mode(w, D::kType);
    const uint32_t* c = w.lanes(i.operand[0].index);
    constexpr bool kStaged = D::kType == Type::f16;
    if constexpr (kStaged) {
      widen(c, old);
      c = old;
    }
    const bool straight = !kStaged && direct(w, i);
    uint32_t* out = straight ? w.lanes(i.operand[0].index) : result;
    each(w, i, out, c, tmp, std::index_sequence_for<S...>());
    if (!straight) {
      finish<D>(w, i, out);
    }
  }

 private:
  template <size_t... K>
  static void each(Wave& w, const Instruction& i, uint32_t* out, const uint32_t* c,
                   uint32_t (*tmp)[2 * kLanes], std::index_sequence<K...>) {
    const uint32_t* const p[] = {load<S>(w, i, K, tmp[K])...};
    const F f{};
    WEFT_SIM_LANES { D::put(out, l, f(S::get(p[K], l)..., D::get(c, l))); }
  }
};
template <class Signature, class F>
constexpr Row accumulate(std::string_view name, F, uint8_t flags = 0) {
  return Types<Signature>::fill(
      {.name = name, .run = &Accumulate<Signature, F>::run, .reads_result = 1, .flags = flags});
}

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
