#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kernel_probes.h"
#include "tessera/lab/calibrate.h"

namespace tessera {

constexpr int kBatches = 5;  ///< of which the fastest counts: what others do only slows down

inline double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Throws Error{kInvalidArgument}.
void check_calibration(const CalibrationOptions& options);
/// Throws Error{kAborted} if `options.progress` says so.
void announce_probe(const CalibrationOptions& options, const std::string& what, int done, int all);

/// Seconds of one call. `run` gives those of a batch of so many; one batch takes about a fifth of
/// `budget` seconds.
double fastest_call(double budget, const std::function<double(int calls)>& run);

/// Every kernel of a step at many sizes, to be timed one after the other.
class KernelCalibration {
 public:
  KernelCalibration(std::string source, int coarseness)
      : source_(std::move(source)), coarseness_(coarseness) {}

  /// Adds the kernels of a rank with so many threads; 0: of a GPU. `ranks` of them run at once.
  void add(int threads, int ranks);
  int size() const { return static_cast<int>(tasks_.size()); }
  /// Adds to `profile` the rate of each kernel, and by dtype the fastest GEMM as the peak.
  void run(HardwareProfile& profile, const std::function<void(const std::string&)>& announce,
           const std::function<double(const KernelProbe&, int threads)>& seconds_of);

 private:
  struct Task {
    int threads = 1, ranks = 1;
    std::string dtype;
    KernelProbe probe;
  };
  const std::string source_;
  const int coarseness_;
  std::vector<Task> tasks_;
};

}  // namespace tessera
