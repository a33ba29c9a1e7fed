#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/machine_load.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera {

class CudaDevice;

struct CalibrationProgress {
  std::string what;       ///< is measured next
  int done = 0, all = 0;  ///< points
  double used = 0.0;      ///< seconds of the budget
  double budget = 0.0;
};

struct CalibrationOptions {
  std::string name;           ///< of the profile
  std::string machine;        ///< in words, for the sources of its numbers
  int cores = 1;              ///< that ranks share
  double memory_bytes = 0.0;  ///< of the machine
  double seconds = 0.03;      ///< about how long each point is measured, at most
  double budget = 180.0;      ///< seconds that all points may take
  int coarseness = 1;         ///< 2: every second size of each grid, and so on
  double waiting = 0.0;       ///< for the profile's noise: MachineLoad::waiting before it began
  /// Called before each measurement; false: stop.
  std::function<bool(const CalibrationProgress&)> progress{};
};

/// Times kernels, collectives and the handing over of work between lanes on this machine's CPU: no
/// run that a profile is to predict. Kernels run on as many ranks at once as keep all cores busy,
/// each with 1 thread, with all cores, and with about as many threads as ranks; collectives among
/// 2, 4, ... ranks up to twice the cores, at most 16. A GEMM and a kernel bound by memory are also
/// timed beside collectives of another lane, on as many ranks as keep all cores busy, at most 16,
/// and on half of them. What a kernel reads has mostly left the
/// caches of a core.
///
/// Every second size of each grid comes first, then GEMMs and attention of those between, then the
/// rest, fp16 last. A point that would take longer than ten points do on average, and all points
/// after the budget is used, are left out: the rate of the nearest sizes stands for them. The first
/// size of each kernel is measured in any case. Points that were disturbed are measured again while
/// the budget lasts. The profile's noise says what was seen.
///
/// Throws Error{kAborted} when `progress` says so, and what the kernels throw.
HardwareProfile calibrate_cpu(const CalibrationOptions& options);

/// Times kernels of one GPU, copies to the host and the waiting of a stream for another, by the
/// host's clock over batches of launches. What exists between GPUs (links, and how much kernels
/// slow down beside collectives) is taken from `links`, and its sources say so. `options.cores`
/// copy for the bandwidth of the host's memory; the host launches kernels with one.
///
/// Throws as calibrate_cpu.
HardwareProfile calibrate_gpu(CudaDevice& device, const CalibrationOptions& options,
                              const HardwareProfile& links);

/// The profile of a CPU that others disturb, by two calibrations of different minutes: it has each
/// kernel's and collective's faster time at each size, what only one has, and contention between
/// lanes and steps as `first` has them. Throws Error{kConfig} if one is of a GPU.
HardwareProfile faster_of(const HardwareProfile& first, const HardwareProfile& second);

/// Steps were timed beside the kernels of the profile `before`: from now on `alone` is what those
/// of `after` take.
void restate_alone(StepTimes& steps, const HardwareProfile& before, const HardwareProfile& after);

/// A calibration that makes sure that the machine is quiet.
struct QuietCalibration {
  std::function<MachineLoad()> watch;  ///< before it begins
  std::function<HardwareProfile(const MachineLoad& before)> measure;
  std::function<void(const std::vector<std::string>& disturbances)> say;  ///< never of none
  bool anyway = false;                                                    ///< if it is not, too
};

/// Nothing if the machine is too busy before it begins, in which case nothing is measured, or if
/// the measurements were disturbed.
std::optional<HardwareProfile> calibrate_if_quiet(const QuietCalibration& calibration);

}  // namespace tessera
