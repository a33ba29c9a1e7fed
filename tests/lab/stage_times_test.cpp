#include "stage_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/virtual_pipeline.h"

// Where the time of the stages of a pipeline goes.
namespace tessera::stage_times_test {
namespace {

using test::VirtualPipeline;

struct Times {
  double step_seconds = 0.0;
  std::vector<StageTime> stages;
};

Times times_of(const VirtualPipeline& pipeline) {
  const test::VirtualStep virtual_step = test::simulate(pipeline);
  std::vector<std::vector<Program>> ranks;
  std::vector<std::vector<ActionSpan>> spans;
  for (std::size_t rank = 0; rank < virtual_step.ranks.size(); ++rank) {
    ranks.push_back({{&virtual_step.step.ranks[rank], nullptr}});
    spans.push_back(virtual_step.ranks[rank].spans);
  }
  Times times{.step_seconds = virtual_step.makespan(), .stages = {}};
  for (const std::vector<ActionSpan>& own : without_waiting(spans, ranks)) {
    times.stages.push_back(stage_time(own, 1.0, times.step_seconds));
  }
  return times;
}

// (p - 1) / (m + p - 1) of the step, whatever the order.
TEST(StageTimes, TheBubbleOfEqualStagesIsTheClosedForm) {
  for (const auto order : {PipelineOrder::kGPipe, PipelineOrder::kOneForwardOneBackward}) {
    for (const int stages : {2, 4, 8}) {
      for (const int micro_steps : {1, 8, 32}) {
        VirtualPipeline even = test::equal_stages(stages, 1.0, 2.0);
        even.order = order;
        even.micro_steps = micro_steps;
        const Times times = times_of(even);
        for (const StageTime& time : times.stages) {
          EXPECT_DOUBLE_EQ(time.compute, 3.0 * micro_steps);
          EXPECT_NEAR(time.bubble, 3.0 * (stages - 1), 1e-9) << stages << " " << micro_steps;
          EXPECT_EQ(time.exposed_messages, 0.0);
          EXPECT_EQ(time.exposed, 0.0);
        }
      }
    }
  }
}

// The first message of a stage hides behind nothing: it is on its way for its own time, and all
// before that is the bubble.
TEST(StageTimes, WaitingForAMessageIsNoMessage) {
  VirtualPipeline even = test::equal_stages(4, 1.0, 2.0);
  even.order = PipelineOrder::kGPipe;
  even.micro_steps = 1;
  even.message = 0.25;
  const Times times = times_of(even);
  ASSERT_EQ(times.stages.size(), 4U);
  EXPECT_NEAR(times.step_seconds, 4 * 3.0 + 6 * 0.25, 1e-9);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const StageTime& time = times.stages[stage];
    EXPECT_DOUBLE_EQ(time.compute, 3.0);
    // Each stage but the ends receives and sends in both directions.
    const double messages = stage == 0 || stage == 3 ? 2.0 : 4.0;
    EXPECT_NEAR(time.exposed_messages, messages * 0.25, 1e-9) << stage;
    EXPECT_NEAR(time.compute + time.exposed_messages + time.bubble, times.step_seconds, 1e-9);
  }
}

TEST(StageTimes, AddUpToTheStepWhateverTheStagesAre) {
  VirtualPipeline uneven = test::equal_stages(4, 1.0, 2.0);
  uneven.first_layers = {0, 1, 4, 5};
  uneven.micro_steps = 6;
  uneven.message = 0.125;
  for (const int prefetch : {0, 1, 2}) {
    uneven.prefetch = prefetch;
    const Times times = times_of(uneven);
    for (const StageTime& time : times.stages) {
      EXPECT_NEAR(time.compute + time.exposed_messages + time.bubble, times.step_seconds, 1e-9);
      EXPECT_GT(time.exposed_messages, 0.0);
    }
    // The slowest stage waits least.
    const auto slowest = std::ranges::max_element(times.stages, {}, &StageTime::compute);
    const auto least = std::ranges::min_element(times.stages, {}, &StageTime::bubble);
    EXPECT_EQ(slowest, least);
  }
}

}  // namespace
}  // namespace tessera::stage_times_test
