#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/lab/hardware_profile.h"
#include "tessera/lab/kernel_calls.h"

namespace tessera {

/// Seconds of kernels, by what they rest on.
struct PredictedSeconds {
  std::array<double, kEvidences> by{};  ///< by Evidence
  double spread = 0.0;  ///< of these, as StepTimes::Kernel has it, in seconds: if all vary together

  double total() const;
  /// On which most of them rest.
  Evidence most() const;
  PredictedSeconds& operator+=(const PredictedSeconds& other);
};

/// Seconds of a kernel that nothing disturbs, by a rank with so many threads, when it is timed
/// alone.
double seconds_alone(const KernelCall& call, const HardwareProfile& profile, int threads = 1);

/// Predicts kernels of passes and of updates of a rank with so many threads.
///
/// A kernel is measured if the profile's steps have timed it at the same size; times in actions of
/// the same operation count before others. Another size of the same kernel takes seconds_alone()
/// times the ratio of inside to alone of the one nearest in size; a kernel that no step has takes
/// the mean ratio of those of its dtype, or of all. A profile without steps leaves seconds_alone().
class KernelTimes {
 public:
  /// `profile` must outlive this.
  KernelTimes(const HardwareProfile& profile, int threads);

  PredictedSeconds of(const KernelCall& call, std::string_view operation) const;
  bool has_steps() const { return !steps_.empty(); }
  // Medians over the steps of as many threads, or nearly as many; see StepTimes. 0: none.
  double beside() const { return beside_; }
  double gap() const { return gap_; }
  double between() const { return between_; }

 private:
  PredictedSeconds find(const KernelCall& call, std::string_view operation) const;
  /// By how much a kernel that no step has timed takes longer inside of steps than alone, and the
  /// spread of what says so. A ratio of 0: nothing says it.
  struct Correction {
    double ratio = 0.0, spread = 0.0;
  };
  Correction correction_of(const KernelCall& call, std::string_view operation) const;

  const HardwareProfile& profile_;
  const int threads_;
  std::vector<const StepTimes*> steps_;  ///< of the number of threads that is nearest
  double beside_ = 0.0, gap_ = 0.0, between_ = 0.0;
  mutable std::map<std::string, PredictedSeconds, std::less<>> known_;
};

}  // namespace tessera
