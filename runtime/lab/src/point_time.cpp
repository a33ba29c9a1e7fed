#include "point_time.h"

#include <algorithm>

#include "tessera/core/quantile.h"

namespace tessera {
namespace {

constexpr int kBatches = 5, kLeastBatches = 2, kMostCalls = 20000;
/// Calls that last longer than all batches should are timed until they took so much longer.
constexpr double kLongest = 4.0;
/// Where it is not known how long threads ran: threads of the kernel, which run for microseconds,
/// take a core a hundred times a second on some machines on which nothing else runs.
constexpr double kPreemptionsPerSecond = 200.0, kFewPreemptions = 1.0;
constexpr double kLeastRunning = 0.95, kMostSpreadOfBatches = 0.25;
/// A point may take as long as so many points do on average.
constexpr double kMostShares = 10.0;
/// The untimed call, the one that tells how long a call is, and operands take time beside batches.
constexpr double kBatchesShare = 0.7, kLeastOfWanted = 0.2;

}  // namespace

bool BatchTime::is_disturbed() const {
  if (running > 0.0) return running < kLeastRunning * seconds;
  return preemptions > kFewPreemptions + kPreemptionsPerSecond * seconds;
}

PointTime PointTime::better(const PointTime& a, const PointTime& b) {
  if (a.disturbed != b.disturbed) {
    PointTime result = a.disturbed ? b : a;
    result.seconds = std::min(a.seconds, b.seconds);
    return result;
  }
  return a.seconds <= b.seconds ? a : b;
}

PointTime summarize(const std::vector<BatchTime>& batches, int calls) {
  std::vector<double> seconds;
  bool disturbed = true;
  for (const BatchTime& batch : batches) {
    seconds.push_back(batch.seconds);
    disturbed = disturbed && batch.is_disturbed();
  }
  const double spread = relative_spread(seconds);
  return {.seconds = std::ranges::min(seconds) / calls,
          .spread = spread,
          .disturbed = disturbed || spread > kMostSpreadOfBatches};
}

PointTime time_point(double seconds, const std::function<BatchTime(int calls)>& run) {
  run(1);
  const BatchTime once = run(1);
  const double one = std::max(once.seconds, 1e-7);
  const int calls = static_cast<int>(std::clamp(seconds / kBatches / one, 1.0, double{kMostCalls}));
  const int count = static_cast<int>(
      std::clamp(kLongest * seconds / one / calls, double{kLeastBatches}, double{kBatches}));
  std::vector<BatchTime> batches;
  if (calls == 1) batches.push_back(once);
  while (static_cast<int>(batches.size()) < count) batches.push_back(run(calls));
  return summarize(batches, calls);
}

double calibration_time::of_point(double left, std::int64_t points_left, double wanted) {
  const double share =
      kBatchesShare * left / static_cast<double>(std::max<std::int64_t>(points_left, 1));
  return std::clamp(share, kLeastOfWanted * wanted, wanted);
}

bool calibration_time::suffices(double left, std::int64_t points_left, double seconds_of_call) {
  const double share = left / static_cast<double>(std::max<std::int64_t>(points_left, 1));
  return left > 0.0 && seconds_of_call * (kLeastBatches + 1) <= kMostShares * share;
}

bool calibration_time::suffices_again(double left, double seconds_of_call) {
  return seconds_of_call * (kLeastBatches + 1) < left;
}

}  // namespace tessera
