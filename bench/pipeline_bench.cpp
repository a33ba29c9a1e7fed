// The bubble of a pipeline: how much of their time its ranks wait for each other in a step.
//
//   pipeline_bench [--model gpt2-tiny] [--layers N] [--ranks 2,4] [--micro-steps M] [--order 1f1b]
//                  [--virtual-stages V] [--micro-batch B] [--sequence-length L] [--steps S]
//                  [--json]
//
// Pipeline ranks are ranks of one process, one thread each; stages have equally many blocks. More
// ranks than cores would wait for cores, not for each other. So what is measured is the CPU time of
// each action of the compute lanes, and the step that these come to is played on virtual clocks, in
// which ranks compute side by side: measured. Predicted is the same step with the mean over
// micro-steps of each layer's passes: a planner knows these that has timed every layer on its rank.
// The third step has the mean of all blocks: between it and the prediction is what layers differ
// by, and between the prediction and the measured step what micro-steps differ by. The first and
// the last stage also have embedding and head.

#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/launch.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string model = "gpt2-tiny";
  std::int64_t layers = 8;
  std::vector<std::int64_t> ranks{2, 4};
  int micro_steps = 8;
  std::string order = "1f1b";
  int virtual_stages = 0;  ///< 0: as the order usually has
  std::int64_t micro_batch = 4;
  std::int64_t length = 64;
  int steps = 12;  ///< medians of fewer have an error that lengthens the step
  bool json = false;
};

/// By action of one pipeline rank: CPU seconds in each step.
using ActionTimes = std::vector<std::vector<double>>;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Written by the thread of a rank's compute lane alone.
class LaneClock {
 public:
  explicit LaneClock(const Schedule& schedule)
      : schedule_(schedule), times_(schedule.actions.size()) {}
  /// An action begins: the one before it is over.
  void begin(std::int64_t step, const Action& action) {
    const double now = thread_seconds();
    if (last_ != nullptr && step_ > 0) {  // the first one is to warm up
      times_[static_cast<std::size_t>(last_ - schedule_.actions.data())].push_back(now - begin_);
    }
    last_ = &action;
    step_ = step;
    begin_ = now;
  }
  const ActionTimes& times() const { return times_; }

 private:
  const Schedule& schedule_;
  const Action* last_ = nullptr;
  std::int64_t step_ = 0;
  double begin_ = 0.0;
  ActionTimes times_;
};

/// A model that is cut into stages.
struct Pipeline {
  Pipeline(const Options& given, int count) : options(given), ranks(count) {
    const PipelineOrder order = parse_pipeline_order(options.order);
    const int stages =
        ranks * (options.virtual_stages > 0 ? options.virtual_stages : usual_virtual_stages(order));
    GptConfig config = gpt_preset(options.model);
    config.layers = options.layers;
    model = make_gpt(config);
    source = std::make_unique<RandomTokens>(options.length, config.vocab_size);
    std::vector<int> first{0};
    for (int s = 1; s < stages; ++s) {
      first.push_back(1 + static_cast<int>(options.layers) * s / stages);
    }
    Mesh mesh = make_mesh(1, 1);
    mesh.set_size(Axis::kPipeline, ranks);
    layout = make_layout(model, {}, flat_parts(mesh), kFlatAlignment, true);
    const auto inputs =
        layer_input_numels(model, layout, *source, options.micro_batch, DType::kFloat32);
    step = plan_step(layout, {.mesh = mesh,
                              .placement = find_strategy("no_shard").placement,
                              .pipeline = {.first_layers = first,
                                           .stage_ranks = stage_ranks(order, ranks, stages),
                                           .order = order,
                                           .input_numels = stage_input_numels(inputs, first)},
                              .micro_steps = options.micro_steps,
                              .updates_wait_for_norm = false});
    require_valid(step);
    executor.micro_batch = options.micro_batch;
    executor.optimizer.clip_norm = 0.0;
  }

  const Options& options;
  const int ranks;
  Model model;
  std::unique_ptr<RandomTokens> source;
  ModelLayout layout;
  StepPlan step;
  ExecutorOptions executor;
};

/// By pipeline rank and action: the median of its CPU times; 0 of other lanes than the compute one.
std::vector<std::vector<double>> measure(const Pipeline& pipeline) {
  std::vector<const Schedule*> schedules;
  std::deque<LaneClock> clocks;
  for (const Schedule& schedule : pipeline.step.ranks) {
    schedules.push_back(&schedule);
    clocks.emplace_back(schedule);
  }
  launch_ranks(make_thread_group(pipeline.ranks), [&](int rank, ProcessGroup& group) {
    const auto r = static_cast<std::size_t>(rank);
    const auto device = make_cpu_device();
    tessera::Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedules);
    TrainingState state(pipeline.layout, state_options(*schedules[r]), rank, memory);
    ExecutorOptions own = pipeline.executor;
    own.before_action = [&clock = clocks[r]](int, std::int64_t step, const Action& action) {
      if (action.lane == Lane::kCompute) clock.begin(step, action);
    };
    Executor executor(state, pipeline.model, {{schedules[r], pipeline.source.get()}}, groups,
                      memory, own);
    for (int step = 0; step <= pipeline.options.steps + 1; ++step) executor.run_step(step, 1e-3);
  });
  std::vector<std::vector<double>> seconds;
  for (const LaneClock& clock : clocks) {
    auto& of_rank = seconds.emplace_back();
    for (const std::vector<double>& times : clock.times()) {
      of_rank.push_back(times.empty() ? 0.0 : median(times));
    }
  }
  return seconds;
}

bool is_pass_of_block(const Pipeline& pipeline, const Action& action) {
  return action.operation->is_pass && action.layer > 0 &&
         action.layer <= static_cast<int>(pipeline.options.layers);
}

enum class Mean {
  kOfBlocks,  ///< over all blocks and micro-steps
  kOfLayers,  ///< over the micro-steps of each layer
};

/// Each pass takes as long as the mean of those that are alike: passes of blocks alone, or of every
/// layer; the others what they take.
std::vector<std::vector<double>> with_means(const Pipeline& pipeline, Mean mean,
                                            std::vector<std::vector<double>> seconds) {
  std::map<std::pair<const Operation*, int>, std::vector<double*>> alike;
  for (std::size_t r = 0; r < seconds.size(); ++r) {
    const std::vector<Action>& actions = pipeline.step.ranks[r].actions;
    for (std::size_t a = 0; a < actions.size(); ++a) {
      const Action& action = actions[a];
      const bool is_of_layer = mean == Mean::kOfLayers && action.operation->is_pass;
      if (!is_of_layer && !is_pass_of_block(pipeline, action)) continue;
      alike[{action.operation, is_of_layer ? action.layer : 0}].push_back(&seconds[r][a]);
    }
  }
  for (const auto& [kind, times] : alike) {
    double sum = 0.0;
    for (const double* const time : times) sum += *time;
    for (double* const time : times) *time = sum / static_cast<double>(times.size());
  }
  return seconds;
}

struct Played {
  double seconds = 0.0;
  double bubble = 0.0;  ///< share of all ranks' time
};

/// The step in which actions take so long, on virtual clocks.
Played play(const Pipeline& pipeline, const std::vector<std::vector<double>>& seconds) {
  std::vector<std::vector<tessera::Program>> ranks;
  std::vector<ExecutorOptions> options;
  double work = 0.0;
  for (std::size_t r = 0; r < seconds.size(); ++r) {
    const Schedule& schedule = pipeline.step.ranks[r];
    ranks.push_back({{&schedule, pipeline.source.get()}});
    options.push_back(pipeline.executor);
    options.back().cost = [&of_rank = seconds[r]](const Schedule& s, const Action& action) {
      return of_rank[static_cast<std::size_t>(&action - s.actions.data())];
    };
    work = std::accumulate(seconds[r].begin(), seconds[r].end(), work);
  }
  Played played;
  for (const tessera::Simulation& rank :
       tessera::simulate(ranks, pipeline.layout, pipeline.model,
                         state_options(pipeline.step.ranks.front()), options)) {
    for (const ActionSpan& span : rank.spans) played.seconds = std::max(played.seconds, span.end);
  }
  played.bubble = 1.0 - work / (played.seconds * static_cast<double>(seconds.size()));
  return played;
}

void run(const Options& options) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::printf("%s of %lld blocks, %s, %d micro-steps of %lld x %lld tokens\n",
              options.model.c_str(), static_cast<long long>(options.layers), options.order.c_str(),
              options.micro_steps, static_cast<long long>(options.micro_batch),
              static_cast<long long>(options.length));
  for (const std::int64_t ranks : options.ranks) {
    const Pipeline pipeline(options, static_cast<int>(ranks));
    const auto seconds = measure(pipeline);
    const Played measured = play(pipeline, seconds);
    const Played predicted = play(pipeline, with_means(pipeline, Mean::kOfLayers, seconds));
    const Played equal_blocks = play(pipeline, with_means(pipeline, Mean::kOfBlocks, seconds));
    const int stages = pipeline.step.ranks.front().pipeline.stages();
    std::printf(
        "%lld ranks, %d stages: step %.2f ms, bubble %.1f %%; predicted %.2f ms, %.1f %%; were all "
        "blocks equal %.2f ms, %.1f %%\n",
        static_cast<long long>(ranks), stages, 1e3 * measured.seconds, 100 * measured.bubble,
        1e3 * predicted.seconds, 100 * predicted.bubble, 1e3 * equal_blocks.seconds,
        100 * equal_blocks.bubble);
    json.push_back({{"ranks", ranks},
                    {"stages", stages},
                    {"seconds", measured.seconds},
                    {"bubble", measured.bubble},
                    {"predicted_seconds", predicted.seconds},
                    {"predicted_bubble", predicted.bubble},
                    {"equal_blocks_seconds", equal_blocks.seconds},
                    {"equal_blocks_bubble", equal_blocks.bubble}});
  }
  if (options.json) std::printf("%s\n", json.dump().c_str());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("pipeline_bench", "How long the stages of a pipeline wait for each other.");
  program.option("--model", &options.model, "a preset of GPT-2");
  program.option("--layers", &options.layers, "blocks", positive());
  program.option("--ranks", &options.ranks, "numbers of pipeline ranks", positive());
  program.option("--virtual-stages", &options.virtual_stages, "on each; 0: as the order has");
  program.option("--micro-steps", &options.micro_steps, "of a step", positive());
  program.option("--order", &options.order, "of the passes",
                 one_of({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}));
  program.option("--micro-batch", &options.micro_batch, "samples", positive());
  program.option("--sequence-length", &options.length, "tokens of a sample", positive());
  program.option("--steps", &options.steps, "that are measured", positive());
  program.option("--json", &options.json, "a last line for programs");
  return program.run(argc, argv, [&] { run(options); });
}
