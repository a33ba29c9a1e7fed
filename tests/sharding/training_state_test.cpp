#include "tessera/sharding/training_state.h"
#include "support/extent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "support/grid.h"
#include "support/tied_chain.h"
#include "tessera/core/error.h"

namespace tessera::test::training_state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kTiedLayers = 3;

/// A rank's training state, made of layout, placement and optimizer alone.
struct StateOf {
  StateOf(const ModelLayout& layout, const StateOptions& options, int rank)
      : state(layout, options, rank, memory) {}
  std::unique_ptr<Device> device = make_cpu_device();
  Memory memory{*device};
  std::unique_ptr<Stream> stream = device->create_stream({.name = "host"});
  TrainingState state;
};

StateOptions options_of(const std::string& strategy, Mesh mesh, DType dtype) {
  return {.mesh = mesh, .placement = find_strategy(strategy).placement, .parameter_dtype = dtype};
}

void for_each_state(const std::function<void(const StateOptions&, const ModelLayout&)>& visit) {
  const Model model = make_tied(kTiedLayers);
  for (const Strategy& strategy : strategies()) {
    for (const Mesh mesh : {grid(1, 1), grid(1, 3), grid(1, 4), grid(2, 2), grid(2, 3)}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(concat(strategy.name, ' ', shape_of(mesh), ' ', to_string(dtype)));
        visit(options_of(strategy.name, mesh, dtype), make_layout(model, {}, mesh.world_size()));
      }
    }
  }
}

/// What `call` throws.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "nothing";
}

TEST(TrainingState, NamesItsTensorsAndTheirRoles) {
  const Model model = make_tied(2);
  const ModelLayout layout = make_layout(model, {}, 2);
  const auto list = [&](DType dtype) {
    const StateOf rank(layout, options_of("zero1", grid(1, 2), dtype), 1);
    std::vector<std::string> lines;
    for (const StateTensor& tensor : rank.state) {
      lines.push_back(concat(tensor.name, ' ', to_string(tensor.role), ' ', tensor.unit, ' ',
                             to_string(tensor.format), ' ', to_string(tensor.sharded)));
    }
    return lines;
  };
  EXPECT_THAT(
      list(DType::kFloat32),
      ElementsAre("l0.parameter parameter 0 fp32 none", "l0.first-moment optimizer 0 fp32 shard",
                  "l0.second-moment optimizer 0 fp32 shard", "l1.parameter parameter 1 fp32 none",
                  "l1.frozen parameter 1 fp32 none", "l1.first-moment optimizer 1 fp32 shard",
                  "l1.second-moment optimizer 1 fp32 shard"));
  EXPECT_THAT(list(DType::kBFloat16),
              ElementsAre("l0.parameter parameter 0 bf16 none", "l0.master master 0 fp32 shard",
                          "l0.first-moment optimizer 0 fp32 shard",
                          "l0.second-moment optimizer 0 fp32 shard",
                          "l1.parameter parameter 1 bf16 none", "l1.frozen parameter 1 bf16 none",
                          "l1.master master 1 fp32 shard", "l1.first-moment optimizer 1 fp32 shard",
                          "l1.second-moment optimizer 1 fp32 shard"));
}

TEST(TrainingState, KeepsWhatTheOptimizerAsksFor) {
  const Model model = make_tied(2);
  const ModelLayout layout = make_layout(model, {}, 2);
  StateOptions options = options_of("full_shard", grid(1, 2), DType::kFloat32);
  options.optimizer_tensors = {{"momentum"}};
  const StateOf rank(layout, options, 0);
  EXPECT_EQ(rank.state.at("l1.momentum").role, Role::kOptimizer);
  EXPECT_EQ(rank.state.end() - rank.state.begin(), 5);
}

// What is not cut along an axis, every rank along it has.
TEST(TrainingState, OfAllRanksCoversEveryElementEquallyOften) {
  for_each_state([](const StateOptions& options, const ModelLayout& layout) {
    const int ranks = options.mesh.world_size();
    std::map<std::string, std::vector<int>> covered;
    for (int r = 0; r < ranks; ++r) {
      const StateOf rank(layout, options, r);
      for (const StateTensor& tensor : rank.state) {
        const FlatParameter& flat = rank.state.flat(tensor);
        EXPECT_EQ(tensor.view.numel(), tensor.range.numel);
        EXPECT_EQ(tensor.view.dtype, tensor.format);
        std::vector<int>& times = covered[tensor.name];
        times.resize(static_cast<std::size_t>(flat.padded_numel));
        ASSERT_LE(tensor.range.end(), flat.padded_numel);
        for (std::int64_t e = tensor.range.begin; e < tensor.range.end(); ++e) {
          ++times[static_cast<std::size_t>(e)];
        }
      }
    }
    const StateOf any(layout, options, 0);
    for (const StateTensor& tensor : any.state) {
      const std::vector<int>& times = covered[tensor.name];
      const int expected = ranks / options.mesh.size(tensor.sharded);
      EXPECT_FALSE(times.empty());
      EXPECT_EQ(std::ranges::count(times, expected), std::ssize(times)) << tensor.name;
    }
  });
}

// Each element of each parameter in one piece, or in one of each rank that has it; no padding.
TEST(TrainingState, HasItsParametersInPieces) {
  for_each_state([](const StateOptions& options, const ModelLayout& layout) {
    std::map<std::pair<std::string, std::string>, std::int64_t> elements;  // tensor, parameter
    for (int r = 0; r < options.mesh.world_size(); ++r) {
      const StateOf rank(layout, options, r);
      for (const StateTensor& tensor : rank.state) {
        const std::byte* last = tensor.view.data;
        for (const StatePiece& piece : rank.state.pieces(tensor)) {
          EXPECT_EQ(piece.view.numel(), piece.elements.numel);
          EXPECT_GE(piece.view.data, last) << "in order";
          last = piece.view.data + piece.view.bytes();
          EXPECT_LE(last, tensor.view.data + tensor.view.bytes());
          EXPECT_LE(piece.elements.end(), piece.parameter->shape.numel());
          elements[{tensor.name, piece.parameter->name}] += piece.elements.numel;
        }
      }
    }
    const StateOf any(layout, options, 0);
    for (const auto& [names, numel] : elements) {
      const StateTensor& tensor = any.state.at(names.first);
      const FlatParameter& flat = any.state.flat(tensor);
      const auto found = std::ranges::find_if(
          flat.tensors,
          [&, &name = names.second](const FlatTensor& of) { return of.spec.name == name; });
      ASSERT_NE(found, flat.tensors.end());
      EXPECT_EQ(numel, found->spec.shape.numel() * options.mesh.world_size() /
                           options.mesh.size(tensor.sharded))
          << names.first << ' ' << names.second;
    }
  });
}

TEST(TrainingState, FindsItsTensors) {
  const Model model = make_tied(kTiedLayers);
  const ModelLayout layout = make_layout(model, {}, 2);
  const StateOf rank(layout, options_of("full_shard", grid(1, 2), DType::kFloat32), 0);
  EXPECT_EQ(rank.state.at("l1.frozen").name, "l1.frozen");
  EXPECT_EQ(rank.state.find(Role::kParameter, {1, 1}), &rank.state.at("l1.frozen"));
  EXPECT_EQ(rank.state.find(Role::kParameter, {0, 1}), nullptr);
  EXPECT_EQ(rank.state.find(Role::kMaster, {0, 0}), nullptr) << "fp32 parameters are their own";
  EXPECT_EQ(rank.state.find(Role::kParameter, {7, 0}), nullptr);
  EXPECT_THAT(error_of([&] { rank.state.at("l1.first_moment"); }),
              HasSubstr("no tensor 'l1.first_moment'; did you mean 'l1.first-moment'?"));
  EXPECT_THAT(error_of([&] { rank.state.at(""); }), HasSubstr("no tensor ''"));
}

TEST(TrainingState, HasTheMastersOfItsOptimizersPart) {
  const Model model = make_tied(kTiedLayers);
  const ModelLayout layout = make_layout(model, {}, 2);
  const StateOf fp32(layout, options_of("zero1", grid(1, 2), DType::kFloat32), 1);
  const StateTensor& parameter = fp32.state.at("l0.parameter");
  EXPECT_EQ(fp32.state.master({0, 0}).numel(), parameter.view.numel() / 2);
  EXPECT_EQ(fp32.state.master({0, 0}).data, parameter.view.data + parameter.view.bytes() / 2);
  const StateOf bf16(layout, options_of("zero1", grid(1, 2), DType::kBFloat16), 1);
  EXPECT_EQ(bf16.state.master({0, 0}).data, bf16.state.at("l0.master").view.data);
}

TEST(TrainingState, IsReadAndWrittenByElements) {
  for_each_state([](const StateOptions& options, const ModelLayout& layout) {
    for (int r = 0; r < options.mesh.world_size(); ++r) {
      StateOf rank(layout, options, r);
      rank.state.initialize(1, *rank.stream);
      for (const StateTensor& tensor : rank.state) {
        const Range range = tensor.range;
        std::vector<float> before(static_cast<std::size_t>(range.numel));
        rank.state.read(tensor.name, range.begin, before, *rank.stream);
        // All but the first five and the last three are overwritten.
        std::vector<float> values(static_cast<std::size_t>(range.numel) - 8);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(i) + 0.0123F;
        }
        rank.state.write(tensor.name, range.begin + 5, values, *rank.stream);
        std::vector<float> after(before.size());
        rank.state.read(tensor.name, range.begin, after, *rank.stream);
        for (std::size_t i = 0; i < values.size(); ++i) {
          before[i + 5] =
              tensor.format == DType::kBFloat16 ? float{bfloat16(values[i])} : values[i];
        }
        EXPECT_EQ(after, before) << tensor.name;
        std::vector<float> one(1);
        rank.state.read(tensor.name, range.end() - 1, one, *rank.stream);
        EXPECT_EQ(one.front(), before.back());
        std::vector<float> none;
        rank.state.read(tensor.name, range.end(), none, *rank.stream);
        EXPECT_THAT(error_of([&] { rank.state.read(tensor.name, range.end(), one, *rank.stream); }),
                    HasSubstr(concat("this rank has elements ", range.begin, " to ", range.end(),
                                     " of '", tensor.name, "'")));
        if (range.begin == 0) continue;
        EXPECT_THAT(
            error_of([&] { rank.state.write(tensor.name, range.begin - 1, one, *rank.stream); }),
            HasSubstr("this rank has elements"));
      }
    }
  });
}

std::vector<float> values_of(const std::string& name, std::int64_t numel) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) {
    values.push_back(random_normal({9, stream_of(name)}, i));
  }
  return values;
}

TEST(TrainingState, TakesParametersByName) {
  const Model model = make_tied(kTiedLayers);
  std::map<std::string, std::vector<float>> given;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      given[spec.name] = values_of(spec.name, spec.shape.numel());
    }
  }
  for_each_state([&](const StateOptions& options, const ModelLayout& layout) {
    for (int r = 0; r < options.mesh.world_size(); ++r) {
      StateOf rank(layout, options, r);
      rank.state.initialize(1, *rank.stream);
      rank.state.set_parameters(
          [&](const std::string& name) { return std::span<const float>(given.at(name)); },
          *rank.stream);
      for (const StateTensor& tensor : rank.state) {
        std::vector<float> values(static_cast<std::size_t>(tensor.range.numel));
        rank.state.read(tensor.name, tensor.range.begin, values, *rank.stream);
        std::vector<float> expected(values.size());  // zero: padding, and what the optimizer keeps
        for (const StatePiece& piece : rank.state.pieces(tensor)) {
          if (tensor.role == Role::kOptimizer) continue;
          const auto at = (piece.view.data - tensor.view.data) /
                          static_cast<std::ptrdiff_t>(size_of(tensor.format));
          const std::vector<float>& from = given[piece.parameter->name];
          for (std::int64_t e = 0; e < piece.elements.numel; ++e) {
            const float value = from[static_cast<std::size_t>(piece.elements.begin + e)];
            expected[static_cast<std::size_t>(at + e)] =
                tensor.format == DType::kBFloat16 ? float{bfloat16(value)} : value;
          }
        }
        EXPECT_EQ(values, expected) << tensor.name;
      }
    }
  });
  const ModelLayout layout = make_layout(model, {}, 1);
  StateOf rank(layout, options_of("no_shard", grid(1, 1), DType::kFloat32), 0);
  given["l1.bias"].pop_back();
  EXPECT_THAT(error_of([&] {
                rank.state.set_parameters(
                    [&](const std::string& name) { return std::span<const float>(given.at(name)); },
                    *rank.stream);
              }),
              HasSubstr("parameter 'l1.bias' has 9 elements, but 8 were given"));
}

// ---- Schedules over one state -----------------------------------------------------------------

PlanOptions evaluating(PlanOptions options, int micro_steps) {
  options.purpose = Purpose::kEvaluate;
  options.micro_steps = micro_steps;
  return options;
}

/// A run that trains and evaluates in turn.
struct Both {
  explicit Both(const SmallRun& small)
      : run(small),
        evaluation(plan(layout, evaluating(plan_options(run), 2))),
        programs({{&training, &samples}, {&evaluation, &held_out}}) {}

  std::vector<const Schedule*> schedules() const { return {&training, &evaluation}; }

  SmallRun run;
  Model model = make_tied(kTiedLayers);
  ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  Schedule training = plan(layout, plan_options(run));
  Schedule evaluation;
  RandomVectors samples{run.dtype}, held_out{run.dtype};
  ExecutorOptions options{.seed = 42, .cost = {}, .before_task = {}};
  std::vector<Program> programs;
};

std::string bytes_of(const TrainingState& state) {
  std::string bytes;
  for (const StateTensor& tensor : state) {
    bytes.append(reinterpret_cast<const char*>(tensor.view.data),
                 static_cast<std::size_t>(tensor.view.bytes()));
  }
  return bytes;
}

Traffic times(Traffic traffic, std::int64_t count) {
  for (auto* counts : {&traffic.calls, &traffic.sent_bytes}) {
    for (std::int64_t& value : *counts) value *= count;
  }
  return traffic;
}

constexpr std::int64_t kHeldOut = 7;

/// The losses of an evaluation before training, after a step, and after two.
std::vector<double> train_and_evaluate(const SmallRun& run) {
  Both both(run);
  both.held_out.ignored_from = kHeldOut;
  const MemoryPeak predicted =
      simulate(both.programs, both.layout, both.model, state_options(both.training), both.options)
          .memory;
  const std::int64_t per_step = 2 * run.ranks;
  const std::int64_t steps = (kHeldOut + per_step - 1) / per_step;
  std::vector<double> losses;
  std::mutex mutex;
  launch_ranks(make_thread_group(run.ranks), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(world, both.schedules());
    TrainingState state(both.layout, state_options(both.training), rank, memory);
    ExecutorOptions options = both.options;
    if (run.delay_seed) options.before_task = random_delays(*run.delay_seed, rank);
    Executor executor(state, both.model, both.programs, groups, memory, options);
    Traffic expected;
    for (int step = 0; step < 3; ++step) {
      const std::string before = bytes_of(state);
      const StepResult result = executor.evaluate(1, kHeldOut);
      EXPECT_EQ(result.items, kHeldOut);
      EXPECT_TRUE(bytes_of(state) == before);
      expected += times(account_traffic(both.evaluation), steps);
      EXPECT_EQ(groups.traffic(), expected);
      if (rank == 0) losses.push_back(result.loss);
      executor.run_step(step, kRate);
      EXPECT_FALSE(run.ranks == 1 && bytes_of(state) == before);
      expected += account_traffic(both.training);
      EXPECT_EQ(groups.traffic(), expected);
    }
    const std::lock_guard lock(mutex);
    EXPECT_EQ(memory.peak(), predicted) << "rank " << rank;
  });
  return losses;
}

// Training takes one micro-step for as many samples as evaluation takes two: both cut them by rank.
TEST(Evaluation, LeavesTheStateAndGivesTheSameLossEverywhere) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : fewer_if_sanitized(std::vector{1, 2, 3, 4}, 2)) {
      const std::vector<double> expected = train_and_evaluate(
          {.ranks = 1, .strategy = "no_shard", .micro_steps = ranks, .dtype = dtype});
      EXPECT_EQ(expected.size(), 3U);
      EXPECT_LT(expected.back(), expected.front()) << "nothing is learned";
      for (const Strategy& strategy : strategies()) {
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, " ranks, ", to_string(dtype)));
        EXPECT_EQ(train_and_evaluate({.ranks = ranks, .strategy = strategy.name, .dtype = dtype}),
                  expected);
      }
    }
  }
}

TEST(Evaluation, DoesTheSameUnderRandomDelays) {
  const SmallRun run{.ranks = 2};
  SmallRun delayed = run;
  delayed.delay_seed = 3;
  EXPECT_EQ(train_and_evaluate(delayed), train_and_evaluate(run));
}

TEST(Evaluation, NeedsAScheduleThatWasPlannedForIt) {
  Both both({.ranks = 1});
  StateOf rank(both.layout, state_options(both.training), 0);
  const auto world = make_thread_group(1);
  RankGroups groups = RankGroups::split_from(*world.front(), both.schedules());
  Executor executor(rank.state, both.model, both.programs, groups, rank.memory, both.options);
  EXPECT_THAT(error_of([&] { executor.evaluate(0, 4); }), HasSubstr("this schedule trains"));
}

TEST(AnExecutor, RefusesAStateOfAnotherPlacement) {
  const Model model = make_tied(kTiedLayers);
  const ModelLayout layout = make_layout(model, {}, 2);
  const RandomVectors source(DType::kFloat32);
  const Schedule schedule = plan(layout, plan_options({.ranks = 2, .strategy = "full_shard"}));
  const auto error_over = [&](const StateOptions& options) {
    std::string what;
    try {
      launch_ranks(make_thread_group(2), [&](int rank, ProcessGroup& world) {
        StateOf of(layout, options, rank);
        RankGroups groups = RankGroups::split_from(world, schedule);
        Executor executor(of.state, model, {{&schedule, &source}}, groups, of.memory, {});
      });
    } catch (const Error& error) {
      what = error.what();
    }
    return what;
  };
  EXPECT_EQ(error_over(options_of("full_shard", grid(1, 2), DType::kFloat32)), "");
  EXPECT_THAT(error_over(options_of("zero1", grid(1, 2), DType::kFloat32)),
              HasSubstr("the schedule was planned for another state: 'l0.parameter'"));
  EXPECT_THAT(error_over(options_of("full_shard", grid(1, 2), DType::kBFloat16)),
              HasSubstr("the schedule was planned for another state: 'l0.parameter'"));
  StateOptions momentum = options_of("full_shard", grid(1, 2), DType::kFloat32);
  momentum.optimizer_tensors.push_back({"third-moment"});
  EXPECT_THAT(error_over(momentum),
              HasSubstr("the training state was made for another optimizer than adamw"));
}

// As many elements, but others.
TEST(AnExecutor, RefusesAStateThatIsCutInAnotherOrder) {
  constexpr AxisSet kBoth{Axis::kShard, Axis::kReplicate};
  const Model model = make_tied(kTiedLayers);
  const ModelLayout layout = make_layout(model, {}, 4);
  const RandomVectors source(DType::kFloat32);
  PlanOptions options{.mesh = grid(2, 2), .placement = {{}, {Axis::kShard}, kBoth}};
  const Schedule schedule = plan(layout, options);
  StateOptions other = options.state();
  other.placement.gradient = {Axis::kReplicate};
  StateOf of(layout, other, 0);
  std::vector<const Schedule*> schedules{&schedule};
  RankGroups groups = RankGroups::simulated(0, schedules);
  const auto make = [&] {
    Executor executor(of.state, model, {{&schedule, &source}}, groups, of.memory, {});
  };
  EXPECT_THAT(error_of(make),
              HasSubstr("it shards 'l0.first-moment' along the same axes in another"));
}

TEST(AnExecutor, RefusesAStateOnAnotherMesh) {
  const Model model = make_tied(kTiedLayers);
  const ModelLayout layout = make_layout(model, {}, 6);
  const RandomVectors source(DType::kFloat32);
  const Schedule schedule = plan(
      layout, {.mesh = grid(2, 3), .placement = find_strategy("hybrid_full_optimizer").placement});
  StateOf of(layout, options_of("hybrid_full_optimizer", grid(3, 2), DType::kFloat32), 0);
  std::vector<const Schedule*> schedules{&schedule};
  RankGroups groups = RankGroups::simulated(0, schedules);
  const auto make = [&] {
    Executor executor(of.state, model, {{&schedule, &source}}, groups, of.memory, {});
  };
  EXPECT_THAT(error_of(make),
              HasSubstr("on a mesh of replicate 2, shard 3; this one is on replicate 3, shard 2"));
}

}  // namespace
}  // namespace tessera::test::training_state_test
