#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/quantile.h"
#include "tessera/lab/step_times.h"

namespace tessera {
namespace {

/// One kernel at a size, as the repeats have it.
StepTimes::Kernel median_of_kernel(const std::vector<StepTimes::Kernel>& repeats) {
  using Kernel = StepTimes::Kernel;
  const auto values_of = [&](double Kernel::*member) {
    std::vector<double> values;
    for (const Kernel& kernel : repeats) values.push_back(kernel.*member);
    return values;
  };
  Kernel kernel = repeats.front();
  const std::vector<double> seconds = values_of(&Kernel::seconds);
  kernel.spread = std::hypot(median(values_of(&Kernel::spread)), relative_spread(seconds));
  kernel.seconds = median(seconds);
  kernel.alone = median(values_of(&Kernel::alone));
  kernel.calls = median(values_of(&Kernel::calls));
  return kernel;
}

}  // namespace

StepTimes joined_repeats(std::vector<StepTimes> repeats, DeviceKind device) {
  require(!repeats.empty(), ErrorCode::kInvalidArgument, "there are no times of a step to join");
  const StepTimes first = repeats.front();
  for (const StepTimes& steps : repeats) {
    require(steps.model == first.model && steps.threads == first.threads,
            ErrorCode::kInvalidArgument, "steps of ", first.model, " of ", first.threads,
            " threads and of ", steps.model, " of ", steps.threads, " threads are not the same");
  }
  const std::size_t all = repeats.size();
  if (device == DeviceKind::kCpu) {
    std::ranges::sort(repeats, {}, &StepTimes::step);
    repeats.resize(undisturbed_of(all));
  }
  StepTimes joined = repeats.front();
  std::map<std::tuple<std::string, std::string, std::string, std::vector<double>>,
           std::vector<StepTimes::Kernel>>
      kernels;
  for (const StepTimes& steps : repeats) {
    for (const StepTimes::Kernel& kernel : steps.kernels) {
      kernels[{kernel.operation, kernel.kernel, kernel.dtype, kernel.size}].push_back(kernel);
    }
  }
  for (double StepTimes::*const member :
       {&StepTimes::beside, &StepTimes::gap, &StepTimes::between, &StepTimes::step}) {
    std::vector<double> values;
    for (const StepTimes& steps : repeats) values.push_back(steps.*member);
    joined.*member = median(std::move(values));
  }
  joined.kernels.clear();
  for (const auto& [key, of_repeats] : kernels) {
    joined.kernels.push_back(median_of_kernel(of_repeats));
  }
  if (all > 1) {
    joined.source += repeats.size() == all
                         ? concat("; medians of ", all, " calibrations")
                         : concat("; the fastest ", repeats.size(), " of ", all, " calibrations");
  }
  return joined;
}

}  // namespace tessera
