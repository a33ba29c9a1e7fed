#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// When an action ran, in seconds (virtual or measured).
struct ActionSpan {
  int action = -1;
  Lane lane = Lane::kCompute;
  double begin = 0.0;
  double end = 0.0;
  std::int64_t step = 0;  ///< as Executor::begin_step counts
};

/// Where the time of a step went. Sums of interval unions, so overlapping work counts once.
struct TimelineSummary {
  double step_seconds = 0.0;           ///< first begin to last end
  double compute_seconds = 0.0;        ///< compute or optimizer lane busy
  double communication_seconds = 0.0;  ///< gather or reduce lane busy
  double exposed_seconds = 0.0;        ///< gather or reduce lane busy while those are idle
                                       ///< (copies to the host count in step_seconds only)
};

TimelineSummary summarize(const std::vector<ActionSpan>& spans);

/// How long some lanes work, overlapping work counted once.
struct LaneTime {
  double busy = 0.0;
  double exposed = 0.0;  ///< while neither the compute lane nor the optimizer lane does
};
LaneTime time_of(std::initializer_list<Lane> lanes, const std::vector<ActionSpan>& spans);

/// By span: how long neither the compute lane nor the optimizer lane works while it runs. Where the
/// spans of a lane do not overlap, they add up to the lane's LaneTime::exposed.
std::vector<double> exposed_by_span(const std::vector<ActionSpan>& spans);

}  // namespace tessera
