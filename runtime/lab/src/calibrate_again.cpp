#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/lab/calibrate.h"

namespace tessera {
namespace {

void take_less(Quantity& quantity, const Quantity& other) {
  if (other.value < quantity.value) quantity = other;
}

void take_more(Quantity& quantity, const Quantity& other) {
  if (other.value > quantity.value) quantity = other;
}

/// Keeps the better one of each point, and takes those that only `others` has.
template <typename Point, typename Key, typename IsBetter>
void take_better(std::vector<Point>& points, const std::vector<Point>& others, Key Point::*key,
                 const IsBetter& is_better) {
  for (const Point& other : others) {
    const auto same = std::ranges::find(points, other.*key, key);
    if (same == points.end()) {
      points.push_back(other);
    } else if (is_better(other, *same)) {
      *same = other;
    }
  }
}

/// The noise of the calibration of whose points fewer were disturbed; no more points are missing
/// than one of both left out.
MeasurementNoise quieter_of(const MeasurementNoise& first, const MeasurementNoise& second) {
  const bool is_second = second.disturbed * first.points < first.disturbed * second.points;
  MeasurementNoise noise = is_second ? second : first;
  noise.left_out = std::min(first.left_out, second.left_out);
  return noise;
}

void take_faster(std::vector<KernelRates>& all, const std::vector<KernelRates>& others) {
  for (const KernelRates& other : others) {
    const auto same = std::ranges::find_if(all, [&](const KernelRates& rates) {
      return rates.kernel == other.kernel && rates.dtype == other.dtype &&
             rates.threads == other.threads;
    });
    if (same == all.end()) {
      all.push_back(other);
      continue;
    }
    using Point = KernelRates::Point;
    take_better(same->points, other.points, &Point::size,
                [](const Point& a, const Point& b) { return a.per_second > b.per_second; });
  }
}

void take_faster(LinkProfile& link, const LinkProfile& other) {
  take_less(link.latency, other.latency);
  take_more(link.bandwidth, other.bandwidth);
  for (const CollectiveTimes& times : other.measured) {
    const auto same = std::ranges::find_if(link.measured, [&](const CollectiveTimes& one) {
      return one.collective == times.collective && one.ranks == times.ranks;
    });
    if (same == link.measured.end()) {
      link.measured.push_back(times);
      continue;
    }
    using Point = CollectiveTimes::Point;
    take_better(same->points, times.points, &Point::bytes,
                [](const Point& a, const Point& b) { return a.seconds < b.seconds; });
    std::ranges::sort(same->points, {}, &Point::bytes);
  }
}

}  // namespace

void restate_alone(StepTimes& steps, const HardwareProfile& before, const HardwareProfile& after) {
  for (StepTimes::Kernel& kernel : steps.kernels) {
    const KernelRates* const old = before.find(kernel.kernel, kernel.dtype, steps.threads);
    const KernelRates* const now = after.find(kernel.kernel, kernel.dtype, steps.threads);
    if (old == nullptr || now == nullptr) continue;
    kernel.alone *= old->at(kernel.size) / now->at(kernel.size);
  }
}

HardwareProfile faster_of(const HardwareProfile& first, const HardwareProfile& second) {
  require(first.device == "cpu" && second.device == "cpu", ErrorCode::kConfig,
          "only a profile of a CPU is timed again, whose neighbours make it slower; of a GPU, time "
          "a new one");
  HardwareProfile both = first;
  take_faster(both.kernels, second.kernels);
  for (const auto& [dtype, peak] : second.peak) take_more(both.peak[dtype], peak);
  take_more(both.memory_bandwidth, second.memory_bandwidth);
  take_more(both.host_bandwidth, second.host_bandwidth);
  take_more(both.copy_out, second.copy_out);
  take_less(both.launch, second.launch);
  take_less(both.handover, second.handover);
  take_faster(both.process, second.process);
  take_faster(both.node, second.node);
  if (first.noise && second.noise) both.noise = quieter_of(*first.noise, *second.noise);
  for (StepTimes& steps : both.steps) restate_alone(steps, first, both);
  return both;
}

}  // namespace tessera
