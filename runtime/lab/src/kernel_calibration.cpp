#include "kernel_calibration.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::vector<KernelProbe> probes_of(DType dtype, int threads, int coarseness) {
  std::vector<KernelProbe> probes = step_kernel_probes(dtype, threads, coarseness);
  for (KernelProbe& gemm : gemm_probes(dtype, coarseness)) probes.push_back(std::move(gemm));
  return probes;
}

using KernelSize = std::pair<std::string, std::vector<double>>;

KernelSize size_of(const KernelCall& call) { return {rates_name(call), rates_size(call)}; }

/// GEMMs and attention take most of a step, and few runs are in fp16.
int stage_of(const KernelCall& call, DType dtype, bool in_every_second) {
  if (in_every_second) return 0;
  if (dtype == DType::kFloat16) return 3;
  return call.kernel == "gemm" || call.kernel.starts_with("attention") ? 1 : 2;
}

double work_of(const KernelCall& call) { return call.flops > 0.0 ? call.flops : call.bytes; }

}  // namespace

void KernelCalibration::add(int threads, int ranks) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::set<KernelSize> every_second;
    for (const KernelProbe& probe : probes_of(dtype, threads, 2 * coarseness_)) {
      every_second.insert(size_of(probe.call));
    }
    for (KernelProbe& probe : probes_of(dtype, threads, coarseness_)) {
      const bool is_second = every_second.contains(size_of(probe.call));
      points_.push_back({.threads = threads,
                         .ranks = ranks,
                         .stage = stage_of(probe.call, dtype, is_second),
                         .dtype = std::string(to_string(dtype)),
                         .kernel = rates_name(probe.call),
                         .probe = std::move(probe)});
    }
  }
}

void KernelCalibration::run(HardwareProfile& profile, CalibrationRun& calibration,
                            const Timing& timing) {
  measure_all(calibration, timing);
  measure_again(calibration, timing);
  write(profile);
}

void KernelCalibration::measure_all(CalibrationRun& calibration, const Timing& timing) {
  std::vector<Point*> order;
  for (Point& point : points_) order.push_back(&point);
  std::ranges::stable_sort(order, {}, [](const Point* point) { return point->stage; });
  std::map<Key, KernelRates> known;
  for (Point* const point : order) {
    const KernelCall& call = point->probe.call;
    KernelRates& rates = known[key_of(*point)];
    if (!rates.points.empty() &&
        !calibration.suffices(work_of(call) / rates.at(rates_size(call)))) {
      calibration.leave_out();
      continue;
    }
    calibration.announce(point->threads > 0 ? concat(point->kernel, " in ", point->dtype, ", ",
                                                     point->threads, " threads")
                                            : concat(point->kernel, " in ", point->dtype));
    point->time = timing(point->probe, point->threads, calibration.seconds_of_point());
    calibration.finish();
    rates.points.push_back({rates_size(call), work_of(call) / point->time->seconds});
  }
}

void KernelCalibration::measure_again(CalibrationRun& calibration, const Timing& timing) {
  const auto is_disturbed = [](const Point& point) { return point.time && point.time->disturbed; };
  for (int round = 0; round < kMostRepeats; ++round) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (Point& point : points_) {
        if (point.stage != stage || !is_disturbed(point)) continue;
        if (!calibration.suffices_again(point.time->seconds)) continue;
        calibration.announce(concat("again ", point.kernel, " in ", point.dtype));
        point.time = PointTime::better(
            *point.time, timing(point.probe, point.threads, calibration.seconds_of_point()));
      }
    }
  }
  for (const Point& point : points_) {
    if (point.time) calibration.record(*point.time);
  }
}

void KernelCalibration::write(HardwareProfile& profile) const {
  std::map<Key, std::size_t> places;
  for (const Point& point : points_) {
    if (!point.time) continue;
    const KernelCall& call = point.probe.call;
    const double rate = work_of(call) / point.time->seconds;
    const auto [place, is_new] = places.try_emplace(key_of(point), profile.kernels.size());
    if (is_new) {
      profile.kernels.push_back(
          {point.kernel, point.dtype, std::max(point.threads, 1), source_, {}});
    }
    profile.kernels[place->second].points.push_back({rates_size(call), rate});
    if (call.kernel == "gemm") {
      Quantity& peak = profile.peak[point.dtype];
      const double all = rate * point.ranks;
      if (all > peak.value) peak = {all, "the fastest GEMM of this profile"};
    }
  }
}

}  // namespace tessera
