#include "sharding/mutant_runs.h"

// No mutant of a schedule with a factored optimizer may both pass validate() and do harm. Mutants
// are those whose change concerns sums over matrices, moments or what reads them.
namespace tessera::test::factored_mutation_test {
namespace {

SmallRun factored_run(const std::string& strategy, int ranks, bool scale_parameter) {
  return {.ranks = ranks,
          .layers = 2,
          .strategy = strategy,
          .optimizer = "adafactor",
          .hyperparameters = {{"scale_parameter", scale_parameter ? 1.0 : 0.0}},
          .dtype = scale_parameter ? DType::kFloat32 : DType::kBFloat16};
}

/// Whether an action concerns the statistics.
bool is_of_statistics(const Schedule& schedule, const Action& action) {
  if (action.operation != &operations::kAllReduce) return true;
  return !action.reads.empty() && schedule.role(action.reads.front().buffer) == Role::kStatistics;
}

TEST(FactoredMutation, WhatPassesDoesNoHarm) {
  std::vector<MutantSubject> subjects;
  subjects.emplace_back(factored_run("full_shard", 2, false));
  subjects.emplace_back(factored_run("zero1", 3, true));
  subjects.emplace_back(factored_run("full_shard", 2, true));
  expect_no_harm(subjects,
                 {&operations::kSquareSums, &operations::kAllReduce, &operations::kMoments,
                  &operations::kUpdateSquares, &operations::kOptimizerStep},
                 mutants_per_operation(), is_of_statistics);
}

}  // namespace
}  // namespace tessera::test::factored_mutation_test
