#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/cpu_list.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// The ranks that are timed run the same step, each by itself.
struct TimedStep {
  Program program;  ///< of one rank; trains
  const ModelLayout& layout;
  const Model& model;
  const ExecutorOptions& options;
  int copies = 1;  ///< ranks that run beside each other, as those of a run would
  /// CPUs of each copy, on which it runs with all its threads; none: wherever there is time.
  std::vector<CpuList> cpus{};
  double seconds = 6.0;  ///< that steps are timed, at least three of them, after two that are not
  std::function<bool()> goes_on{};  ///< asked before each step; false: stop
};

/// Times the kernels of steps where they run: with what is in the caches then, at the clocks of
/// then, by threads that sleep between them. `profile` says what each takes alone. The steps
/// between the quartiles count, and a kernel takes the mean over them. Kernels of a GPU are timed
/// by events while the host launches them one by one, and the step as a CUDA graph.
///
/// Throws Error{kInvalidArgument} if the program needs more than one rank, Error{kAborted} if
/// `goes_on` says so, and what kernels throw.
StepTimes time_steps(const TimedStep& step, const HardwareProfile& profile);

/// One of several times of the same step, taken minutes apart: means over those whose step is
/// between the quartiles. To the spread of a kernel within them comes, as an independent one, that
/// of its times over them. Throws Error{kInvalidArgument} of none, or of steps of different models
/// or threads.
StepTimes joined_repeats(std::vector<StepTimes> repeats);

}  // namespace tessera
