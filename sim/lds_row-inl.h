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

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
