#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/sharding/plan.h"

// Plans to the letter: golden/*.txt.
namespace tessera::test::plan_golden_test {
namespace {

PlanOptions options_for(const std::string& name, const Mesh& mesh) {
  const Strategy& strategy = find_strategy(name);
  return {.mesh = mesh,
          .placement = strategy.placement,
          .reshard_after_forward = strategy.reshard_after_forward};
}

// Compares with tests/sharding/golden/<name>.txt. Where a change of plan is meant, run this program
// with TESSERA_UPDATE_GOLDEN=1 and read the difference.
void expect_golden(const std::string& name, const Schedule& schedule) {
  const std::string path =
      std::string(TESSERA_SOURCE_DIR) + "/tests/sharding/golden/" + name + ".txt";
  const std::string actual = to_string(schedule);
  if (const char* update = std::getenv("TESSERA_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path) << actual;
    FAIL() << "wrote " << path << "; run again without TESSERA_UPDATE_GOLDEN";
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << "no " << path;
  std::ostringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "TESSERA_UPDATE_GOLDEN=1 writes " << path;
  EXPECT_EQ(parse_schedule(expected.str()), schedule);
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
