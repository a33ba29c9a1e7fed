#include "tessera/sharding/step_plan.h"
#include "sharding/golden_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "support/pipeline_chain.h"
#include "tessera/core/error.h"
#include "tessera/sharding/schedule_json.h"

namespace tessera::test::step_plan_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PipelineSubject small_pipeline(PipelineOrder order) {
  PipelineSubject subject{.name = std::string(to_string(order)), .run = {.strategy = "no_shard"}};
  subject.run.first_layers = {0, 2};
  subject.run.pipeline_order = order;
  subject.run.micro_steps = 3;
  return subject;
}

TEST(StepPlan, IsValidAndReadsBackFromTextAndJson) {
  for (const PipelineSubject& subject : pipeline_subjects()) {
    SCOPED_TRACE(subject.name);
    const PipelineChain chain(subject);
    const StepPlan& step = chain.step();
    for (const Violation& violation : validate(step)) ADD_FAILURE() << violation.message;
    ASSERT_EQ(parse_step_plan(to_string(step)), step);
    ASSERT_EQ(to_string(parse_step_plan(to_string(step))), to_string(step));
    ASSERT_EQ(step_plan_from_json(Json::parse(to_json(step).dump())), step);
    if (HasFailure()) return;
  }
}

TEST(StepPlan, OfOneRankIsItsSchedule) {
  PipelineSubject subject = small_pipeline(PipelineOrder::kGPipe);
  subject.run.first_layers.clear();
  const PipelineChain chain(subject);
  ASSERT_EQ(chain.step().ranks.size(), 1U);
  const Schedule& schedule = chain.step().ranks.front();
  EXPECT_EQ(to_string(chain.step()), to_string(schedule));
  EXPECT_EQ(to_json(chain.step()), to_json(schedule));
  EXPECT_EQ(parse_step_plan(to_string(schedule)), chain.step());
  EXPECT_EQ(step_plan_from_json(to_json(schedule)), chain.step());
}

TEST(StepPlan, OfSeveralRanksIsAListOfSchedules) {
  const PipelineChain chain(small_pipeline(PipelineOrder::kGPipe));
  const Json json = to_json(chain.step());
  EXPECT_EQ(json.size(), 1U);
  ASSERT_EQ(json["pipeline_ranks"].size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(json["pipeline_ranks"][rank], to_json(chain.step().ranks[rank]));
  }
}

/// A name that looks like the line between schedules stays a name.
TEST(StepPlan, ReadsBackUnitsOfAnyName) {
  PipelineSubject subject = small_pipeline(PipelineOrder::kGPipe);
  const PipelineChain chain(subject);
  StepPlan step = chain.step();
  for (Schedule& schedule : step.ranks) {
    schedule.units[1].name = "\npipeline-rank 1\n";
    schedule.layers[1].name = "pipeline-rank 0";
  }
  EXPECT_EQ(parse_step_plan(to_string(step)), step);
  EXPECT_EQ(step_plan_from_json(to_json(step)), step);
}

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "nothing";
}

/// The number of the first line that contains `what`, after line `after`.
int line_of(const std::string& text, const std::string& what, int after = 0) {
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    if (++number > after && line.find(what) != line.npos) return number;
  }
  return -1;
}

void replace_line(std::string& text, int number, const std::string& line) {
  std::istringstream in(text);
  std::string out;
  int now = 0;
  for (std::string old; std::getline(in, old);) out += (++now == number ? line : old) + '\n';
  text = out;
}

TEST(StepPlan, TextErrorsNameTheRankAndTheLineOfTheWholeText) {
  const PipelineChain chain(small_pipeline(PipelineOrder::kGPipe));
  const std::string good = to_string(chain.step());
  const auto refused = [](const std::string& text) {
    return refusal([&] { parse_step_plan(text); });
  };
  const int second = line_of(good, "pipeline-rank 1");
  for (const int after : {0, second}) {
    std::string text = good;
    const int line = line_of(good, " count-tokens ", after);
    replace_line(text, line, "0 reduce all-together ->");
    EXPECT_THAT(refused(text), HasSubstr(concat("line ", line, " of the schedule: ")));
    EXPECT_THAT(refused(text), HasSubstr(concat("pipeline rank ", after > 0 ? 1 : 0)));
    EXPECT_THAT(refused(text), HasSubstr("all-together"));
  }
  std::string text = good;
  replace_line(text, second, "pipeline-rank 2");
  EXPECT_THAT(refused(text), HasSubstr(concat("line ", second,
                                              ": 'pipeline-rank 2' where "
                                              "'pipeline-rank 1' belongs")));
  text = good;
  replace_line(text, second, "pipeline-rank 1 2");
  EXPECT_THAT(refused(text), HasSubstr(concat("line ", second)));
  EXPECT_THAT(refused("mesh replicate 1 shard 1\n" + good), HasSubstr("line 1: "));
  EXPECT_EQ(parse_step_plan("\n \n" + good), chain.step());
}

TEST(StepPlan, JsonErrorsNameTheRank) {
  const PipelineChain chain(small_pipeline(PipelineOrder::kGPipe));
  const Json good = to_json(chain.step());
  const auto refused = [&](const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    return refusal([&] { step_plan_from_json(json); });
  };
  EXPECT_THAT(refused([](Json& j) { j["pipeline_ranks"][1].erase("mesh"); }),
              HasSubstr("pipeline rank 1: the JSON is no schedule: "));
  EXPECT_THAT(refused([](Json& j) { j["pipeline_ranks"][0]["actions"][1]["operation"] = "x"; }),
              HasSubstr("pipeline rank 0: "));
  EXPECT_THAT(refused([](Json& j) { j["pipeline_ranks"] = Json::array(); }),
              HasSubstr("'pipeline_ranks' must be a list of schedules"));
  EXPECT_THAT(refused([](Json& j) { j["pipeline_ranks"] = 2; }),
              HasSubstr("'pipeline_ranks' must be a list of schedules"));
  EXPECT_THAT(refused([](Json& j) { j = 2; }), HasSubstr("the JSON is no schedule"));
}

void expect_golden(const std::string& name, const StepPlan& step) {
  test::expect_golden(name, step, parse_step_plan);
}

TEST(StepPlanGolden, OfEachOrder) {
  for (const PipelineOrder order : kPipelineOrders) {
    expect_golden(concat("pipeline_", to_string(order), "_2_stages_3_micro_steps"),
                  PipelineChain(small_pipeline(order)).step());
  }
  for (const PipelineOrder order : {PipelineOrder::kInterleaved, PipelineOrder::kZeroBubbleV}) {
    PipelineSubject subject = small_pipeline(order);
    subject.run.virtual_stages = 2;
    subject.layers = 4;
    subject.run.first_layers = {0, 1, 2, 3};
    expect_golden(concat("pipeline_", to_string(order), "_4_stages_3_micro_steps"),
                  PipelineChain(subject).step());
  }
}

/// A plan that leaves stages out would train a part of the model.
TEST(StepPlan, OfAnOrderWithOneStagePerRankTakesNoMoreStages) {
  PipelineSubject subject = small_pipeline(PipelineOrder::kOneForwardOneBackward);
  const PipelineChain chain(subject);
  PlanOptions options = plan_options(chain.run(), chain.model(), chain.layout(), chain.source());
  options.mesh.set_size(Axis::kPipeline, 1);
  const std::string text = refusal([&] { plan_step(chain.layout(), options); });
  EXPECT_THAT(text, HasSubstr("2 stages"));
  EXPECT_THAT(text, HasSubstr("1f1b"));
}

}  // namespace
}  // namespace tessera::test::step_plan_test
