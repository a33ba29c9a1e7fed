#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "point_time.h"
#include "tessera/core/machine_load.h"
#include "tessera/lab/calibrate.h"

namespace tessera {

inline double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Throws Error{kInvalidArgument}.
void check_calibration(const CalibrationOptions& options);

/// A calibration in progress: what its points have used of the budget, and how undisturbed they
/// were.
class CalibrationRun {
 public:
  /// A run of so many points. `clock` gives seconds, `read` the counters of the machine: tests have
  /// their own.
  CalibrationRun(const CalibrationOptions& options, int points);
  CalibrationRun(const CalibrationOptions& options, int points, std::function<double()> clock,
                 std::function<MachineReading()> read);

  /// Throws Error{kAborted} if the options' progress says so.
  void announce(const std::string& what);
  /// The next point was measured, or left out.
  void finish() { ++done_; }
  void leave_out();

  /// For the batches of the next point.
  double seconds_of_point() const;
  /// Whether there is time for a point whose calls take so long.
  bool suffices(double seconds_of_call) const;
  /// Likewise for one that is measured again, for which a part of the budget is kept.
  bool suffices_again(double seconds_of_call) const;

  void record(const PointTime& time);
  /// The noise of the points that were recorded, and of the machine since the beginning, `cores` of
  /// which the measurements kept busy.
  MeasurementNoise noise(int cores) const;

 private:
  double used() const { return clock_() - begin_; }

  const CalibrationOptions& options_;
  const int all_;
  const std::function<double()> clock_;
  const std::function<MachineReading()> read_;
  const double begin_;
  const MachineReading machine_;
  int done_ = 0;
  std::int64_t left_out_ = 0, disturbed_ = 0;
  std::vector<double> spreads_;
};

}  // namespace tessera
