#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "point_time.h"
#include "tessera/collectives/process_group.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera {

/// The share of its speed that each lane of a rank has, whose running lanes want so many threads
/// and which has so many cores to itself.
inline double share_of_cores(double cores, double threads) {
  return std::min(1.0, cores / std::max(threads, 1.0));
}

/// By how much kernels take longer while a lane of collectives is busy.
struct ContentionTime {
  double factor = 1.0;  ///< beyond what the sharing of cores explains; the median of the rounds
  double spread = 0.0;  ///< of the rounds, relative_spread
  PointTime alone{};    ///< of a call of the kernel, without collectives
};

/// Ranks of one process that compute on one lane and run collectives on another.
class ContentionTeam {
 public:
  ContentionTeam(int ranks, int threads, int cores);
  ~ContentionTeam();

  /// Times a kernel without collectives and beside them, in turns: a GEMM if it `multiplies`, else
  /// one that is bound by memory. Each time it runs for about `seconds`.
  ContentionTime time(CollectiveKind kind, bool multiplies, double seconds);

 private:
  struct Rank;
  /// Mean seconds of the ranks' calls, and whether their collectives outlasted these.
  struct Batch {
    double seconds = 0.0;
    bool covered = true;
  };
  Batch run(CollectiveKind kind, bool multiplies, int calls, int collectives);
  double seconds_of_collective(CollectiveKind kind);

  const int threads_;
  const double cores_of_rank_;
  std::vector<std::unique_ptr<ProcessGroup>> gathers_, reductions_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// Factors of several numbers of ranks.
class ContentionFactors {
 public:
  void add(CollectiveKind kind, bool multiplies, int ranks, const ContentionTime& time);
  /// Writes them into a profile: one of each collective, their mean, or where kernels with FLOPs
  /// and those bound by memory are apart by more than both spread, one of each.
  void write(HardwareProfile& profile, const std::string& source) const;

 private:
  struct Factor {
    double logarithms = 0.0;  ///< their sum
    double spread = 0.0;      ///< the largest
    int count = 0;
    std::string words{};  ///< "1.10 on 4 ranks, 1.05 on 2"
    double value() const;
  };
  std::map<std::pair<CollectiveKind, bool>, Factor> factors_;
};

}  // namespace tessera
