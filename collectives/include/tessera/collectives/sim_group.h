#pragma once

#include <memory>
#include <string>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// Rank `rank` of a group of `size` ranks of which only this one exists: moves nothing, counts
/// calls and bytes. Time is charged by the stream that the caller submits to (see SimDevice).
std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size);

/// Where simulated ranks whose devices share a clock meet. Their groups are one family: what one of
/// them aborts fails all. May be destroyed before or after them.
class SimMeetings {
 public:
  SimMeetings();

 private:
  friend std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size, SimMeetings& meetings,
                                                      std::string name, int present);
  class Family;
  const std::shared_ptr<Family> family_;
};

/// A group of a communicator called `name`, `present` of whose ranks are simulated: each makes its
/// end with the same arguments but `rank`. The k-th call of one meets the k-th call of every other.
/// On its stream each arrives when what was submitted before is over, the call's cost included, and
/// all go on when the last has arrived. Calls between two ranks of more meet by themselves: the
/// k-th of one that names the other with the k-th of the other that names it.
///
/// A call that differs from one that it meets in kind, root, dtype or size, or sends to a rank that
/// sends, throws Error{kInvalidArgument} when it is issued, and counts for nothing. A stream that
/// waits for a call that is never issued is told by `synchronize`: Error{kTimeout} names the
/// communicator, the call and who did not arrive, Error{kAborted} the reason of an abort.
/// Streams must be of SimDevices, and all on one clock.
std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size, SimMeetings& meetings,
                                             std::string name, int present);

}  // namespace tessera
