// Comparisons (v_cmp_*, v_cmpx_*, v_cmp_class_*): a bit of a mask for each lane. Included inside
// foreach_isa.h only.
#include "sim/vector-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

/// Bit l is set where word l is not zero.
inline uint64_t mask_of(const uint32_t* words) {
  uint64_t mask = 0;
#if WEFT_SIM_AVX512
  for (int l = 0; l < kLanes; l += 16) {
    const __m512i x = _mm512_loadu_si512(words + l);
    mask |= static_cast<uint64_t>(_mm512_test_epi32_mask(x, x)) << l;
  }
#else
  for (int l = 0; l < kLanes; l += 8) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + l));
    const __m256i zero = _mm256_cmpeq_epi32(x, _mm256_setzero_si256());
    const auto bits = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
    mask |= static_cast<uint64_t>(~bits & 255) << l;
  }
#endif
  return mask;
}

/// `kExecute`: v_cmpx, which sets EXEC, too.
template <class S, class S1, class F, bool kExecute>
struct Compare {
  static void run(Wave& w, const Instruction& i) {
    alignas(64) uint32_t tmp[2][2 * kLanes];
    alignas(64) uint32_t out[kLanes];
    const FloatMode mode(w, S::kType);
    const uint32_t* a = load<S>(w, i, 0, tmp[0]);
    const uint32_t* b = load<S1>(w, i, 1, tmp[1]);
    const F f{};
    WEFT_SIM_LANES { out[l] = f(S::get(a, l), S1::get(b, l)) ? 1 : 0; }
    const uint64_t result = mask_of(out) & w.exec();
    w.write64(i.operand[0], result);
    if constexpr (kExecute) {
      w.set_pair(kExec, result);
    }
  }
};

template <class S, class S1, class F>
constexpr Row compare(std::string_view name, F, bool execute) {
  return {.name = name,
          .run = execute ? &Compare<S, S1, F, true>::run : &Compare<S, S1, F, false>::run,
          .types = {Type::b64, S::kType, S1::kType}};
}

/// V_CMP_CLASS: which of the classes in the mask does a number belong to.
template <class T>
bool in_class(T x, uint32_t classes) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  const U bits = std::bit_cast<U>(x);
  const bool negative = bits >> (sizeof(T) * 8 - 1) != 0;
  const U magnitude = bits << 1 >> 1;
  const U infinity = ((U{1} << (sizeof(T) * 8 - 1 - kMantissa)) - 1) << kMantissa;
  int c = 0;
  if (magnitude > infinity) {
    c = (magnitude >> (kMantissa - 1) & 1) != 0 ? 1 : 0;
  } else if (magnitude == infinity) {
    c = negative ? 2 : 9;
  } else if (magnitude >> kMantissa != 0) {
    c = negative ? 3 : 8;
  } else if (magnitude != 0) {
    c = negative ? 4 : 7;
  } else {
    c = negative ? 5 : 6;
  }
  return (classes >> c & 1) != 0;
}
/// The same for a binary16 that was widened, whose denormals are normal numbers now.
inline bool half_in_class(float x, uint32_t classes) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  const bool denormal = magnitude != 0 && magnitude < std::bit_cast<uint32_t>(0x1p-14F);
  return in_class(denormal ? std::bit_cast<float>((bits & 0x80000000) | 1) : x, classes);
}

// Six integer relations and their constants, for v_cmp and v_cmpx.
#define WEFT_INTEGER_COMPARES(S, prefix, type, execute)                       \
  compare<S, S>(                                                              \
      prefix "f_" type, [](auto, auto) { return false; }, execute),           \
      compare<S, S>(                                                          \
          prefix "lt_" type, [](auto a, auto b) { return a < b; }, execute),  \
      compare<S, S>(                                                          \
          prefix "eq_" type, [](auto a, auto b) { return a == b; }, execute), \
      compare<S, S>(                                                          \
          prefix "le_" type, [](auto a, auto b) { return a <= b; }, execute), \
      compare<S, S>(                                                          \
          prefix "gt_" type, [](auto a, auto b) { return a > b; }, execute),  \
      compare<S, S>(                                                          \
          prefix "ne_" type, [](auto a, auto b) { return a != b; }, execute), \
      compare<S, S>(                                                          \
          prefix "ge_" type, [](auto a, auto b) { return a >= b; }, execute), \
      compare<S, S>(                                                          \
          prefix "t_" type, [](auto, auto) { return true; }, execute)
// Sixteen relations of floats; o: both are numbers, u: one is NaN, n..: not.
#define WEFT_FLOAT_COMPARES(S, prefix, type, execute)                                     \
  compare<S, S>(                                                                          \
      prefix "f_" type, [](auto, auto) { return false; }, execute),                       \
      compare<S, S>(                                                                      \
          prefix "lt_" type, [](auto a, auto b) { return a < b; }, execute),              \
      compare<S, S>(                                                                      \
          prefix "eq_" type, [](auto a, auto b) { return a == b; }, execute),             \
      compare<S, S>(                                                                      \
          prefix "le_" type, [](auto a, auto b) { return a <= b; }, execute),             \
      compare<S, S>(                                                                      \
          prefix "gt_" type, [](auto a, auto b) { return a > b; }, execute),              \
      compare<S, S>(                                                                      \
          prefix "lg_" type, [](auto a, auto b) { return a < b || a > b; }, execute),     \
      compare<S, S>(                                                                      \
          prefix "ge_" type, [](auto a, auto b) { return a >= b; }, execute),             \
      compare<S, S>(                                                                      \
          prefix "o_" type, [](auto a, auto b) { return a == a && b == b; }, execute),    \
      compare<S, S>(                                                                      \
          prefix "u_" type, [](auto a, auto b) { return a != a || b != b; }, execute),    \
      compare<S, S>(                                                                      \
          prefix "nge_" type, [](auto a, auto b) { return !(a >= b); }, execute),         \
      compare<S, S>(                                                                      \
          prefix "nlg_" type, [](auto a, auto b) { return !(a < b || a > b); }, execute), \
      compare<S, S>(                                                                      \
          prefix "ngt_" type, [](auto a, auto b) { return !(a > b); }, execute),          \
      compare<S, S>(                                                                      \
          prefix "nle_" type, [](auto a, auto b) { return !(a <= b); }, execute),         \
      compare<S, S>(                                                                      \
          prefix "neq_" type, [](auto a, auto b) { return a != b; }, execute),            \
      compare<S, S>(                                                                      \
          prefix "nlt_" type, [](auto a, auto b) { return !(a < b); }, execute),          \
      compare<S, S>(                                                                      \
          prefix "tru_" type, [](auto, auto) { return true; }, execute)
#define WEFT_CLASS_COMPARES(prefix, execute)                                                 \
  compare<F32, U32>(                                                                         \
      prefix "class_f32", [](float x, uint32_t c) { return in_class(x, c); }, execute),      \
      compare<F64, U32>(                                                                     \
          prefix "class_f64", [](double x, uint32_t c) { return in_class(x, c); }, execute), \
      compare<F16, U32>(                                                                     \
          prefix "class_f16", [](float x, uint32_t c) { return half_in_class(x, c); }, execute)
#define WEFT_ALL_COMPARES(prefix, execute)                \
  WEFT_FLOAT_COMPARES(F32, prefix, "f32", execute),       \
      WEFT_FLOAT_COMPARES(F64, prefix, "f64", execute),   \
      WEFT_FLOAT_COMPARES(F16, prefix, "f16", execute),   \
      WEFT_INTEGER_COMPARES(I32, prefix, "i32", execute), \
      WEFT_INTEGER_COMPARES(U32, prefix, "u32", execute), \
      WEFT_INTEGER_COMPARES(I64, prefix, "i64", execute), \
      WEFT_INTEGER_COMPARES(U64, prefix, "u64", execute), \
      WEFT_INTEGER_COMPARES(I16, prefix, "i16", execute), \
      WEFT_INTEGER_COMPARES(U16, prefix, "u16", execute), WEFT_CLASS_COMPARES(prefix, execute)

constexpr Row kCompareRows[] = {WEFT_ALL_COMPARES("v_cmp_", false),
                                WEFT_ALL_COMPARES("v_cmpx_", true)};

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
