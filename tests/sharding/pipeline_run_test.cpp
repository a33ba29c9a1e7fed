#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/extent.h"
#include "support/folder_in_memory.h"
#include "support/frozen_layers.h"
#include "support/pipeline_chain.h"
#include "support/pipeline_parity.h"
#include "tessera/sharding/operation.h"

// Pipelines on threads where they are least at ease: their bits are those of one stage.
namespace tessera::test::pipeline_run_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// An embedding, three blocks and a head, on three stages.
SmallRun three_stages() {
  SmallRun run{.strategy = "no_shard", .steps = 3, .micro_steps = 4};
  run.first_layers = {0, 2, 3};
  return run;
}

/// A way to make a run harder.
struct Case {
  std::string name;
  std::function<void(SmallRun&)> edit;
};

/// Every case under both orders, all against one run of one stage, of which `plain` takes away
/// what must make no difference.
void expect_bits_of_one_stage(const SmallRun& base, const std::vector<Case>& cases,
                              const std::function<void(SmallRun&)>& plain = {}) {
  for (const Case& one : cases) {
    SmallRun run = base;
    one.edit(run);
    SmallRun whole = in_one_stage(run);
    if (plain) plain(whole);
    const SmallResult expected = train(whole);
    for (const PipelineOrder order : kPipelineOrders) {
      run.pipeline_order = order;
      expect_same(run, expected, concat(one.name, ", ", to_string(order)));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(PipelineRun, TakesAsFewMicroStepsAsThereAre) {
  std::vector<Case> cases;
  for (const int micro_steps : {1, 2, 3, 4}) {
    for (const int depth : {0, 1, 3}) {
      cases.push_back(
          {concat(micro_steps, " micro-steps, ", depth, " messages ahead"), [=](SmallRun& run) {
             run.micro_steps = micro_steps;
             run.pipeline_prefetch = depth;
             run.steps = 2;
           }});
    }
  }
  expect_bits_of_one_stage(three_stages(), fewer_if_sanitized(cases, 5));
}

TEST(PipelineRun, TakesAStagePerLayer) {
  expect_bits_of_one_stage(three_stages(), {{"five stages",
                                             [](SmallRun& run) {
                                               run.first_layers = {0, 1, 2, 3, 4};
                                               run.micro_steps = 6;
                                             }},
                                            {"a head by itself",
                                             [](SmallRun& run) {
                                               run.first_layers = {0, 4};
                                             }},
                                            {"an embedding by itself", [](SmallRun& run) {
                                               run.first_layers = {0, 1};
                                             }}});
}

TEST(PipelineRun, KeepsStateGradientsAndActivationsElsewhere) {
  const auto nothing_away = [](SmallRun& run) {
    run.offload_optimizer = run.offload_parameters = run.offload_gradients = 0.0;
    run.disk_optimizer = run.disk_parameters = 0.0;
    run.offload_activations = false;
  };
  std::vector<Case> cases;
  for (const bool tied : {true, false}) {
    for (const double share : {0.5, 1.0}) {
      const std::string ends = concat(tied ? ", tied" : "", ", ", share);
      const auto add = [&](const std::string& what, double SmallRun::*option, bool both = false) {
        cases.push_back({what + ends, [=](SmallRun& run) {
                           run.tied = tied;
                           run.*option = share;
                           if (both) run.offload_gradients = run.offload_parameters = share;
                         }});
      };
      add("the optimizer on the host", &SmallRun::offload_optimizer);
      add("parameters on the host", &SmallRun::offload_parameters);
      add("gradients on the host", &SmallRun::offload_gradients);
      add("the optimizer on disk", &SmallRun::disk_optimizer);
      add("parameters on disk", &SmallRun::disk_parameters);
      add("all on the host", &SmallRun::offload_optimizer, true);
      add("the optimizer on disk, all else on the host", &SmallRun::disk_optimizer, true);
    }
    for (const int depth : {0, 1, 2}) {
      cases.push_back({concat("activations on the host, ", depth, " ahead", tied ? ", tied" : ""),
                       [=](SmallRun& run) {
                         run.tied = tied;
                         run.layers = 5;
                         run.first_layers = {0, 3, 5};
                         run.policy.recompute = Recompute::kFull;
                         run.policy.prefetch_host = depth;
                         run.offload_activations = true;
                       }});
    }
  }
  SmallRun base = three_stages();
  base.steps = 2;
  expect_bits_of_one_stage(base, cases, nothing_away);
  base.ranks = 2;
  base.strategy = "full_shard";
  base.dtype = DType::kBFloat16;
  if (!runs_ci_tests()) return;
  if (!runs_long_tests()) {  // half: a share has seven options, so the shares take turns with them
    std::size_t number = 0;
    std::erase_if(cases, [&](const Case&) { return number++ % 2 != 0; });
  }
  expect_bits_of_one_stage(base, cases, nothing_away);
}

TEST(PipelineRun, TakesEveryOptimizer) {
  std::vector<Case> cases;
  for (const char* const optimizer : {"adamw8bit", "sgd", "lion", "adafactor"}) {
    for (const int ranks : {1, 2}) {
      cases.push_back({concat(optimizer, ", ", ranks, " ranks"), [=](SmallRun& run) {
                         run.optimizer = optimizer;
                         run.ranks = ranks;
                         run.strategy = ranks > 1 ? "full_shard" : "no_shard";
                       }});
    }
  }
  expect_bits_of_one_stage(three_stages(), cases);
}

TEST(PipelineRun, TakesStepsInFlightAndSplitBackwards) {
  const auto in_flight = [](SmallRun& run) { run.steps_in_flight = 2, run.steps = 5; };
  const auto split = [](SmallRun& run) { run.policy.split_backward = true; };
  expect_bits_of_one_stage(three_stages(),
                           {{"two steps in flight", in_flight},
                            {"two steps in flight, full_shard",
                             [&](SmallRun& run) {
                               in_flight(run);
                               run.ranks = 2;
                               run.strategy = "full_shard";
                             }},
                            {"two steps in flight, the optimizer on the host",
                             [&](SmallRun& run) {
                               in_flight(run);
                               run.offload_optimizer = 1.0;
                             }},
                            {"split", split},
                            {"split and recomputed",
                             [&](SmallRun& run) {
                               split(run);
                               run.policy.recompute = Recompute::kFull;
                             }},
                            {"split, in flight",
                             [&](SmallRun& run) {
                               split(run);
                               in_flight(run);
                             }}},
                           [](SmallRun& run) {
                             run.steps_in_flight = 1;
                             run.policy.split_backward = false;
                           });
}

SmallRun with_lora(SmallRun run) {
  run.adapter = {.kind = LoraOptions{.rank = 2}, .targets = {"c_attn", "c_proj"}};
  return run;
}

TEST(PipelineRun, TrainsAdaptersOfAQuantisedBase) {
  SmallRun base = with_lora(three_stages());
  base.base_format = WeightFormat::kNf4;
  std::vector<Case> cases;
  for (const bool tied : {true, false}) {
    for (const char* const strategy : {"no_shard", "full_shard"}) {
      cases.push_back({concat(strategy, tied ? ", tied" : ""), [=](SmallRun& run) {
                         run.tied = tied;
                         run.strategy = strategy;
                         run.ranks = strategy == std::string("no_shard") ? 1 : 2;
                       }});
    }
  }
  expect_bits_of_one_stage(base, cases);
}

// Stages before the first layer that trains have no backward, and nobody sends them gradients.
TEST(PipelineRun, OfUpperLayersAloneSendsNoGradientsBelowThem) {
  SmallRun run = with_lora(three_stages());
  run.layers = 4;
  run.first_layers = {0, 2, 3, 4};
  for (const int trains_from : {2, 3}) {
    std::vector<std::string> frozen;
    for (int block = 0; block < trains_from; ++block) frozen.push_back(concat("h.", block, '.'));
    run.edit = freeze(frozen);
    const SmallResult expected = train(in_one_stage(run));
    for (const PipelineOrder order : kPipelineOrders) {
      run.pipeline_order = order;
      expect_same(run, expected, concat("from block ", trains_from, ", ", to_string(order)));
      const StepPlan step = train(run).step;
      for (const Schedule& schedule : step.ranks) {
        const bool trains = schedule.layers_of(schedule.pipeline.rank).end > trains_from + 1;
        int backwards = 0, sent_back = 0, received_back = 0;
        for (const Action& action : schedule.actions) {
          backwards += action.operation->parts.backward ? 1 : 0;
          sent_back += action.lane == Lane::kSendBack ? 1 : 0;
          received_back += action.lane == Lane::kReceiveBack ? 1 : 0;
        }
        const int stage = schedule.pipeline.rank;
        EXPECT_EQ(backwards > 0, trains) << "stage " << stage;
        const bool is_first = trains && schedule.layers_of(stage).begin <= trains_from + 1;
        EXPECT_EQ(sent_back, trains && !is_first ? run.micro_steps : 0) << "stage " << stage;
        EXPECT_EQ(received_back > 0, trains && stage < 3) << "stage " << stage;
      }
    }
  }
}

// Ranks add up one micro-step each in their order, as one process its own; a norm's partials are
// added exactly, so that it does not depend on who has which.
TEST(PipelineRun, HasTheNormsOfOneProcess) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {1, 2, 3}) {
      const SmallResult expected =
          train({.tied_apart = true, .strategy = "no_shard", .micro_steps = ranks, .dtype = dtype});
      for (const char* const strategy : {"no_shard", "zero2", "full_shard"}) {
        SmallRun run = three_stages();
        run.dtype = dtype;
        run.strategy = strategy;
        run.ranks = ranks;
        run.micro_steps = 1;
        expect_same(run, expected, concat(strategy, ", ", ranks, " ranks, ", to_string(dtype)));
      }
    }
  }
}

// ---- Delays ------------------------------------------------------------------------------------

/// What a run of a chain leaves.
struct ChainOutcome {
  std::vector<double> losses, norms, scales;
  std::vector<bool> skipped;
  std::vector<std::string> non_finite;  ///< of steps at the least loss scale
  std::vector<double> evaluated;
  std::vector<FullParameter> parameters;
};

/// A chain on threads: training, and an evaluation of the same state if `held_out` is not 0.
struct ChainRunOptions {
  int steps = 3;
  std::optional<std::uint32_t> delay_seed{};
  std::optional<LossScaling> loss_scaling{};
  std::int64_t held_out = 0;
  std::map<std::string, std::function<float(std::int64_t element, float value)>> initial{};
  const BatchSource* source = nullptr;  ///< instead of the chain's own
};

ChainOutcome run_chain(const PipelineChain& chain, const ChainRunOptions& run) {
  const StepPlan& step = chain.step();
  StepPlan evaluation;
  std::vector<const Schedule*> schedules;
  for (const Schedule& schedule : step.ranks) schedules.push_back(&schedule);
  if (run.held_out > 0) {
    PlanOptions options = plan_options(chain.run(), chain.model(), chain.layout(), chain.source());
    options.purpose = Purpose::kEvaluate;
    options.offload_activations.clear();
    options.micro_steps = 2;
    evaluation = plan_step(chain.layout(), options);
    require_valid(evaluation);
    for (const Schedule& schedule : evaluation.ranks) schedules.push_back(&schedule);
  }
  RandomVectors held_out(chain.run().dtype);
  held_out.ignored_from = run.held_out;
  const BatchSource& source = run.source != nullptr ? *run.source : chain.source();
  std::vector<ChainOutcome> outcomes(static_cast<std::size_t>(step.mesh().world_size()));
  launch_ranks(make_thread_group(step.mesh().world_size()), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(world, schedules);
    const auto stage = static_cast<std::size_t>(step.mesh().index(Axis::kPipeline, rank));
    const Schedule& schedule = step.ranks[stage];
    FaultyCalls calls;  // which has no faults, but takes folders in memory
    calls.plain_queues = true;
    TrainingState state(
        chain.layout(), state_options(schedule), rank, memory,
        {.folder = folder_in_memory().string(), .block_bytes = kDiskAlignment, .calls = &calls});
    ExecutorOptions options = executor_options(chain.run());
    options.loss_scaling = run.loss_scaling;
    if (run.delay_seed) options.before_task = random_delays(*run.delay_seed, rank);
    std::vector<Program> programs{{&schedule, &source}};
    if (run.held_out > 0) programs.push_back({&evaluation.ranks[stage], &held_out});
    Executor executor(state, chain.model(), programs, groups, memory, options);
    if (!run.initial.empty()) {
      std::map<std::string, std::vector<float>> given;
      for (FullParameter& parameter : executor.gather_parameters()) {
        const auto change = run.initial.find(parameter.name);
        for (std::size_t i = 0; change != run.initial.end() && i < parameter.values.size(); ++i) {
          parameter.values[i] = change->second(static_cast<std::int64_t>(i), parameter.values[i]);
        }
        given[parameter.name] = std::move(parameter.values);
      }
      executor.set_parameters(
          [&](const std::string& name) { return std::span<const float>(given.at(name)); });
    }
    ChainOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    for (int s = 0; s < run.steps; ++s) {
      if (run.held_out > 0) outcome.evaluated.push_back(executor.evaluate(1, run.held_out).loss);
      const StepResult result = executor.run_step(s, kRate);
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
      if (!result.loss_scale) continue;
      outcome.scales.push_back(static_cast<double>(result.loss_scale->scale));
      outcome.skipped.push_back(result.loss_scale->skipped);
      outcome.non_finite.push_back(result.loss_scale->non_finite);
    }
    outcome.parameters = executor.gather_parameters();
  });
  for (const ChainOutcome& outcome : outcomes) {  // all ranks hear the same
    EXPECT_EQ(outcome.losses, outcomes.front().losses);
    EXPECT_EQ(outcome.scales, outcomes.front().scales);
    EXPECT_EQ(outcome.skipped, outcomes.front().skipped);
    EXPECT_EQ(outcome.non_finite, outcomes.front().non_finite);
    EXPECT_EQ(outcome.evaluated, outcomes.front().evaluated);
    EXPECT_TRUE(same_bits(outcome.parameters, outcomes.front().parameters));
  }
  return std::move(outcomes.front());
}

PipelineSubject in_one_stage(PipelineSubject subject) {
  subject.run = tessera::test::in_one_stage(subject.run);
  return subject;
}

void expect_same(const ChainOutcome& many, const ChainOutcome& one, const std::string& what) {
  EXPECT_EQ(many.losses, one.losses) << what;
  EXPECT_EQ(many.scales, one.scales) << what;
  EXPECT_EQ(many.skipped, one.skipped) << what;
  EXPECT_EQ(many.evaluated, one.evaluated) << what;
  EXPECT_TRUE(same_bits(many.parameters, one.parameters)) << what;
}

TEST(PipelineRun, UnderRandomDelaysOfEveryLaneHasTheBitsOfOneStage) {
  const std::vector<PipelineSubject> all = pipeline_subjects();
  const std::size_t stride = runs_long_tests() ? 1 : 23;
  for (std::size_t i = 0; i < all.size(); i += stride) {
    const PipelineSubject& subject = all[i];
    if (subject.purpose != Purpose::kTrain) continue;
    const ChainOutcome one = run_chain(PipelineChain(in_one_stage(subject)), {.steps = 2});
    const PipelineChain chain(subject);
    for (std::uint32_t seed = 1; seed <= 2; ++seed) {
      const ChainOutcome many = run_chain(chain, {.steps = 2, .delay_seed = seed});
      expect_same(many, one, concat(subject.name, ", seed ", seed));
      EXPECT_EQ(many.norms, one.norms) << subject.name;
    }
    if (HasFailure()) return;
  }
}

TEST(PipelineRun, EvaluatesTheStateThatItTrainsAndCopies) {
  std::size_t number = 0;
  for (const char* const strategy : {"no_shard", "full_shard", "zero1"}) {
    for (const PipelineOrder order : kPipelineOrders) {
      for (const bool snapshot : {false, true}) {
        if (kSanitized && number++ % 5 != 0) continue;
        PipelineSubject subject{.name = strategy, .run = {.strategy = strategy}};
        subject.layers = 5;
        subject.snapshot = snapshot;
        subject.run.ranks = strategy == std::string("no_shard") ? 1 : 2;
        subject.run.first_layers = {0, 2, 4};
        subject.run.pipeline_order = order;
        subject.run.micro_steps = 3;
        const ChainRunOptions options{.delay_seed = 3, .held_out = 7};
        const ChainOutcome one = run_chain(PipelineChain(in_one_stage(subject)), options);
        ASSERT_EQ(one.evaluated.size(), 3U);
        EXPECT_NE(one.evaluated[0], one.evaluated[2]);
        expect_same(run_chain(PipelineChain(subject), options), one,
                    concat(strategy, ", ", to_string(order), snapshot ? ", with snapshots" : ""));
      }
    }
  }
}

// ---- Loss scaling ------------------------------------------------------------------------------

/// Vectors whose first element is very large in some samples.
class LargeFirstElements : public RandomVectors {
 public:
  LargeFirstElements() : RandomVectors(DType::kFloat32) {}
  std::vector<std::int64_t> samples;

  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    const std::int64_t counted = RandomVectors::fill(first, n, inputs, targets);
    for (const std::int64_t sample : samples) {
      if (sample < first || sample >= first + n) continue;
      inputs.as<float>()[(sample - first) * kWidth] = 1e30F;
    }
    return counted;
  }
};

/// A weight (kWidth, kWidth) that pays no attention to its input's first element.
float without_first_column(std::int64_t element, float value) {
  return element % kWidth == 0 ? 0.0F : value;
}

// The first layer's weight does not look at an element that is very large: activations are what
// they are without it, and so are gradients of all other stages; that of this weight overflows.
TEST(PipelineRun, SkipsTheStepOnAllRanksWhereTheFirstStageOverflows) {
  PipelineSubject subject{.name = "first stage overflows", .run = {.strategy = "no_shard"}};
  subject.layers = 4;
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 2;
  LargeFirstElements source;
  source.samples = {1};
  ChainRunOptions options{.steps = 3, .loss_scaling = LossScaling{.initial_scale = 0x1p40F}};
  options.source = &source;
  options.initial["l0.weight"] = without_first_column;
  const ChainOutcome one = run_chain(PipelineChain(in_one_stage(subject)), options);
  ASSERT_EQ(one.skipped, (std::vector<bool>{true, false, false}));
  for (const PipelineOrder order : kPipelineOrders) {
    subject.run.pipeline_order = order;
    for (const int ranks : {1, 2}) {
      subject.run.ranks = ranks;
      subject.run.strategy = ranks > 1 ? "full_shard" : "no_shard";
      subject.run.micro_steps = 2 / ranks;
      expect_same(run_chain(PipelineChain(subject), options), one,
                  concat(to_string(order), ", ", ranks, " ranks"));
    }
  }
}

// The same of the last stage: the layer before hands it an element that is very large, which the
// last layer's weight does not look at. Nothing is updated, so every step is skipped.
TEST(PipelineRun, SkipsTheStepOnAllRanksWhereTheLastStageOverflows) {
  PipelineSubject subject{.name = "last stage overflows", .run = {.strategy = "no_shard"}};
  subject.layers = 4;
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 2;
  ChainRunOptions options{.steps = 3, .loss_scaling = LossScaling{.initial_scale = 0x1p40F}};
  options.initial["l3.weight"] = without_first_column;
  options.initial["l2.scale"] = [](std::int64_t element, float value) {
    return element < kWidth ? value * 1e30F : value;
  };
  const ChainOutcome one = run_chain(PipelineChain(in_one_stage(subject)), options);
  ASSERT_THAT(one.skipped, Each(true));
  ASSERT_TRUE(std::isfinite(one.losses.front()));
  for (const PipelineOrder order : kPipelineOrders) {
    subject.run.pipeline_order = order;
    expect_same(run_chain(PipelineChain(subject), options), one, std::string(to_string(order)));
  }
}

// Every rank names the tensor, though one stage alone has its gradient.
TEST(PipelineRun, NamesTheTensorOfAnyStageThatOverflowsAtTheLeastScale) {
  PipelineSubject subject{.name = "least scale", .run = {.strategy = "no_shard"}};
  subject.layers = 4;
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 2;
  LargeFirstElements source;
  source.samples = {1};
  LossScaling scaling{.initial_scale = 0x1p40F};
  scaling.rule.dialect = LossScaleDialect::kDeepSpeed;
  scaling.rule.minimum = 0x1p40F;
  ChainRunOptions first{.steps = 2, .loss_scaling = scaling};
  first.source = &source;
  first.initial["l0.weight"] = without_first_column;
  EXPECT_EQ(run_chain(PipelineChain(subject), first).non_finite.front(),
            "the gradient of l0.weight in unit l0");
  ChainRunOptions last{.steps = 2, .loss_scaling = scaling};
  last.initial["l3.weight"] = without_first_column;
  last.initial["l2.scale"] = [](std::int64_t element, float value) {
    return element < kWidth ? value * 1e30F : value;
  };
  EXPECT_EQ(run_chain(PipelineChain(subject), last).non_finite.front(),
            "the gradient of l3.weight in unit l3");
}

// ---- Failures ----------------------------------------------------------------------------------

TEST(PipelineRun, EndsOnAllRanksWhereOneStageFails) {
  PipelineSubject subject{.name = "fails", .run = {.strategy = "full_shard"}};
  subject.layers = 4;
  subject.run.ranks = 2;
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 3;
  const PipelineChain chain(subject);
  std::vector<const Schedule*> schedules;
  for (const Schedule& schedule : chain.step().ranks) schedules.push_back(&schedule);
  for (int failing = 0; failing < 6; ++failing) {
    std::atomic<int> failed{0};
    const auto run = [&] {
      launch_ranks(make_thread_group(6), [&](int rank, ProcessGroup& world) {
        const auto device = make_cpu_device();
        Memory memory(*device);
        RankGroups groups = RankGroups::split_from(world, schedules);
        const auto stage = static_cast<std::size_t>(rank / 2);
        const Schedule& schedule = *schedules[stage];
        TrainingState state(chain.layout(), state_options(schedule), rank, memory);
        ExecutorOptions options = executor_options(chain.run());
        options.before_action = [=](int own, std::int64_t step, const Action& action) {
          const bool is_pass = action.operation->is_pass && action.micro_step == 1;
          if (own == failing && step == 1 && is_pass) {
            fail(ErrorCode::kIo, "rank ", own, " has had enough");
          }
        };
        try {
          Executor executor(state, chain.model(), {{&schedule, &chain.source()}}, groups, memory,
                            options);
          for (int s = 0; s < 3; ++s) executor.run_step(s, kRate);
        } catch (const std::exception&) {
          ++failed;
          throw;
        }
      });
    };
    try {
      run();
      ADD_FAILURE() << "rank " << failing << " has not failed";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr(concat("rank ", failing, " has had enough")));
    }
    EXPECT_EQ(failed, 6) << "rank " << failing;
  }
}

}  // namespace
}  // namespace tessera::test::pipeline_run_test
