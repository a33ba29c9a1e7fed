#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tessera/lab/simulate_step.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// A setting that choose_fit() decides, and what it may be, the mildest first.
struct FitAxis {
  std::string setting;
  std::vector<std::string> values;
};

/// Strategy, recomputation, each kind of offload, and the ranks and the order of a pipeline: a row
/// each. The values of "pipeline" are divisors of the ranks.
const std::vector<FitAxis>& fit_axes();

/// The memory that a rank may take, and the machine that ranks its combinations by time.
struct FitRequest {
  std::int64_t device_bytes = 0;  ///< of its device
  /// The bytes of the host's memory; on a CPU with those of the device, which is the same memory.
  std::int64_t host_bytes = std::numeric_limits<std::int64_t>::max();
  Cluster cluster{};  ///< whose step times are predicted
  /// Settings that stay as the options have them: of fit_axes(), and such as "replicas" and
  /// "virtual_stages", which others of these decide in resolved options.
  std::vector<std::string> kept{};
};

/// By how much a combination does not fit.
struct FitExcess {
  const char* memory = "";  ///< "device" or "host"
  std::int64_t bytes = 0;
};

std::string to_string(const FitExcess& excess);  ///< "device memory: 6.00 MiB too much"

/// One combination of the axes' values.
struct FitCandidate {
  std::vector<std::string> values{};  ///< by axis, as the run would have them
  TrainerOptions options{};
  std::int64_t device_bytes = 0;      ///< peak of one rank, with gpu_overhead()
  std::int64_t host_bytes = 0;        ///< peak of what it has in the host's memory
  std::optional<FitExcess> excess{};  ///< why it does not fit
  /// Predicted; of those that do not fit only for the kTimedMisses nearest to the budget.
  std::optional<double> step_seconds{};
};

inline constexpr std::size_t kTimedMisses = 5;

struct FitChoice {
  /// Those that fit, the fastest first, and then the others, the nearest to the budget first. Of
  /// combinations that are one schedule there is one, the mildest.
  std::vector<FitCandidate> candidates{};
  int refused = 0;  ///< combinations that cannot be planned
  const FitCandidate& best() const { return candidates.front(); }
};

/// A plan's step on a cluster, in virtual time, on the devices of the cluster's profile, whatever
/// the run's own are.
SimulatedStep predict_step(const TrainingPlan& plan, const Cluster& cluster);

/// The combination with the least predicted step time of those whose predicted peaks fit, and what
/// else there is. Of equal times the one with fewer pipeline ranks wins, and then the mildest: that
/// whose values come first in fit_axes(). A step's samples stay: with P pipeline ranks instead of
/// one it has P times as many micro-steps. Offload is tried with the first order, and with other
/// pipeline ranks than the options have only if nothing else fits. A pure function of its arguments
/// and the choice of device. Throws Error{kOutOfMemory} that says what the smallest one would need
/// if nothing fits, and Error{kConfig} if nothing can be planned.
FitChoice choose_fit(const RunInputs& inputs, const TrainerOptions& options,
                     const FitRequest& request);

/// `options` with the values of a candidate, which may be of another process: by axis.
TrainerOptions with_fit(const TrainerOptions& options, const std::vector<std::string>& values,
                        const std::vector<std::string>& kept);

}  // namespace tessera
