#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/small_run.h"

namespace tessera::test {

/// The same steps without a pipeline.
inline SmallRun in_one_stage(SmallRun run) {
  run.first_layers.clear();
  run.virtual_stages = 1;
  run.listed.clear();
  run.pipeline_order = PipelineOrder::kOneForwardOneBackward;
  run.tied_apart = true;
  return run;
}

/// Trains; bits are those of `one`, memory and traffic those that were predicted.
inline void expect_same(const SmallRun& run, const SmallResult& one, const std::string& what) {
  const SmallResult many = train(run);
  EXPECT_EQ(many.losses, one.losses) << what;
  EXPECT_EQ(many.norms, one.norms) << what;
  EXPECT_TRUE(same_bits(many.parameters, one.parameters)) << what;
  for (std::size_t stage = 0; stage < many.stages.size(); ++stage) {
    const StageResult& s = many.stages[stage];
    EXPECT_EQ(s.predicted.total, s.measured.total) << what << ", stage " << stage;
    EXPECT_EQ(s.predicted, s.measured) << what << ", stage " << stage;
    EXPECT_EQ(s.predicted_host, s.measured_host) << what << ", stage " << stage;
    if (run.steps_in_flight > 1) continue;  // traffic is that of the steps in flight
    EXPECT_EQ(s.predicted_traffic, s.counted_traffic) << what << ", stage " << stage;
  }
}

}  // namespace tessera::test
