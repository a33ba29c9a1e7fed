// Planning and validating a step of 96 layers on 16,384 ranks.
//
//   plan_bench [--filter validate] [--repetitions 5]
#include "registered_benchmarks.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/plan.h"
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

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::bench::run_registered_benchmarks(
      "plan_bench",
      "What a plan costs: plan, validation and accounting of one step of a GPT with 96 layers on "
      "16,384 ranks.",
      argc, argv);
}
