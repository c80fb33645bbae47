// Where a resident kernel's workers are on the chip.
#pragma once

#include <cstdint>

#include "arch/cdna/target.h"

namespace weft::cdna {

/// How far one worker is from another: what they share. Each step is farther than the one before.
enum class Distance : uint8_t {
  cu,      ///< it is the same worker
  xcd,     ///< an L2
  iod,     ///< an I/O die, under the two XCDs of an MI300X's or the four of an MI355X's
  device,  ///< the Infinity Cache alone
};
inline constexpr int kDistances = 4;

/// Workgroups are dealt to XCDs in turn; worker n is workgroup n.
class Topology {
 public:
  explicit constexpr Topology(Target target)
      : xcds_(limits_of(target).xcds), of_iod_(xcds_ / limits_of(target).iods) {}

  constexpr int xcds() const { return xcds_; }
  constexpr int xcd(int64_t worker) const { return static_cast<int>(worker % xcds_); }
  constexpr int iod_of(int xcd) const { return xcd / of_iod_; }
  constexpr Distance between(int64_t a, int64_t b) const {
    return a == b                             ? Distance::cu
           : xcd(a) == xcd(b)                 ? Distance::xcd
           : iod_of(xcd(a)) == iod_of(xcd(b)) ? Distance::iod
                                              : Distance::device;
  }

 private:
  int xcds_;
  int of_iod_;
};

}  // namespace weft::cdna
