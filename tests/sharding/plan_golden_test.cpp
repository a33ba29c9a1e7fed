#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "sharding/golden_text.h"
#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/sharding/planner.h"

// Plans to the letter: golden/*.txt.
namespace tessera::test::plan_golden_test {
namespace {

PlanOptions options_for(const std::string& name, const Mesh& mesh) {
  const Strategy& strategy = find_strategy(name);
  return {.mesh = mesh,
          .placement = strategy.placement,
          .reshard_after_forward = strategy.reshard_after_forward};
}

void expect_golden(const std::string& name, const Schedule& schedule) {
  test::expect_golden(name, schedule, [](std::string_view text) { return parse_schedule(text); });
}

TEST(PlanGolden, FullShard) {
  expect_golden("full_shard_4_ranks", plan(small_layout(4), options_for("full_shard", grid(1, 4))));
}

TEST(PlanGolden, Zero2WithTwoMicroSteps) {
  PlanOptions options = options_for("zero2", grid(1, 2));
  options.micro_steps = 2;
  options.parameter_dtype = DType::kBFloat16;
  expect_golden("zero2_2_ranks_2_micro_steps", plan(small_layout(2, 2), options));
}

TEST(PlanGolden, NoShardThatSendsBf16WithTwoMicroSteps) {
  PlanOptions options = options_for("no_shard", grid(1, 2));
  options.micro_steps = 2;
  options.parameter_dtype = DType::kBFloat16;
  options.reduce_dtype = DType::kBFloat16;
  expect_golden("no_shard_2_ranks_2_micro_steps_bf16", plan(small_layout(2, 2), options));
}

TEST(PlanGolden, HybridShard) {
  expect_golden("hybrid_shard_4_ranks",
                plan(small_layout(4, 2), options_for("hybrid_shard", grid(2, 2))));
}

TEST(PlanGolden, HybridShardThatReducesHierarchically) {
  PlanOptions options = options_for("hybrid_shard", grid(2, 2));
  options.reduction_order = ReductionOrder::kHierarchical;
  expect_golden("hybrid_shard_4_ranks_hierarchical", plan(small_layout(4, 2), options));
}

}  // namespace
}  // namespace tessera::test::plan_golden_test
