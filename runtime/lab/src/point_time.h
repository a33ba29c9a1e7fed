#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

/// A number of calls, timed together.
struct BatchTime {
  double seconds = 0.0;
  double running = 0.0;      ///< CPU seconds of the thread that worked alone; 0: not known
  double preemptions = 0.0;  ///< involuntary context switches for each core in use; 0: or not known

  /// A thread lost its core: not as often as any machine's own threads take it, some times a
  /// second, and not for longer than a part of the time.
  bool is_disturbed() const;
};

/// How long a call takes.
struct PointTime {
  double seconds = 0.0;    ///< in the fastest batch: what others do only slows down
  double spread = 0.0;     ///< of the batches, relative_spread
  bool disturbed = false;  ///< no batch is without a disturbance, or they are too far apart

  /// The better time of a point that is measured a second time.
  static PointTime better(const PointTime& a, const PointTime& b);
};

/// So often a point that was disturbed is measured again.
constexpr int kMostRepeats = 3;

PointTime summarize(const std::vector<BatchTime>& batches, int calls);

/// Five batches that together last about `seconds`. Calls that are longer than a batch are timed
/// one by one, long ones only twice. `run` gives the time of a batch of so many calls; the first
/// one is not timed, since libraries generate code and memory is touched.
PointTime time_point(double seconds, const std::function<BatchTime(int calls)>& run);

/// How a calibration spends the time that it has. `left` are seconds.
namespace calibration_time {

/// For the batches of one of so many points: `wanted`, or as much less as its share is.
double of_point(double left, std::int64_t points_left, double wanted);
/// Whether a point whose calls take so long may be measured: otherwise the rate of smaller sizes
/// stands for it.
bool suffices(double left, std::int64_t points_left, double seconds_of_call);
/// Likewise for one that is measured again: it may take all that is left.
bool suffices_again(double left, double seconds_of_call);

}  // namespace calibration_time
}  // namespace tessera
