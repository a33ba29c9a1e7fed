#include "calibration_run.h"

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/quantile.h"

namespace tessera {
namespace {

/// The share of the budget for points that were disturbed.
constexpr double kKept = 0.1;

}  // namespace

void check_calibration(const CalibrationOptions& options) {
  require(options.cores >= 1 && options.seconds > 0.0 && options.coarseness >= 1 &&
              options.budget >= 0.0,
          ErrorCode::kInvalidArgument,
          "a calibration needs cores, seconds, a budget and a coarseness of 1");
}

CalibrationRun::CalibrationRun(const CalibrationOptions& options, int points)
    : CalibrationRun(
          options, points, [begin = std::chrono::steady_clock::now()] { return since(begin); },
          [] { return read_machine(); }) {}

CalibrationRun::CalibrationRun(const CalibrationOptions& options, int points,
                               std::function<double()> clock, std::function<MachineReading()> read)
    : options_(options),
      all_(points),
      clock_(std::move(clock)),
      read_(std::move(read)),
      begin_(clock_()),
      machine_(read_()) {}

void CalibrationRun::announce(const std::string& what) {
  const bool goes_on =
      !options_.progress ||
      options_.progress(
          {.what = what, .done = done_, .all = all_, .used = used(), .budget = options_.budget});
  require(goes_on, ErrorCode::kAborted, "the calibration was stopped; nothing was written");
}

void CalibrationRun::leave_out() {
  ++done_;
  ++left_out_;
}

double CalibrationRun::seconds_of_point() const {
  const double left = (1.0 - kKept) * options_.budget - used();
  return calibration_time::of_point(left, all_ - done_, options_.seconds);
}

bool CalibrationRun::suffices(double seconds_of_call) const {
  const double left = (1.0 - kKept) * options_.budget - used();
  return calibration_time::suffices(left, all_ - done_, seconds_of_call);
}

bool CalibrationRun::suffices_again(double seconds_of_call) const {
  return calibration_time::suffices_again(options_.budget - used(), seconds_of_call);
}

void CalibrationRun::record(const PointTime& time) {
  spreads_.push_back(time.spread);
  disturbed_ += time.disturbed ? 1 : 0;
}

MeasurementNoise CalibrationRun::noise(int cores) const {
  const MachineLoad load = load_between(machine_, read_(), cores);
  return {.others = load.others,
          .stolen = load.stolen,
          .waiting = options_.waiting,
          .throttled = load.throttled,
          .spread = median(spreads_),
          .points = static_cast<std::int64_t>(spreads_.size()),
          .disturbed = disturbed_,
          .left_out = left_out_};
}

std::optional<HardwareProfile> calibrate_if_quiet(const QuietCalibration& calibration) {
  const auto accepts = [&](const std::vector<std::string>& disturbances) {
    if (!disturbances.empty()) calibration.say(disturbances);
    return disturbances.empty() || calibration.anyway;
  };
  const MachineLoad before = calibration.watch();
  if (!accepts(disturbances(before))) return std::nullopt;
  HardwareProfile profile = calibration.measure(before);
  if (profile.noise && !accepts(disturbances(*profile.noise))) return std::nullopt;
  return profile;
}

}  // namespace tessera
