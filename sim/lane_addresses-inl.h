// Included inside foreach_isa.h only.
namespace weft::sim {
namespace WEFT_SIM_ISA {

inline bool equally_apart(const uint64_t* address, int count, uint64_t step) {
  uint64_t place = address[0];
  uint64_t apart = 0;
  for (int l = 0; l < count; ++l, place += step) {
    apart |= address[l] ^ place;
  }
  return apart == 0;
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
