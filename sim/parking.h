// Waves that wait for others without end, and how they wait without executing anything.
//
// A wave that comes back to an instruction with the same registers, having changed no memory since,
// does the same again for as long as what it read in between stays as it was. Such a wave is
// parked: it executes nothing until one of the words that it read changes. That is exact, whatever
// the loop looks like. A loop that counts its turns or reads a clock is never parked.
#pragma once

#include <memory>
#include <vector>

#include "sim/wave.h"

namespace weft::sim {

/// After a turn in which a wave changed nothing: runs it on by `step`, an instruction at a time,
/// and parks it if it only waits. It may also get on, come to a barrier or end. Tries less and less
/// often while it gets on.
void try_park(Wave& wave, void (*step)(Wave&));

/// Whether something that a parked wave watches has changed.
bool woken(const Wave& wave);

/// Parks a whole workgroup whose waves wait together: one asks, and tells the others through LDS
/// and at barriers, so that no wave by itself comes back to where it was. In a round each wave has
/// a turn. A group that begins a round as it began an earlier one, having changed no memory but
/// LDS in between, and that back to what it was, is parked as a wave is.
class GroupParking {
 public:
  GroupParking();
  ~GroupParking();

  void begin_visit() { rounds_ = 0; }
  /// After a round. Now and then it begins to look. True: the group is parked from now on.
  bool note_round(Workgroup& group, bool progressed);
  void end_visit(Workgroup& group);
  bool parked() const { return parked_; }
  /// Whether something has changed that the parked group watches.
  bool woken() const;
  void wake();

 private:
  struct State;
  std::unique_ptr<State> before_;  ///< null: it does not look
  std::vector<Watched> watched_;
  uint64_t rounds_ = 0;  ///< of this visit, since something else than LDS changed
  bool parked_ = false;
};

}  // namespace weft::sim
