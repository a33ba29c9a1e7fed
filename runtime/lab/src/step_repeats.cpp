#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/quantile.h"
#include "tessera/lab/step_times.h"

namespace tessera {
namespace {

double mean_of(const std::vector<StepTimes::Kernel>& kernels, double StepTimes::Kernel::*member) {
  double sum = 0.0;
  for (const StepTimes::Kernel& kernel : kernels) sum += kernel.*member;
  return sum / static_cast<double>(kernels.size());
}

/// One kernel at a size, as the repeats have it.
StepTimes::Kernel mean_of(const std::vector<StepTimes::Kernel>& repeats) {
  using Kernel = StepTimes::Kernel;
  std::vector<double> seconds;
  for (const Kernel& kernel : repeats) seconds.push_back(kernel.seconds);
  Kernel kernel = repeats.front();
  kernel.spread = std::hypot(mean_of(repeats, &Kernel::spread), relative_spread(seconds));
  for (double Kernel::*const member : {&Kernel::seconds, &Kernel::alone, &Kernel::calls}) {
    kernel.*member = mean_of(repeats, member);
  }
  return kernel;
}

}  // namespace

StepTimes joined_repeats(std::vector<StepTimes> repeats) {
  require(!repeats.empty(), ErrorCode::kInvalidArgument, "there are no times of a step to join");
  const StepTimes first = repeats.front();
  for (const StepTimes& steps : repeats) {
    require(steps.model == first.model && steps.threads == first.threads,
            ErrorCode::kInvalidArgument, "steps of ", first.model, " of ", first.threads,
            " threads and of ", steps.model, " of ", steps.threads, " threads are not the same");
  }
  const std::size_t all = repeats.size();
  std::ranges::sort(repeats, {}, &StepTimes::step);
  const auto [begin, end] = middle_half(all);
  const std::span counted = std::span(repeats).subspan(begin, end - begin);
  StepTimes joined = counted.front();
  std::map<std::tuple<std::string, std::string, std::string, std::vector<double>>,
           std::vector<StepTimes::Kernel>>
      kernels;
  for (const StepTimes& steps : counted) {
    for (const StepTimes::Kernel& kernel : steps.kernels) {
      kernels[{kernel.operation, kernel.kernel, kernel.dtype, kernel.size}].push_back(kernel);
    }
  }
  for (double StepTimes::*const member :
       {&StepTimes::beside, &StepTimes::gap, &StepTimes::between, &StepTimes::step}) {
    double sum = 0.0;
    for (const StepTimes& steps : counted) sum += steps.*member;
    joined.*member = sum / static_cast<double>(counted.size());
  }
  joined.kernels.clear();
  for (const auto& [key, of_repeats] : kernels) joined.kernels.push_back(mean_of(of_repeats));
  if (all > 1) {
    joined.source += concat("; means of the middle ", counted.size(), " of ", all, " calibrations");
  }
  return joined;
}

}  // namespace tessera
