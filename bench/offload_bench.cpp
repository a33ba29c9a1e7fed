// The cost of waiting in the host's memory: the optimizer's pass there beside the machine's memory
// bandwidth, and steps with and without offload, in turns.
//
//   offload_bench [--elements N] [--model gpt2-tiny] [--precision bf16] [--strategy full_shard]
//                 [--ranks N] [--threads T] [--micro-batch B] [--sequence-length L] [--steps S]
//                 [--rounds R] [--only pass|steps] [--json]
//
// AdamW's pass over master weights, moments and gradient, with bf16 parameters out, moves 30 bytes
// per parameter; its GB/s are given as a share of STREAM's triad (the faster of streaming and
// ordinary stores), timed in turns with it. The goal is 90 %. Then each round runs S steps with
// everything on the device, and with the optimizer's state, the parameters or the activations in
// the host's memory. All recompute their blocks, so that activations can leave. Medians of the
// rounds' mean steps, of with / without in brackets the quartiles, and how much of the copies
// neither the compute nor the optimizer's lane works beside. The disk tier: disk_bench. Beside the
// optimizers of PyTorch and DeepSpeed: peers/compare_optimizer.py.

// Before anything that may include Highway.
#include "memory_cases.h"

#include <nlohmann/json.hpp>

#include "bench/kernel_cases.h"
#include "support.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/core/thread_team.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/timeline.h"
#include "tessera/trainer/launch.h"

namespace tessera::bench {
namespace {

struct Options {
  std::int64_t elements = std::int64_t{1} << 25;
  std::string model = "gpt2-tiny";
  std::string precision = "bf16";
  std::string strategy = "full_shard";
  int ranks = 2;
  int threads = 1;
  std::int64_t micro_batch = 4;
  std::int64_t length = 64;
  int steps = 10;
  int rounds = 7;
  std::string only = "";
  bool json = false;
};

/// Seconds of the pass and of the triad's two forms.
nlohmann::ordered_json measure_pass(const Options& options) {
  const TeamLimit threads(options.ranks * options.threads);
  omp_set_num_threads(options.ranks * options.threads);  // of the triad
  KernelLab lab(make_cpu_device(), options.ranks * options.threads, {.shard = options.elements});
  NoStream stream;
  const Tensors tensors(lab, options.elements);
  const PreparedKernel adamw = kernel_case("optimizer_step/adamw/parameter:bf16").prepare(lab);
  const Triad triad = make_triad(tensors);
  std::vector<double> pass, limit, share;
  for (int round = -1; round < options.rounds; ++round) {
    const double triads = std::min(seconds_of(triad.streaming), seconds_of(triad.ordinary));
    const double seconds = seconds_of([&] { adamw.call(stream); });
    if (round < 0) continue;  // to warm up
    pass.push_back(adamw.bytes / seconds * 1e-9);
    limit.push_back(triad.bytes / triads * 1e-9);
    share.push_back(pass.back() / limit.back());
  }
  std::printf(
      "adamw, bf16 parameter out, %lld elements, %d threads: %.1f GB/s, %.0f %% (%.0f to %.0f) of "
      "the triad's "
      "%.1f GB/s; goal: 90 %%\n",
      static_cast<long long>(options.elements), options.ranks * options.threads, median(pass),
      100 * median(share), 100 * quantile(share, 0.25), 100 * quantile(share, 0.75), median(limit));
  return {{"pass_gb_per_second", pass}, {"triad_gb_per_second", limit}};
}

/// The shares of state in the host's memory.
struct Variant {
  const char* name;
  double optimizer, parameters;
  bool activations;
};
constexpr Variant kVariants[] = {{"none", 0.0, 0.0, false},
                                 {"optimizer", 1.0, 0.0, false},
                                 {"parameters", 1.0, 1.0, false},
                                 {"activations", 0.0, 0.0, true}};

/// Times of a step of rank 0.
struct StepTime {
  double seconds = 0.0;
  double copying = 0.0, exposed = 0.0;
};

/// The mean after a step to warm up; the copies of the last step.
StepTime time_steps(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                    const BatchSource& source, const Options& options) {
  StepTime result;
  const auto world = make_thread_group(options.ranks);
  launch_ranks(world, [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    tessera::Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    ExecutorOptions own;
    own.micro_batch = options.micro_batch;
    own.threads = options.threads;
    own.trace = true;
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, own);
    executor.run_step(0, 1e-3);
    const double took = seconds_of([&] {
      for (int step = 1; step <= options.steps; ++step) executor.run_step(step, 1e-3);
    });
    if (rank != 0) return;
    const LaneTime copies = time_of({Lane::kCopyOut, Lane::kCopyIn}, executor.spans());
    result = {took / options.steps, copies.busy, copies.exposed};
  });
  return result;
}

nlohmann::ordered_json measure_steps(const Options& options) {
  const GptConfig config = gpt_preset(options.model);
  const Model model = make_gpt(config);
  const RandomTokens source(options.length, config.vocab_size);
  const Strategy& strategy = find_strategy(options.strategy);
  const Mesh mesh = make_mesh(options.ranks, default_replicas(strategy, options.ranks));
  const ModelLayout layout = make_layout(model, {}, flat_parts(mesh));
  const DType dtype = parse_dtype(options.precision);
  std::vector<Schedule> schedules;
  for (const Variant& variant : kVariants) {
    PlanOptions planned{.mesh = mesh,
                        .placement = strategy.placement,
                        .reshard_after_forward = strategy.reshard_after_forward,
                        .parameter_dtype = dtype,
                        .policy = {.recompute = Recompute::kFull},
                        .offload_optimizer = variant.optimizer,
                        .offload_parameters = variant.parameters};
    if (variant.activations) {
      planned.offload_activations =
          layer_input_numels(model, layout, source, options.micro_batch, dtype);
    }
    schedules.push_back(plan(layout, planned));
  }
  std::vector<std::vector<StepTime>> times(schedules.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t v = 0; v < schedules.size(); ++v) {
      times[v].push_back(time_steps(schedules[v], layout, model, source, options));
    }
  }
  std::printf("steps of %s, %s, %s, %d ranks of %d threads, on the host:\n", options.model.c_str(),
              options.strategy.c_str(), options.precision.c_str(), options.ranks, options.threads);
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t v = 0; v < schedules.size(); ++v) {
    std::vector<double> seconds, ratios, copying, exposed;
    for (std::size_t round = 0; round < times[v].size(); ++round) {
      seconds.push_back(times[v][round].seconds);
      ratios.push_back(seconds.back() / times[0][round].seconds);
      copying.push_back(times[v][round].copying);
      exposed.push_back(times[v][round].exposed);
    }
    std::printf("  %-12s %9.3f ms  ratio %.3f (%.3f to %.3f)  copies %.3f ms, exposed %.3f ms\n",
                kVariants[v].name, 1e3 * median(seconds), median(ratios), quantile(ratios, 0.25),
                quantile(ratios, 0.75), 1e3 * median(copying), 1e3 * median(exposed));
    json[kVariants[v].name] = {
        {"seconds", seconds}, {"copy_seconds", copying}, {"exposed_copy_seconds", exposed}};
  }
  return json;
}

void run(const Options& options) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (options.only != "steps") json = measure_pass(options);
  if (options.only != "pass") json["steps"] = measure_steps(options);
  if (options.json) std::printf("%s\n", json.dump().c_str());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("offload_bench",
                  "The optimizer's pass on the host, and steps with and without offload.");
  program.option("--elements", &options.elements, "parameters of the pass, as 32M",
                 {.positive = true, .size = true});
  program.option("--model", &options.model, "a preset of GPT-2");
  program.option("--precision", &options.precision, "of parameters and activations",
                 one_of({"fp32", "bf16"}));
  program.option("--strategy", &options.strategy, "that shards parameters as the optimizer");
  program.option("--ranks", &options.ranks, "in one process", positive());
  program.option("--threads", &options.threads, "of a rank; the pass has those of all", positive());
  program.option("--micro-batch", &options.micro_batch, "samples", positive());
  program.option("--sequence-length", &options.length, "tokens of a sample", positive());
  program.option("--steps", &options.steps, "of a turn", positive());
  program.option("--rounds", &options.rounds, "turns", positive());
  program.option("--only", &options.only, "measure this alone", one_of({"pass", "steps"}));
  program.option("--json", &options.json, "a last line for programs");
  return program.run(argc, argv, [&] { run(options); });
}
