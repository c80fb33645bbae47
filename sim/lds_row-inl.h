// Included inside foreach_isa.h only.
namespace weft::sim {
namespace WEFT_SIM_ISA {

inline bool in_a_row(const uint32_t* addresses, uint32_t step) {
  uint32_t apart = addresses[0] & 3;
  for (uint32_t l = 0; l < kLanes; ++l) {
    apart |= addresses[l] ^ (addresses[0] + l * step);
  }
  return apart == 0;
}

/// As note_words(), of neighbouring words of 64 lanes. False: nothing has changed.
template <int kWords>
inline bool note_row(LdsShadow& shadow, uint32_t word, const LdsByte& mark, int32_t self,
                     bool writes) {
  constexpr int kCount = kLanes * kWords;
  uint16_t* __restrict state = &shadow.state[word];
  int32_t* __restrict written = &shadow.written[word];
  int32_t* __restrict read = &shadow.read[word];
  const int32_t unordered = (shadow.ordered + 1) << 5;
  const int32_t unsettled = (shadow.settled + 1) << 4;
  const int wanted = writes ? 0 : kAllWritten;
  int bad = 0;
  for (int k = 0; k < kCount; ++k) {
    bad |= (state[k] & (kMet | kSplit | kSame | wanted)) ^ wanted;
    const bool others = ((written[k] & 15) != self) | ((state[k] & kStraight) != 0);
    bad |= static_cast<int>((written[k] >= unsettled) & others);
  }
  if (writes || shadow.flags) {
    for (int k = 0; k < kCount; ++k) {
      bad |= static_cast<int>((read[k] >= unordered) & ((read[k] & 31) != self));
    }
  }
  if (bad != 0) {
    return false;
  }
  if (writes) {
    uint32_t* __restrict writer = &shadow.writer[word];
    uint32_t* __restrict number = &shadow.number[word];
    for (int k = 0; k < kCount; ++k) {
      state[k] = mark.state;
      written[k] = mark.written;
      writer[k] = mark.writer;
      number[k] = mark.number;
    }
  } else {
    for (int k = 0; k < kCount; ++k) {
      const bool alone = (read[k] < unordered) | ((read[k] & 31) == self);
      read[k] = alone ? mark.read : read[k] | 16;
    }
  }
  return true;
}

#if WEFT_SIM_AVX512
inline __m512i splat512(int32_t x) { return _mm512_set1_epi32(x); }
/// The word k of sixteen lanes.
inline __m512i words_of(const uint32_t* addresses, int k) {
  return _mm512_add_epi32(_mm512_srli_epi32(_mm512_loadu_si512(addresses), 2), splat512(k));
}
inline __mmask16 is_self(__m512i marks, int32_t bits, int32_t self) {
  return _mm512_cmpeq_epi32_mask(_mm512_and_si512(marks, splat512(bits)), splat512(self));
}
#endif

/// As note_row(), of aligned words anywhere: kWords from each address on, some of which lanes may
/// share. False as well where the processor has no instructions for it.
template <int kWords>
inline bool note_spread([[maybe_unused]] LdsShadow& shadow,
                        [[maybe_unused]] const uint32_t* addresses,
                        [[maybe_unused]] const LdsByte& mark, [[maybe_unused]] int32_t self,
                        [[maybe_unused]] bool writes) {
#if WEFT_SIM_AVX512
  const __m512i unordered = splat512((shadow.ordered + 1) << 5);
  const __m512i unsettled = splat512((shadow.settled + 1) << 4);
  const int32_t wanted = writes ? 0 : kAllWritten;
  __m512i odd = _mm512_setzero_si512();
  __mmask16 bad = 0;
  for (int l = 0; l < kLanes; l += 16) {
    odd = _mm512_or_si512(odd, _mm512_loadu_si512(addresses + l));
    for (int k = 0; k < kWords; ++k) {
      const __m512i at = words_of(addresses + l, k);
      // There is one more state than words, so that two of them may be read together.
      const __m512i state = _mm512_i32gather_epi32(at, shadow.state.data(), 2);
      const __m512i written = _mm512_i32gather_epi32(at, shadow.written.data(), 4);
      const __m512i looked = _mm512_and_si512(state, splat512(kMet | kSplit | kSame | wanted));
      const __mmask16 mine =
          is_self(written, 15, self) & _mm512_testn_epi32_mask(state, splat512(kStraight));
      bad |= _mm512_cmpneq_epi32_mask(looked, splat512(wanted));
      bad |= _mm512_cmpge_epi32_mask(written, unsettled) & ~mine;
      if (writes || shadow.flags) {
        const __m512i read = _mm512_i32gather_epi32(at, shadow.read.data(), 4);
        bad |= _mm512_cmpge_epi32_mask(read, unordered) & ~is_self(read, 31, self);
      }
    }
  }
  if (bad != 0 || _mm512_test_epi32_mask(odd, splat512(3)) != 0) {
    return false;
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int k = 0; writes && k < kWords; ++k) {
      shadow.state[addresses[l] / 4 + static_cast<uint32_t>(k)] = mark.state;
    }
  }
  for (int l = 0; l < kLanes; l += 16) {
    for (int k = 0; k < kWords; ++k) {
      const __m512i at = words_of(addresses + l, k);
      if (writes) {
        const auto writer = static_cast<int32_t>(mark.writer);
        const auto number = static_cast<int32_t>(mark.number);
        _mm512_i32scatter_epi32(shadow.written.data(), at, splat512(mark.written), 4);
        _mm512_i32scatter_epi32(shadow.writer.data(), at, splat512(writer), 4);
        _mm512_i32scatter_epi32(shadow.number.data(), at, splat512(number), 4);
      } else {
        const __m512i read = _mm512_i32gather_epi32(at, shadow.read.data(), 4);
        const __mmask16 alone = _mm512_cmplt_epi32_mask(read, unordered) | is_self(read, 31, self);
        const __m512i shared = _mm512_or_si512(read, splat512(16));
        _mm512_i32scatter_epi32(shadow.read.data(), at,
                                _mm512_mask_mov_epi32(shared, alone, splat512(mark.read)), 4);
      }
    }
  }
  return true;
#else
  return false;
#endif
}

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
