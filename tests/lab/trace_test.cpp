#include "tessera/lab/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "support/tiny_model.h"
#include "support/trace_check.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/lab/simulated_trace.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/fit.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// Dumps, runs and simulated steps as traces.
namespace tessera::trace_test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;

std::vector<Json> of_phase(const Json& trace, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

DumpedAction action(const char* lane, const char* group, std::vector<int> waits) {
  return {.lane = lane,
          .text = std::string("on ") + lane,
          .group = group,
          .sent_bytes = *group != '\0' ? 1000 : 0,
          .waits = std::move(waits),
          .previous_waits = {}};
}

/// Rank 0: a gather from 0 to 10 us, of which compute, which waits for an earlier one, covers 4 to
/// 7 and 9 to 12.
FlightDump small_dump() {
  constexpr double kStart = 100.0;
  const auto record = [&](int number, double begin, double end) {
    return ActionRecord{
        .action = number, .step = 1, .begin = kStart + begin * 1e-6, .end = kStart + end * 1e-6};
  };
  FlightDump dump;
  dump.run = "a run";
  dump.noticed = dump.at = kStart + 1.0;
  dump.programs.push_back({.purpose = "train",
                           .actions = {action("gather", "shard", {}), action("gather", "shard", {}),
                                       action("compute", "", {0}), action("compute", "", {})}});
  dump.ranks.push_back({.rank = 0,
                        .groups = {{"shard", {0}}},
                        .lanes = {{"compute", {record(2, 4, 7), record(3, 9, 12)}},
                                  {"gather", {record(0, 0, 3), record(1, 3, 10)}}},
                        .host = {}});
  return dump;
}

TEST(Trace, HasSlicesArrowsAndBytesInFlight) {
  const FlightDump dump = small_dump();
  const Json trace = to_trace(std::span(&dump, 1));
  const auto slices = of_phase(trace, "X");
  ASSERT_EQ(slices.size(), 4U);
  EXPECT_EQ(slices[2].at("ts"), 4);
  EXPECT_EQ(slices[2].at("dur"), 3);
  EXPECT_EQ(slices[0].at("args").at("exposed_us"), 3);
  EXPECT_EQ(slices[1].at("args").at("exposed_us"), 3);  // 3 to 4, 7 to 9
  const auto begins = of_phase(trace, "s"), ends = of_phase(trace, "f");
  ASSERT_EQ(begins.size(), 1U);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(begins[0].at("id"), ends[0].at("id"));
  EXPECT_NE(begins[0].at("tid"), ends[0].at("tid"));
  EXPECT_LT(begins[0].at("ts"), ends[0].at("ts"));
  std::vector<std::int64_t> bytes;
  for (const Json& counter : of_phase(trace, "C")) {
    bytes.push_back(counter.at("args").at("bytes").get<std::int64_t>());
  }
  EXPECT_THAT(bytes, ElementsAre(1000, 1000, 0));
}

TEST(Trace, OfDumpsIsWellFormed) {
  const test::TemporaryFolder folder;
  const Model model = test::tiny_model();
  const test::TinyData data;
  TrainerOptions options{.ranks = 2, .steps = 4, .threads_per_rank = 1};
  options.dump_folder = folder.path();
  options.dump_requests = std::make_shared<DumpRequests>();
  Trainer(model, data, options).train([&](const StepRecord& record) {
    return record.step < 4 || options.dump_requests->write("the trace");
  });
  const std::vector<std::string> paths{folder.path()};
  const auto dumps = read_flight_dumps(paths);
  const test::CheckedTrace trace(Json::parse(to_text(to_trace(dumps))));
  const auto actions = dumps[0].programs[0].actions.size();
  EXPECT_GE(trace.actions().size(), 4 * actions);  // reshards take no work, and leave no records
  EXPECT_LE(trace.actions().size(), 2 * 4 * actions);
  EXPECT_GT(trace.arrows(), 0U);
  EXPECT_EQ(trace.ranks(), (std::set<int>{0, 1}));
}

std::size_t waits_of(const Schedule& schedule) {
  std::size_t waits = 0;
  for (const Action& action : schedule.actions) waits += action.waits.size();
  return waits;
}

/// Counters of a rank's memory: as high as planned, and in the end as at first.
void expect_memory(const test::CheckedTrace& trace, int rank, const MemoryPeak& planned) {
  for (int c = 0; c < kMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    SCOPED_TRACE(to_string(category));
    const auto values = trace.counter(rank, "memory", std::string(to_string(category)));
    ASSERT_FALSE(values.empty());
    EXPECT_EQ(std::ranges::max(values), planned.by_category[category]);
    EXPECT_EQ(values.front(), values.back());
  }
  EXPECT_EQ(std::ranges::max(trace.counter(rank, "memory in all", "bytes")), planned.total);
  EXPECT_EQ(trace.counter(rank, "bytes in flight", "bytes").back(), 0);
}

class RunTraces : public ::testing::Test {
 protected:
  TrainerOptions options(int ranks) const {
    TrainerOptions options{.ranks = ranks, .steps = 6, .threads_per_rank = 1};
    options.timeout = std::chrono::minutes(2);
    options.trace = {.file = folder_.path("trace.json"), .steps = StepRange{2, 4}};
    return options;
  }
  Json read() const {
    std::ifstream file(folder_.path("trace.json"));
    return Json::parse(file);
  }

  test::TemporaryFolder folder_;
  Model model_ = test::tiny_model();
  test::TinyData data_;
};

TEST_F(RunTraces, HaveEveryActionAndDependencyOfTheirSteps) {
  const Trainer trainer(model_, data_, options(2));
  const TrainingSummary summary = trainer.train();
  EXPECT_EQ(summary.traced_steps, 3);
  const Schedule& schedule = trainer.plan().schedule();
  const Json file = read();
  const test::CheckedTrace trace(file);
  EXPECT_EQ(trace.actions().size(), 2 * 3 * schedule.actions.size());
  EXPECT_EQ(trace.arrows(), 2 * 3 * waits_of(schedule));
  std::set<int> steps;
  for (const Json& slice : trace.actions()) {
    const auto action = slice.at("args").at("action").get<std::size_t>();
    EXPECT_EQ(slice.at("name"), describe(schedule, schedule.actions.at(action)));
    EXPECT_EQ(trace.row_name(slice), to_string(schedule.actions.at(action).lane));
    steps.insert(slice.at("args").at("step").get<int>());
  }
  EXPECT_EQ(steps, (std::set<int>{2, 3, 4}));
  EXPECT_EQ(file.at("otherData").at("strategy"), "full_shard");
  EXPECT_FALSE(file.at("otherData").at("command").get<std::string>().empty());
  for (const int rank : {0, 1}) expect_memory(trace, rank, trainer.plan().memory);
}

TEST_F(RunTraces, SayOfEachCollectiveHowMuchOfItWasExposed) {
  TrainerOptions traced = options(2);
  traced.trace.steps = StepRange{2, 2};
  std::optional<TimelineSummary> measured;
  Trainer(model_, data_, traced).train([&](const StepRecord& record) {
    if (record.step == 2) measured = record.timeline;
    return true;
  });
  ASSERT_TRUE(measured.has_value());
  std::map<std::string, double> told;  // by lane, in seconds
  for (const Json& slice : test::CheckedTrace(read()).actions()) {
    if (slice.at("pid") != 0) continue;
    const auto lane = slice.at("cat").get<std::string>();
    if (slice.at("args").contains("exposed_us")) {
      told[lane] += slice.at("args").at("exposed_us").get<double>() * 1e-6;
    }
  }
  // A moment in which both lanes are exposed is one of the run's, and one of each lane's.
  EXPECT_GE(told["gather"] + told["reduce"], measured->exposed_seconds - 1e-6);
  EXPECT_LE(std::max(told["gather"], told["reduce"]), measured->exposed_seconds + 1e-6);
}

TEST_F(RunTraces, ChangeNeitherBitsNorMemory) {
  TrainerOptions plain = options(2);
  plain.trace = {};
  const TrainingSummary without = Trainer(model_, data_, plain).train();
  const TrainingSummary with = Trainer(model_, data_, options(2)).train();
  EXPECT_EQ(with.parameters_sha256, without.parameters_sha256);
  EXPECT_EQ(with.measured_memory, without.measured_memory);
}

TEST_F(RunTraces, OfAFailedRunHaveWhatCameBefore) {
  TrainerOptions failing = options(2);
  std::string note;
  failing.dump_requests =
      std::make_shared<DumpRequests>([&](const std::string& text) { note = text; });
  failing.before_action = [](int rank, std::int64_t step, const Action& action) {
    require(rank != 1 || step != 2 || action.operation != &operations::kBackward,
            ErrorCode::kInternal, "a fault in step 3");
  };
  EXPECT_THROW(Trainer(model_, data_, failing).train(), Error);
  const test::CheckedTrace trace(read());
  std::map<int, int> by_step;
  for (const Json& slice : trace.actions()) ++by_step[slice.at("args").at("step").get<int>()];
  EXPECT_EQ(by_step.size(), 2U);
  EXPECT_GT(by_step[3], 0);
  EXPECT_LT(by_step[3], by_step[2]);
  EXPECT_THAT(note, ::testing::HasSubstr("what was traced before the failure is in "));
}

TEST_F(RunTraces, OfARunThatFailsBeforeThemAreNotWrittenAndItSaysSo) {
  TrainerOptions failing = options(1);
  std::string note;
  failing.dump_requests =
      std::make_shared<DumpRequests>([&](const std::string& text) { note = text; });
  failing.before_action = [](int, std::int64_t, const Action&) {
    fail(ErrorCode::kInternal, "a fault in step 1");
  };
  EXPECT_THROW(Trainer(model_, data_, failing).train(), Error);
  EXPECT_FALSE(std::filesystem::exists(failing.trace.file));
  EXPECT_THAT(note, ::testing::HasSubstr("no trace was written: the run failed before step 2"));
}

TEST_F(RunTraces, AreRefusedBeforeTheRunIfTheyCannotBe) {
  const auto error_of = [&](const TrainerOptions& wrong) -> std::string {
    try {
      Trainer(model_, data_, wrong);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  TrainerOptions wrong = options(1);
  wrong.trace.steps = StepRange{7, 9};
  EXPECT_THAT(error_of(wrong), HasSubstr("the run has the steps 1 to 6"));
  wrong = options(1);
  wrong.time_actions = false;
  EXPECT_THAT(error_of(wrong), HasSubstr("`time_actions` false"));
  wrong = options(1);
  wrong.overlap_steps = true;
  EXPECT_THAT(error_of(wrong), HasSubstr("overlap_steps and trace"));
  wrong = options(1);
  wrong.trace.file = "";
  EXPECT_THAT(error_of(wrong), HasSubstr("there is no trace to write"));
  wrong = options(1);
  wrong.trace.file = folder_.path();
  EXPECT_THAT(error_of(wrong), HasSubstr("`trace.file`"));
  EXPECT_THROW(parse_step_range("5-3"), Error);
  EXPECT_THROW(parse_step_range("0"), Error);
  EXPECT_THROW(parse_step_range("3-"), Error);
  EXPECT_EQ(to_string(parse_step_range("3-5")), "3-5");
  EXPECT_EQ(parse_step_range("7"), (StepRange{7, 7}));
}

TEST_F(RunTraces, AreOfTheThirdToTheFifthStepUnlessOtherwiseSaid) {
  for (const auto& [steps, expected] :
       std::map<std::int64_t, std::set<int>>{{1, {1}}, {2, {2}}, {4, {3, 4}}, {9, {3, 4, 5}}}) {
    TrainerOptions short_run = options(1);
    short_run.steps = steps;
    short_run.trace.steps.reset();
    Trainer(model_, data_, short_run).train();
    std::set<int> traced;
    for (const Json& slice : test::CheckedTrace(read()).actions()) {
      traced.insert(slice.at("args").at("step").get<int>());
    }
    EXPECT_EQ(traced, expected) << steps;
  }
}

TEST_F(RunTraces, OfAnEvaluationAreOfItsBatches) {
  TrainerOptions evaluating = options(2);
  evaluating.trace.of_evaluation = true;
  evaluating.evaluation_samples = 5 * evaluating.micro_batch * evaluating.ranks;
  Session session(model_, data_, evaluating, &data_);
  session.evaluate();
  EXPECT_EQ(session.traced_steps(), 3);
  const test::CheckedTrace trace(read());
  EXPECT_EQ(trace.actions().size(),
            2 * 3 * session.plan().evaluation->ranks.front().actions.size());
  EXPECT_EQ(trace.arrows(), 2 * 3 * waits_of(session.plan().evaluation->ranks.front()));
}

/// Rank 0 stands for all.
TEST(SimulatedTraces, HaveTheStepAndItsMemory) {
  const Model model = test::tiny_model();
  const test::TinyData data;
  const TrainingPlan plan =
      make_training_plan({model, data}, {.strategy = "full_shard", .ranks = 8});
  const Program program{&plan.schedule(), &data};
  ExecutorOptions options = executor_options(plan.options);
  options.cost = [](const Schedule&, const Action& action) {
    return action.operation->run != nullptr ? 1.03e-5 : 0.0;
  };
  const std::vector<ActionSpan> spans =
      simulate(plan.schedule(), plan.layout, model, data, options).spans;
  const test::CheckedTrace trace(
      Json(to_trace({{program}}, plan.layout, model, options, {spans}, "full_shard")));
  EXPECT_EQ(trace.actions().size(), plan.schedule().actions.size());
  EXPECT_EQ(trace.arrows(), waits_of(plan.schedule()));
  expect_memory(trace, 0, plan.memory);
  for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
    double told = 0.0;
    for (const Json& slice : trace.actions()) {
      if (slice.at("cat") == to_string(lane)) told += slice.at("args").value("exposed_us", 0.0);
    }
    EXPECT_NEAR(told * 1e-6, time_of({lane}, spans).exposed, 1e-8) << to_string(lane);
    EXPECT_GT(told, 0.0);
  }
}

/// The first rank of each stage is a process, whose passes say which they are.
TEST(SimulatedTraces, HaveEveryStageOfAPipeline) {
  const Model model = test::tiny_model();
  const test::TinyData data;
  TrainerOptions staged{.strategy = "full_shard", .ranks = 4, .accumulate = 3};
  staged.pipeline.ranks = 2;
  const TrainingPlan plan = make_training_plan({model, data}, staged);
  const SimulatedStep step = predict_step(plan, {.profile = find_profile("h100-sxm")});
  const test::CheckedTrace trace(
      Json(to_trace(programs_of(plan, data, nullptr, nullptr), plan.layout, model,
                    executor_options(plan.options), step.spans, "full_shard")));
  std::size_t actions = 0;
  for (const Schedule& schedule : plan.step.ranks) actions += schedule.actions.size();
  EXPECT_EQ(trace.actions().size(), actions);
  std::set<std::tuple<int, int, int>> passes;  // rank, stage and micro-step
  for (const Json& slice : trace.actions()) {
    const Json& args = slice.at("args");
    if (slice.at("cat") != "compute" || !args.contains("micro_step")) continue;
    passes.emplace(slice.at("pid").get<int>(), args.at("stage").get<int>(),
                   args.at("micro_step").get<int>());
  }
  EXPECT_THAT(passes, ::testing::UnorderedElementsAre(std::tuple(0, 0, 0), std::tuple(0, 0, 1),
                                                      std::tuple(0, 0, 2), std::tuple(2, 1, 0),
                                                      std::tuple(2, 1, 1), std::tuple(2, 1, 2)));
}

}  // namespace
}  // namespace tessera::trace_test
