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

StepTimes median_of_repeats(const std::vector<StepTimes>& repeats) {
  require(!repeats.empty(), ErrorCode::kInvalidArgument, "there are no times of a step to join");
  StepTimes joined = repeats.front();
  std::map<std::tuple<std::string, std::string, std::string, std::vector<double>>,
           std::vector<StepTimes::Kernel>>
      kernels;
  for (const StepTimes& steps : repeats) {
    require(steps.model == joined.model && steps.threads == joined.threads,
            ErrorCode::kInvalidArgument, "steps of ", joined.model, " of ", joined.threads,
            " threads and of ", steps.model, " of ", steps.threads, " threads are not the same");
    for (const StepTimes::Kernel& kernel : steps.kernels) {
      kernels[{kernel.operation, kernel.kernel, kernel.dtype, kernel.size}].push_back(kernel);
    }
  }
  for (double StepTimes::*const member : {&StepTimes::beside, &StepTimes::gap, &StepTimes::handover,
                                          &StepTimes::between, &StepTimes::step}) {
    std::vector<double> values;
    for (const StepTimes& steps : repeats) values.push_back(steps.*member);
    joined.*member = median(std::move(values));
  }
  joined.kernels.clear();
  for (const auto& [key, of_repeats] : kernels) {
    joined.kernels.push_back(median_of_kernel(of_repeats));
  }
  if (repeats.size() > 1) {
    joined.source += concat("; medians of ", repeats.size(), " calibrations");
  }
  return joined;
}

}  // namespace tessera
