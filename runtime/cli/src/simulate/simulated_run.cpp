#include "simulate/simulated_run.h"

#include <algorithm>

#include "output/run_report.h"
#include "settings/gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/lab/simulated_trace.h"
#include "tessera/lab/trace.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

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
  const GptChoice choice = choose_gpt(config);
  TrainerOptions options = trainer_options(config);
  options.trace = {};  // decides nothing in virtual time
  const bool is_gpu = profile.device == "cuda";
  options.device = is_gpu ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  const auto ranks_here = std::min<std::int64_t>(options.ranks, ranks_per_node);
  if (!is_gpu) options.threads_per_rank = threads_of(config, profile, ranks_here);
  const Model model = make_model(choice);
  const TokenShapes shapes(choice.sequence_length, choice.packing);
  SimulatedRun run{.plan = make_training_plan(model, shapes, options)};
  const TrainerOptions& resolved = run.plan.options;
  run.model = concat(model.name, ": ", describe_model(model, run.plan));
  run.step = simulate_step({&run.plan.schedule, &shapes}, run.plan.layout, model,
                           executor_options(resolved),
                           {.profile = profile,
                            .ranks_per_node = ranks_per_node,
                            .ranks_per_process = is_gpu ? 1 : ranks_per_node});
  run.tokens = sample_division(resolved).samples_per_step() * choice.sequence_length;
  const auto peak = profile.peak.find(std::string(to_string(resolved.precision)));
  if (peak != profile.peak.end()) {
    // The peak is a GPU's, or that of all cores of a node.
    const auto devices =
        static_cast<double>(is_gpu ? resolved.ranks : 1 + (resolved.ranks - 1) / ranks_per_node);
    run.mfu = model.flops_per_item * run.tokens_per_second() / (peak->second.value * devices);
  }
  run.memory = device_bytes(run.plan);
  return run;
}

void write_trace(Config config, const SimulatedRun& run) {
  OutputFile file(config.get<std::string>("trace"), "--trace");
  const GptChoice choice = choose_gpt(config);
  const Model model = make_model(choice);
  const TokenShapes shapes(choice.sequence_length, choice.packing);
  file.write(to_text(to_trace({&run.plan.schedule, &shapes}, run.plan.layout, model,
                              executor_options(run.plan.options), run.step.spans,
                              run.plan.options.strategy)));
}

}  // namespace tessera::cli
