#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "calibration_run.h"
#include "kernel_probes.h"
#include "point_time.h"
#include "tessera/lab/calibrate.h"

namespace tessera {

/// Every kernel of a step at many sizes, timed one after the other, the most important ones first.
class KernelCalibration {
 public:
  /// Gives the time of a call, measured for about so many seconds.
  using Timing = std::function<PointTime(const KernelProbe&, int threads, double seconds)>;

  KernelCalibration(std::string source, int coarseness)
      : source_(std::move(source)), coarseness_(coarseness) {}

  /// Adds the kernels of a rank with so many threads; 0: of a GPU. `ranks` of them run at once.
  void add(int threads, int ranks);
  int size() const { return static_cast<int>(points_.size()); }
  /// Adds to `profile` the rate of each kernel, and by dtype the fastest GEMM as the peak.
  void run(HardwareProfile& profile, CalibrationRun& calibration, const Timing& timing);

 private:
  struct Point {
    int threads = 1, ranks = 1;
    int stage = 0;  ///< those of a lower one come first
    std::string dtype, kernel;
    KernelProbe probe;
    std::optional<PointTime> time{};
  };
  using Key = std::tuple<int, std::string, std::string>;  ///< threads, dtype, kernel

  static Key key_of(const Point& point) { return {point.threads, point.dtype, point.kernel}; }
  void measure_all(CalibrationRun& calibration, const Timing& timing);
  void measure_again(CalibrationRun& calibration, const Timing& timing);
  void write(HardwareProfile& profile) const;

  const std::string source_;
  const int coarseness_;
  std::vector<Point> points_;
};

}  // namespace tessera
