#include "tessera/sharding/pipeline.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/step_plan.h"

namespace tessera::test {
namespace {

constexpr PipelineOrder kOrders[] = {PipelineOrder::kGPipe, PipelineOrder::kOneForwardOneBackward};

std::string text_of(const std::vector<StagePass>& passes) {
  std::string text;
  for (const StagePass& pass : passes) {
    text += concat(text.empty() ? "" : " ", pass.backward ? 'B' : 'F', pass.micro_step);
  }
  return text;
}

TEST(PipelineOrders, AreThoseOfThePapers) {
  const PipelineShape shape{.ranks = 3, .stages = 3, .micro_steps = 4};
  const auto passes = [&](PipelineOrder order, int rank) {
    return text_of(pipeline_passes(order, shape, rank));
  };
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(passes(PipelineOrder::kGPipe, rank), "F0 F1 F2 F3 B0 B1 B2 B3");
  }
  constexpr auto k1F1B = PipelineOrder::kOneForwardOneBackward;
  EXPECT_EQ(passes(k1F1B, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(passes(k1F1B, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(passes(k1F1B, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(PipelineOrders, GoOnWithAnyNumbersOfStagesMicroStepsAndMessages) {
  for (const PipelineOrder order : kOrders) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int micro_steps = 1; micro_steps <= 12; ++micro_steps) {
        for (int first = 0; first < ranks; ++first) {
          for (int depth = 0; depth <= 3; ++depth) {
            const PipelineShape shape{.ranks = ranks,
                                      .stages = ranks,
                                      .micro_steps = micro_steps,
                                      .first_backward_stage = first};
            std::vector<std::vector<StagePass>> passes;
            for (int r = 0; r < ranks; ++r) passes.push_back(pipeline_passes(order, shape, r));
            ASSERT_NO_THROW(with_messages(passes, shape, depth))
                << to_string(order) << ", " << ranks << " ranks, " << micro_steps
                << " micro-steps, depth " << depth;
          }
        }
      }
    }
  }
}

void expect_same(const SmallRun& run, const SmallResult& one, const std::string& what) {
  const SmallResult many = train(run);
  EXPECT_EQ(many.losses, one.losses) << what;
  EXPECT_EQ(many.norms, one.norms) << what;
  EXPECT_TRUE(same_bits(many.parameters, one.parameters)) << what;
  for (std::size_t stage = 0; stage < many.stages.size(); ++stage) {
    const StageResult& s = many.stages[stage];
    EXPECT_EQ(s.predicted.total, s.measured.total) << what << ", stage " << stage;
    EXPECT_EQ(s.predicted, s.measured) << what << ", stage " << stage;
    EXPECT_EQ(s.predicted_host, s.measured_host) << what << ", stage " << stage;
    EXPECT_EQ(s.predicted_traffic, s.counted_traffic) << what << ", stage " << stage;
  }
}

TEST(Pipeline, TwoStagesHaveTheBitsOfOneProcess) {
  SmallRun run{.tied_apart = true, .strategy = "no_shard", .micro_steps = 3};
  const SmallResult one = train(run);
  run.first_layers = {0, 2};
  for (const PipelineOrder order : kOrders) {
    run.pipeline_order = order;
    expect_same(run, one, std::string(to_string(order)));
  }
}

}  // namespace
}  // namespace tessera::test
