#include "kernel_calibration.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {

void check_calibration(const CalibrationOptions& options) {
  require(options.cores >= 1 && options.seconds > 0.0 && options.coarseness >= 1,
          ErrorCode::kInvalidArgument, "a calibration needs cores, seconds and a coarseness of 1");
}

void announce_probe(const CalibrationOptions& options, const std::string& what, int done, int all) {
  const bool goes_on = !options.progress || options.progress(what, done, all);
  require(goes_on, ErrorCode::kAborted, "the calibration was stopped; nothing was written");
}

double fastest_call(double budget, const std::function<double(int calls)>& run) {
  run(1);  // libraries generate code, memory is touched
  const double one = std::max(run(1), 1e-7);
  const int calls = static_cast<int>(std::clamp(budget / kBatches / one, 1.0, 20000.0));
  double best = run(calls);
  for (int i = 1; i < kBatches; ++i) best = std::min(best, run(calls));
  return best / calls;
}

void KernelCalibration::add(int threads, int ranks) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (auto& probes :
         {step_kernel_probes(dtype, threads, coarseness_), gemm_probes(dtype, coarseness_)}) {
      for (const KernelProbe& probe : probes) {
        tasks_.push_back({threads, ranks, std::string(to_string(dtype)), probe});
      }
    }
  }
}

void KernelCalibration::run(
    HardwareProfile& profile, const std::function<void(const std::string&)>& announce,
    const std::function<double(const KernelProbe&, int threads)>& seconds_of) {
  std::map<std::tuple<int, std::string, std::string>, std::size_t> places;
  for (const Task& task : tasks_) {
    const KernelCall& call = task.probe.call;
    const std::string name = rates_name(call);
    announce(task.threads > 0 ? concat(name, " in ", task.dtype, ", ", task.threads, " threads")
                              : concat(name, " in ", task.dtype));
    const double seconds = seconds_of(task.probe, task.threads);
    const double rate = (call.flops > 0.0 ? call.flops : call.bytes) / seconds;
    const auto [place, is_new] =
        places.try_emplace({task.threads, task.dtype, name}, profile.kernels.size());
    if (is_new) {
      profile.kernels.push_back({name, task.dtype, std::max(task.threads, 1), source_, {}});
    }
    profile.kernels[place->second].points.push_back({rates_size(call), rate});
    if (call.kernel == "gemm") {
      Quantity& peak = profile.peak[task.dtype];
      const double all = rate * task.ranks;
      if (all > peak.value) peak = {all, "the fastest GEMM of this profile"};
    }
  }
}

}  // namespace tessera
