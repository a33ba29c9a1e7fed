#include "tessera/lab/kernel_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/quantile.h"

namespace tessera {
namespace {

/// `spread` is relative.
PredictedSeconds resting_on(Evidence evidence, double seconds, double spread) {
  PredictedSeconds predicted{.spread = spread * seconds};
  predicted.by[static_cast<std::size_t>(evidence)] = seconds;
  return predicted;
}

/// The steps of as many threads, or nearly as many.
std::vector<const StepTimes*> steps_of(const HardwareProfile& profile, int threads) {
  const auto distance = [threads](const StepTimes& steps) {
    return std::abs(std::log(static_cast<double>(steps.threads) / threads));
  };
  std::vector<const StepTimes*> nearest;
  for (const StepTimes& steps : profile.steps) {
    if (!nearest.empty() && distance(steps) > distance(*nearest.front())) continue;
    if (!nearest.empty() && distance(steps) < distance(*nearest.front())) nearest.clear();
    nearest.push_back(&steps);
  }
  return nearest;
}

double median_of(const std::vector<const StepTimes*>& steps, double StepTimes::*member) {
  std::vector<double> values;
  for (const StepTimes* const one : steps) values.push_back(one->*member);
  return median(std::move(values));
}

/// How far two sizes are apart, in octaves.
double distance_between(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double squared = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double octaves = std::log2(a[i] / b[i]);
    squared += octaves * octaves;
  }
  return std::sqrt(squared);
}

/// The relative spread of kernels that are timed alone; 0: the profile does not know it.
double spread_alone(const HardwareProfile& profile) {
  return profile.noise ? profile.noise->spread : 0.0;
}

/// "gemm nt" of "gemm nt, bias, gelu".
std::string_view without_company(std::string_view kernel) {
  return kernel.substr(0, kernel.find(','));
}

/// All seconds inside of steps over all those alone, of the kernels that `counts` takes; 0: it
/// takes none.
template <typename Counts>
double mean_ratio(const std::vector<const StepTimes*>& steps, const Counts& counts) {
  double inside = 0.0, alone = 0.0;
  for (const StepTimes* const one : steps) {
    for (const StepTimes::Kernel& kernel : one->kernels) {
      if (!counts(kernel)) continue;
      inside += kernel.calls * kernel.seconds;
      alone += kernel.calls * kernel.alone;
    }
  }
  return alone > 0.0 ? inside / alone : 0.0;
}

/// Products of GPT-2 1558M's blocks on a heated H100, accurate accumulation, beside bf16's: 133.8
/// and 220.5 ms (bench/results/h100/first_run/products.json).
constexpr double kFp8OverBf16 = 1.65;

}  // namespace

double PredictedSeconds::total() const { return std::accumulate(by.begin(), by.end(), 0.0); }

Evidence PredictedSeconds::most() const {
  return static_cast<Evidence>(std::ranges::max_element(by) - by.begin());
}

PredictedSeconds& PredictedSeconds::operator+=(const PredictedSeconds& other) {
  for (std::size_t i = 0; i < by.size(); ++i) by[i] += other.by[i];
  spread += other.spread;
  return *this;
}

double seconds_alone(const KernelCall& call, const HardwareProfile& profile, int threads) {
  const std::string dtype(to_string(call.dtype));
  const auto parts = profile.device == "cpu" ? cpu_kernels_of(call) : std::vector<KernelCall>{call};
  double seconds = 0.0;
  for (const KernelCall& part : parts) {
    const KernelRates* const rates = profile.find(rates_name(part), dtype, threads);
    const double work = part.flops > 0.0 ? part.flops : part.bytes;
    double computed = rates != nullptr ? work / rates->at(rates_size(part)) : 0.0;
    if (part.gemm && is_fp8(*part.gemm) && rates != nullptr && !rates->kernel.ends_with("fp8")) {
      computed /= kFp8OverBf16;
    }
    // Rates of a CPU, and of kernels bound by memory, are measured with all that a call takes.
    if (rates != nullptr && (profile.device == "cpu" || part.flops <= 0.0)) {
      seconds += computed;
      continue;
    }
    require(rates != nullptr || part.flops <= 0.0, ErrorCode::kConfig, "the profile '",
            profile.name, "' has no rate of ", rates_name(part), " in ", dtype,
            "; add one, or choose another `precision`");
    seconds +=
        profile.launch.value + std::max(part.bytes / profile.memory_bandwidth.value, computed);
  }
  return seconds;
}

KernelTimes::KernelTimes(const HardwareProfile& profile, int threads)
    : profile_(profile),
      threads_(threads),
      steps_(steps_of(profile, threads)),
      beside_(median_of(steps_, &StepTimes::beside)),
      gap_(median_of(steps_, &StepTimes::gap)),
      between_(median_of(steps_, &StepTimes::between)) {}

PredictedSeconds KernelTimes::of(const KernelCall& call, std::string_view operation) const {
  if (steps_.empty()) {
    return resting_on(Evidence::kInterpolated, seconds_alone(call, profile_, threads_),
                      spread_alone(profile_));
  }
  std::string key = concat(operation, '|', step_name(call), '|', to_string(call.dtype));
  for (const double n : rates_size(call)) key += concat('|', n);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  return known_.emplace(std::move(key), find(call, operation)).first->second;
}

PredictedSeconds KernelTimes::find(const KernelCall& call, std::string_view operation) const {
  const std::string name = step_name(call);
  const std::string_view dtype = to_string(call.dtype);
  const std::vector<double> size = rates_size(call);
  std::vector<const StepTimes::Kernel*> same, alike;
  const bool has_threads = steps_.front()->threads == threads_;
  for (const StepTimes* const steps : steps_) {
    if (!has_threads) break;
    for (const StepTimes::Kernel& kernel : steps->kernels) {
      if (kernel.kernel != name || kernel.dtype != dtype || kernel.size != size) continue;
      (kernel.operation == operation ? same : alike).push_back(&kernel);
    }
  }
  if (same.empty()) same = std::move(alike);
  if (!same.empty()) {
    const auto median_over = [&](double StepTimes::Kernel::*member) {
      std::vector<double> values;
      for (const StepTimes::Kernel* const kernel : same) values.push_back(kernel->*member);
      return median(std::move(values));
    };
    return resting_on(Evidence::kMeasured, median_over(&StepTimes::Kernel::seconds),
                      median_over(&StepTimes::Kernel::spread));
  }
  const double alone = seconds_alone(call, profile_, threads_);
  const Correction correction = correction_of(call, operation);
  return correction.ratio > 0.0
             ? resting_on(Evidence::kCorrected, alone * correction.ratio, correction.spread)
             : resting_on(Evidence::kInterpolated, alone, spread_alone(profile_));
}

KernelTimes::Correction KernelTimes::correction_of(const KernelCall& call,
                                                   std::string_view operation) const {
  const std::string name = step_name(call);
  const std::string_view dtype = to_string(call.dtype);
  const std::vector<double> size = rates_size(call);
  // A kernel counts before the same GEMM in other company, and at equal distances one of the same
  // operation before others.
  constexpr double kOtherCompany = 4.0, kOtherOperation = 0.25;
  double nearest = HUGE_VAL;
  Correction correction;
  for (const StepTimes* const steps : steps_) {
    for (const StepTimes::Kernel& kernel : steps->kernels) {
      if (kernel.dtype != dtype || kernel.alone <= 0.0) continue;
      if (without_company(kernel.kernel) != without_company(name)) continue;
      const double distance = distance_between(kernel.size, size) +
                              (kernel.kernel == name ? 0.0 : kOtherCompany) +
                              (kernel.operation == operation ? 0.0 : kOtherOperation);
      if (distance >= nearest) continue;
      nearest = distance;
      correction = {.ratio = kernel.seconds / kernel.alone, .spread = kernel.spread};
    }
  }
  if (correction.ratio > 0.0) return correction;
  const double of_dtype =
      mean_ratio(steps_, [&](const StepTimes::Kernel& kernel) { return kernel.dtype == dtype; });
  return {.ratio = of_dtype > 0.0 ? of_dtype : mean_ratio(steps_, [](const auto&) { return true; }),
          .spread = spread_alone(profile_)};
}

}  // namespace tessera
