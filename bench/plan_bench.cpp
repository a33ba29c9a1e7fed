// Planning and validating a step of 96 layers on 16,384 ranks, and of 64 stages of a pipeline.
//
//   plan_bench [--filter validate] [--repetitions 5]
#include "registered_benchmarks.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/pipeline.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/sharding/validate.h"

namespace tessera {
namespace {

constexpr int kRanks = 16384;

const ModelLayout& layout() {
  static const Model model = make_gpt(
      {.vocab_size = 50257, .context_length = 2048, .layers = 96, .heads = 96, .width = 12288});
  static const ModelLayout made = make_layout(model, {}, flat_parts(make_mesh(kRanks, 1)));
  return made;
}

PlanOptions options(int micro_steps) {
  const Strategy& strategy = find_strategy("full_shard");
  return {.mesh = make_mesh(kRanks, 1),
          .placement = strategy.placement,
          .reshard_after_forward = strategy.reshard_after_forward,
          .micro_steps = micro_steps};
}

void plan_step(benchmark::State& state) {
  const PlanOptions wanted = options(static_cast<int>(state.range(0)));
  std::size_t actions = 0;
  for (auto _ : state) actions = plan(layout(), wanted).actions.size();
  state.counters["actions"] = static_cast<double>(actions);
}
BENCHMARK(plan_step)->Arg(1)->Arg(8)->ArgName("micro_steps")->Unit(benchmark::kMillisecond);

void validate_step(benchmark::State& state) {
  const Schedule schedule = plan(layout(), options(static_cast<int>(state.range(0))));
  for (auto _ : state) benchmark::DoNotOptimize(validate(schedule));
}
BENCHMARK(validate_step)->Arg(1)->Arg(8)->ArgName("micro_steps")->Unit(benchmark::kMillisecond);

void account_step(benchmark::State& state) {
  const Schedule schedule = plan(layout(), options(static_cast<int>(state.range(0))));
  for (auto _ : state) {
    benchmark::DoNotOptimize(account_traffic(schedule));
    benchmark::DoNotOptimize(account_memory(schedule));
  }
}
BENCHMARK(account_step)->Arg(1)->Arg(8)->ArgName("micro_steps")->Unit(benchmark::kMillisecond);

constexpr int kStages = 64;

/// A pipeline's first and last rank share no matrix.
const ModelLayout& staged_layout() {
  static const Model model = make_gpt({.vocab_size = 50257,
                                       .context_length = 2048,
                                       .layers = 96,
                                       .heads = 96,
                                       .width = 12288,
                                       .tie_embedding = false});
  static const ModelLayout made =
      make_layout(model, {}, flat_parts(make_mesh(kRanks / kStages, 1)));
  return made;
}

/// A stage on each of 64 pipeline ranks, 1F1B.
PlanOptions staged_options(int micro_steps) {
  PlanOptions staged = options(micro_steps);
  staged.mesh = make_mesh(kRanks / kStages, 1);
  staged.mesh.set_size(Axis::kPipeline, kStages);
  const auto layers = static_cast<int>(staged_layout().layers.size());
  for (int stage = 0; stage < kStages; ++stage) {
    staged.pipeline.first_layers.push_back(stage * layers / kStages);
    staged.pipeline.input_numels.push_back(stage == 0 ? 0 : std::int64_t{2048} * 12288);
  }
  return staged;
}

/// The order of passes and messages of all ranks, which each rank's plan begins with.
void order_stages(benchmark::State& state) {
  const auto micro_steps = static_cast<int>(state.range(0));
  const PipelineShape shape{.ranks = 64, .stages = 64, .micro_steps = micro_steps};
  std::vector<std::vector<StagePass>> passes;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    passes.push_back(pipeline_passes(PipelineOrder::kOneForwardOneBackward, shape, rank));
  }
  for (auto _ : state) benchmark::DoNotOptimize(with_messages(passes, shape, 1));
}
BENCHMARK(order_stages)->Arg(128)->Arg(1024)->ArgName("micro_steps")->Unit(benchmark::kMillisecond);

void plan_stages(benchmark::State& state) {
  const PlanOptions wanted = staged_options(static_cast<int>(state.range(0)));
  std::size_t actions = 0;
  for (auto _ : state) {
    actions = 0;
    for (const Schedule& schedule : plan_step(staged_layout(), wanted).ranks) {
      actions += schedule.actions.size();
    }
  }
  state.counters["actions"] = static_cast<double>(actions);
}
BENCHMARK(plan_stages)->Arg(128)->Arg(1024)->ArgName("micro_steps")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::bench::run_registered_benchmarks(
      "plan_bench",
      "What a plan costs: plan, validation and accounting of one step of a GPT with 96 layers on "
      "16,384 ranks, and of 64 stages of it.",
      argc, argv);
}
