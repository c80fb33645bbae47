// Included inside foreach_isa.h only.
namespace weft::sim {
namespace WEFT_SIM_ISA {

template <class T, class Count>
T apart_from(const T* address, Count count, T step) {
  T apart = 0;
  for (int l = 0; l < count; ++l) {
    apart |= address[l] ^ (address[0] + static_cast<T>(l) * step);
  }
  return apart;
}
template <class T>
bool equally_apart(const T* address, int count, T step) {
  // All lanes, as a rule: a loop whose end the compiler knows.
  return count == kLanes ? apart_from(address, std::integral_constant<int, kLanes>(), step) == 0
                         : apart_from(address, count, step) == 0;
}

/// Of all lanes, `step` bytes each and that far apart.
inline LaneRow row_of_all(const uint32_t* low, const uint32_t* high, uint64_t base, uint32_t step) {
  uint32_t apart = 0;
  for (int l = 0; l < kLanes; ++l) {
    apart |= low[l] ^ (low[0] + static_cast<uint32_t>(l) * step);
  }
  uint64_t top = 0;
  if (high != nullptr) {
    for (int l = 0; l < kLanes; ++l) {
      apart |= high[l] ^ high[0];
    }
    top = static_cast<uint64_t>(high[0]) << 32;
  }
  constexpr uint64_t kLast = kLanes - 1;
  if (apart != 0 || low[0] + kLast * step > UINT32_MAX) {
    return {};
  }
  const uint64_t begin = base + top + low[0];
  return {~uint64_t{0}, begin, begin + kLanes * uint64_t{step}, step};
}

#if !WEFT_SIM_AVX512
/// Four lanes' four words, four registers apart, or the other way round.
inline void transpose(__m128i (&rows)[4]) {
  const __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]);
  const __m128i b = _mm_unpackhi_epi32(rows[0], rows[1]);
  const __m128i c = _mm_unpacklo_epi32(rows[2], rows[3]);
  const __m128i d = _mm_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm_unpacklo_epi64(a, c);
  rows[1] = _mm_unpackhi_epi64(a, c);
  rows[2] = _mm_unpacklo_epi64(b, d);
  rows[3] = _mm_unpackhi_epi64(b, d);
}
#endif

inline void list_row(uint64_t begin, uint64_t step, int count, uint64_t* address) {
  for (int l = 0; l < count; ++l) {
    address[l] = begin + static_cast<uint64_t>(l) * step;
  }
}

/// Four words of each lane that lie one lane after the other, to four registers.
inline void load_quads(const void* memory, uint32_t* out) {
#if WEFT_SIM_AVX512
  const auto* from = static_cast<const uint32_t*>(memory);
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  for (int l = 0; l < kLanes; l += 16, from += 64) {
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + 16);
    const __m512i c = _mm512_loadu_si512(from + 32);
    const __m512i d = _mm512_loadu_si512(from + 48);
    const __m512i low = _mm512_permutex2var_epi32(a, first, b);
    const __m512i high = _mm512_permutex2var_epi32(c, first, d);
    const __m512i low2 = _mm512_permutex2var_epi32(a, second, b);
    const __m512i high2 = _mm512_permutex2var_epi32(c, second, d);
    _mm512_storeu_si512(out + l, _mm512_shuffle_i64x2(low, high, 0x44));
    _mm512_storeu_si512(out + kLanes + l, _mm512_shuffle_i64x2(low, high, 0xee));
    _mm512_storeu_si512(out + 2 * kLanes + l, _mm512_shuffle_i64x2(low2, high2, 0x44));
    _mm512_storeu_si512(out + 3 * kLanes + l, _mm512_shuffle_i64x2(low2, high2, 0xee));
  }
#else
  const auto* from = static_cast<const __m128i*>(memory);
  for (int l = 0; l < kLanes; l += 4, from += 4) {
    __m128i rows[4] = {_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2),
                       _mm_loadu_si128(from + 3)};
    transpose(rows);
    for (int k = 0; k < 4; ++k) {
      _mm_store_si128(reinterpret_cast<__m128i*>(out + k * kLanes + l), rows[k]);
    }
  }
#endif
}
inline void store_quads(const uint32_t* data, void* memory) {
#if WEFT_SIM_AVX512
  auto* to = static_cast<uint32_t*>(memory);
  const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  for (int l = 0; l < kLanes; l += 16, to += 64) {
    const __m512i a = _mm512_loadu_si512(data + l);
    const __m512i b = _mm512_loadu_si512(data + kLanes + l);
    const __m512i c = _mm512_loadu_si512(data + 2 * kLanes + l);
    const __m512i d = _mm512_loadu_si512(data + 3 * kLanes + l);
    const __m512i low = _mm512_shuffle_i64x2(a, b, 0x44);
    const __m512i high = _mm512_shuffle_i64x2(a, b, 0xee);
    const __m512i low2 = _mm512_shuffle_i64x2(c, d, 0x44);
    const __m512i high2 = _mm512_shuffle_i64x2(c, d, 0xee);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(low, first, low2));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi32(low, second, low2));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi32(high, first, high2));
    _mm512_storeu_si512(to + 48, _mm512_permutex2var_epi32(high, second, high2));
  }
#else
  auto* to = static_cast<__m128i*>(memory);
  for (int l = 0; l < kLanes; l += 4, to += 4) {
    __m128i rows[4];
    for (int k = 0; k < 4; ++k) {
      rows[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(data + k * kLanes + l));
    }
    transpose(rows);
    for (int k = 0; k < 4; ++k) {
      _mm_storeu_si128(to + k, rows[k]);
    }
  }
#endif
}

/// A word of each lane, kApart words from one to the next.
template <int kApart>
void store_apart(const uint32_t* data, void* memory) {
  auto* to = static_cast<uint32_t*>(memory);
#if WEFT_SIM_AVX512
  constexpr __mmask16 kPlaces = kApart == 2 ? 0x5555 : 0x1111;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first = _mm512_srli_epi32(lanes, kApart / 2);
  for (int l = 0; l < kLanes; l += 16, to += 16 * kApart) {
    const __m512i words = _mm512_loadu_si512(data + l);
    for (int k = 0; k < kApart; ++k) {
      const __m512i from = _mm512_add_epi32(first, _mm512_set1_epi32(16 / kApart * k));
      _mm512_mask_storeu_epi32(to + 16 * k, kPlaces, _mm512_permutexvar_epi32(from, words));
    }
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    to[kApart * l] = data[l];
  }
#endif
}

/// A word of each lane, eight bytes from one to the next, and back.
inline void load_every_other(const void* memory, uint32_t* out) {
  const auto* from = static_cast<const uint32_t*>(memory);
#if WEFT_SIM_AVX512
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  for (int l = 0; l < kLanes; l += 16, from += 32) {
    // Behind the last word nothing need be.
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = _mm512_maskz_loadu_epi32(0x5555, from + 16);
    _mm512_storeu_si512(out + l, _mm512_permutex2var_epi32(low, even, high));
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    out[l] = from[2 * l];
  }
#endif
}
inline void store_every_other(const uint32_t* data, void* memory) { store_apart<2>(data, memory); }

/// A word of each lane, sixteen bytes from one to the next, and back.
inline void load_every_fourth(const void* memory, uint32_t* out) {
  const auto* from = static_cast<const uint32_t*>(memory);
#if WEFT_SIM_AVX512
  const __m512i fourth = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
  for (int l = 0; l < kLanes; l += 16, from += 64) {
    const __m512i low =
        _mm512_permutex2var_epi32(_mm512_loadu_si512(from), fourth, _mm512_loadu_si512(from + 16));
    // Behind the last word nothing need be.
    const __m512i high = _mm512_permutex2var_epi32(_mm512_loadu_si512(from + 32), fourth,
                                                   _mm512_maskz_loadu_epi32(0x1111, from + 48));
    _mm512_storeu_si512(out + l, _mm512_shuffle_i64x2(low, high, 0x44));
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    out[l] = from[4 * l];
  }
#endif
}
inline void store_every_fourth(const uint32_t* data, void* memory) { store_apart<4>(data, memory); }

/// Two words of each lane that lie one lane after the other, to two registers and back.
inline void load_pairs(const void* memory, uint32_t* out) {
  const auto* from = static_cast<const uint32_t*>(memory);
#if WEFT_SIM_AVX512
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int l = 0; l < kLanes; l += 16, from += 32) {
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = _mm512_loadu_si512(from + 16);
    _mm512_storeu_si512(out + l, _mm512_permutex2var_epi32(low, even, high));
    _mm512_storeu_si512(out + kLanes + l, _mm512_permutex2var_epi32(low, odd, high));
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    out[l] = from[2 * l];
    out[kLanes + l] = from[2 * l + 1];
  }
#endif
}
inline void store_pairs(const uint32_t* data, void* memory) {
  auto* to = static_cast<uint32_t*>(memory);
#if WEFT_SIM_AVX512
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int l = 0; l < kLanes; l += 16, to += 32) {
    const __m512i a = _mm512_loadu_si512(data + l);
    const __m512i b = _mm512_loadu_si512(data + kLanes + l);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(a, low, b));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi32(a, high, b));
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    to[2 * l] = data[l];
    to[2 * l + 1] = data[kLanes + l];
  }
#endif
}

inline void wide_addresses(const uint32_t* low, const uint32_t* high, uint64_t base,
                           uint64_t* address) {
  for (int l = 0; l < kLanes; ++l) {
    address[l] = base + (low[l] | static_cast<uint64_t>(high[l]) << 32);
  }
}

inline uint64_t buffer_addresses(const uint32_t* offset, uint32_t immediate, uint64_t base,
                                 int64_t most, uint64_t* address) {
  int64_t least = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t place = uint64_t{offset[l]} + immediate;
    address[l] = base + place;
    least |= most - static_cast<int64_t>(place);  // negative when one of them is
  }
  uint64_t beyond = 0;
  for (int l = 0; least < 0 && l < kLanes; ++l) {
    const uint64_t place = uint64_t{offset[l]} + immediate;
    beyond |= static_cast<uint64_t>(most < static_cast<int64_t>(place)) << l;
  }
  return beyond;
}

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
