#pragma once

#include <array>
#include <vector>

#include "tessera/lab/hardware_profile.h"
#include "tessera/lab/kernel_times.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/timeline.h"

namespace tessera {

/// Where ranks are: [0, ranks_per_node) on the first node, and so on; of a node's ranks,
/// [0, ranks_per_process) are threads of one process, and so on.
struct Cluster {
  HardwareProfile profile;
  int ranks_per_node = 8;
  int ranks_per_process = 1;
};

/// Seconds of a collective among `members` of the ranks, of which each sends `sent_bytes`. Of ranks
/// that share cores: of one core's work.
double seconds_of(CollectiveKind kind, std::int64_t sent_bytes, const std::vector<int>& members,
                  const Cluster& cluster);

/// Where the time of a step of one pipeline rank went, in seconds.
struct StageTime {
  double compute = 0.0;  ///< the compute lane works
  double exposed = 0.0;  ///< collectives run while neither compute nor optimizer lane works
  double exposed_messages = 0.0;  ///< the same of messages from and to other stages
  double bubble = 0.0;            ///< no lane works: the rank waits for other stages
};

/// A step on a virtual clock.
struct SimulatedStep {
  /// From its end to the end of the next one, if steps follow each other without a pause.
  double seconds = 0.0;
  // These are the first pipeline rank's.
  std::array<LaneTime, kLanes> lanes{};  ///< by Lane
  LaneTime communication;                ///< of all lanes of collectives together
  // These are by pipeline rank. A meeting begins when the last of its ranks has come.
  std::vector<std::vector<ActionSpan>> spans{};  ///< of the last step
  std::vector<StageTime> stages{};
  PredictedSeconds kernels{};  ///< of the first pipeline rank, at any clock
  /// The work of the kernels of a step of the first pipeline rank.
  double flops = 0.0, bytes = 0.0;
  /// Seconds of the optimizer steps of a GPU's rank, of the first pipeline rank, on the host.
  double host_updates = 0.0;
  /// By how much kernels take longer than alone, on the pipeline rank where that is most, since
  /// the limit of power holds the clock down; 1: they do not, or the profile has no limit.
  double throttled = 1.0;
  /// The energy of a step on one rank of each stage together, and the power of the one of them that
  /// takes most; 0: the profile does not know it.
  double joules = 0.0, watts = 0.0;
  /// The measured step is expected within seconds * (1 -+ half_width), nine times of ten; 0: the
  /// profile's rates are limits, which say nothing of it.
  double half_width = 0.0;
  bool assumes_half_width = false;  ///< no predictions of this kind were checked on the machine
  const LaneTime& of(Lane lane) const { return lanes[static_cast<std::size_t>(lane)]; }
  /// Means over the pipeline ranks.
  double bubble() const;
  double exposed_messages() const;
};

/// Runs the executor on the sim device; what each action costs follows from its kernels' FLOPs and
/// bytes, or from what it sends, and from the profile. Work of the compute lane is slower by the
/// profile's factors for as long as collectives run beside it; where ranks share cores, lanes that
/// want more threads at once than a rank's share of the cores are all slower by the ratio. Where
/// the profile has a limit of power, kernels are slower until the step takes no more. Where it has
/// a residual of the step's kind, all times are multiplied by its ratio. Rank 0 stands
/// for all: they do the same work, so that the result takes no more time or memory with more ranks.
SimulatedStep simulate_step(const Program& program, const ModelLayout& layout, const Model& model,
                            const ExecutorOptions& options, const Cluster& cluster);
/// Runs pipeline ranks side by side, each by its first program: one rank of each stands for
/// those of its stage.
SimulatedStep simulate_step(const std::vector<std::vector<Program>>& ranks,
                            const ModelLayout& layout, const Model& model,
                            const ExecutorOptions& options, const Cluster& cluster);

}  // namespace tessera
