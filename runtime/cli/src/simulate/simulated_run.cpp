#include "simulate/simulation.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/lab/simulated_trace.h"
#include "tessera/lab/trace.h"
#include "tessera/trainer/fit.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {
namespace {

/// By default a rank has its share of the profile's cores, not of this machine's.
int threads_of(const Config& config, const HardwareProfile& profile, std::int64_t ranks_here) {
  const auto chosen = config.get<std::int64_t>("threads_per_rank");
  if (chosen > 0) return static_cast<int>(chosen);
  return std::max(1, static_cast<int>(profile.cores.value / static_cast<double>(ranks_here)));
}

}  // namespace

SimulatedRun simulate_run(Config config, const HardwareProfile& profile, int ranks_per_node) {
  config.set_effective("ranks_per_node", ranks_per_node);
  const bool is_gpu = profile.device == "cuda";
  const auto run = std::make_shared<const PlannedRun>(
      config, [&](TrainerOptions& options, const RunInputs& /*inputs*/) {
        options.trace = {};  // decides nothing in virtual time
        options.device = is_gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
        const auto ranks_here = std::min<std::int64_t>(options.ranks, ranks_per_node);
        if (!is_gpu) options.threads_per_rank = threads_of(config, profile, ranks_here);
      });
  const TrainerOptions& resolved = run->plan.options;
  SimulatedRun result{
      .run = run,
      .step = predict_step(run->plan, {.profile = profile,
                                       .ranks_per_node = ranks_per_node,
                                       .ranks_per_process = is_gpu ? 1 : ranks_per_node}),
      .tokens = sample_division(resolved).samples_per_step() * run->choice.sequence_length,
      .memory = device_bytes(run->plan)};
  const auto peak = profile.peak.find(std::string(to_string(resolved.precision)));
  if (peak != profile.peak.end()) {
    // The peak is a GPU's, or that of all cores of a node.
    const auto devices =
        static_cast<double>(is_gpu ? resolved.ranks : 1 + (resolved.ranks - 1) / ranks_per_node);
    GptConfig as_used = run->choice.config;
    as_used.context_length = run->choice.sequence_length;
    const double per_flop = result.tokens_per_second() / (peak->second.value * devices);
    result.peak_flops = peak->second.value;
    result.mfu = run->model.flops_per_item * per_flop;
    result.full_mfu = gpt_full_flops_per_token(as_used) * per_flop;
  }
  return result;
}

void write_trace(const std::string& path, const SimulatedRun& run) {
  const TrainingPlan& plan = run.plan();
  OutputFile file(path, "--trace");
  const auto ranks = programs_of(plan, plan.inputs.source, nullptr, nullptr);
  file.write(to_text(to_trace(ranks, plan.layout, plan.inputs.model, executor_options(plan.options),
                              run.step.spans, plan.options.strategy)));
}

}  // namespace tessera::cli
