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

/// Workgroups are dealt to XCDs in turn. Workers are numbered XCD by XCD, so that neighbours in
/// number share one.
class Topology {
 public:
  constexpr Topology(Target target, int64_t workers)
      : xcds_(limits_of(target).xcds),
        of_iod_(xcds_ / limits_of(target).iods),
        each_(workers / xcds_),
        more_(workers % xcds_) {}

  constexpr int xcds() const { return xcds_; }
  constexpr int xcd(int64_t worker) const {
    const int64_t longer = more_ * (each_ + 1);  // workers of XCDs that have one more
    return static_cast<int>(worker < longer ? worker / (each_ + 1)
                                            : more_ + (worker - longer) / each_);
  }
  /// The worker that a workgroup is.
  constexpr int64_t worker(int64_t workgroup) const {
    const int64_t xcd = workgroup % xcds_;
    return xcd * each_ + (xcd < more_ ? xcd : more_) + workgroup / xcds_;
  }
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
  int64_t each_, more_;  ///< workers of an XCD; XCDs that have one more
};

}  // namespace weft::cdna
