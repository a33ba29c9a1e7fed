// The cost of the flight recorder: a step with it and without, in turns, and one record.
//
//   recorder_bench [--model gpt2-tiny] [--ranks N] [--steps S] [--rounds R]
//
// Each round runs S steps of full_shard on N in-process ranks of one thread, without the recorder
// and with it. Medians of the rounds' mean steps, and of with/without in brackets the quartiles.
#include "support.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/planner.h"
#include "tessera/trainer/launch.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string model = "gpt2-tiny";
  int ranks = 2;
  int steps = 10;
  int rounds = 11;
};

/// Mean seconds of a step of rank 0, after one to warm up.
double step_seconds(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                    const BatchSource& source, const Options& options, bool recorded) {
  double seconds = 0.0;
  const auto world = make_thread_group(options.ranks);
  launch_ranks(world, [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    FlightRecorder recorder;
    ExecutorOptions own;
    own.recorder = recorded ? &recorder : nullptr;
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, own);
    executor.run_step(0, 1e-3);
    const double took = seconds_of([&] {
      for (int step = 1; step <= options.steps; ++step) executor.run_step(step, 1e-3);
    });
    if (rank == 0) seconds = took / options.steps;
  });
  return seconds;
}

double record_seconds() {
  constexpr int kRecords = 10'000'000;
  ActionRing ring;
  return seconds_of([&] {
           for (int i = 0; i < kRecords; ++i) {
             ring.begin(0, i, 0, 1.0);
             ring.end(2.0);
           }
         }) /
         kRecords;
}

void run(const Options& options) {
  const GptConfig config = gpt_preset(options.model);
  const Model model = make_gpt(config);
  const RandomTokens source(64, config.vocab_size);
  const Mesh mesh = make_mesh(options.ranks, 1);
  const ModelLayout layout = make_layout(model, {}, flat_parts(mesh));
  const Strategy& strategy = find_strategy("full_shard");
  const Schedule schedule = plan(layout, {.mesh = mesh,
                                          .placement = strategy.placement,
                                          .reshard_after_forward = strategy.reshard_after_forward});
  std::vector<double> with, without, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    without.push_back(step_seconds(schedule, layout, model, source, options, false));
    with.push_back(step_seconds(schedule, layout, model, source, options, true));
    ratios.push_back(with.back() / without.back());
  }
  std::printf(
      "step of %s, %d ranks, %zu actions: %.3f ms without, %.3f ms with, ratio %.4f "
      "(%.4f to %.4f)\n",
      options.model.c_str(), options.ranks, schedule.actions.size(), 1e3 * median(without),
      1e3 * median(with), median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75));
  std::printf("one record, begun and ended: %.1f ns\n", 1e9 * record_seconds());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("recorder_bench", "A step with the flight recorder and without, and one record.");
  program.option("--model", &options.model, "a preset of GPT-2");
  program.option("--ranks", &options.ranks, "in one process, of one thread each", positive());
  program.option("--steps", &options.steps, "of a turn", positive());
  program.option("--rounds", &options.rounds, "turns", positive());
  return program.run(argc, argv, [&] { run(options); });
}
