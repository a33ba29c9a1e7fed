#include "sharding/mutant_runs.h"

// No mutant of a schedule that gathers codes may both pass validate() and do harm. Mutants are
// those whose change concerns the scales, the codes or what reads them.
namespace tessera::test::code_mutation_test {
namespace {

SmallRun run_in_fp8(const std::string& strategy, int ranks, int depth,
                    Fp8Recipe recipe = Fp8Recipe::kCurrent) {
  return {.ranks = ranks,
          .layers = 2,
          .strategy = strategy,
          .policy = {.prefetch_forward = depth, .prefetch_backward = depth},
          .dtype = DType::kBFloat16,
          .fp8 = {.enabled = true, .recipe = recipe, .scale_units = 1 + depth % 2, .history = 2}};
}

/// Whether an action concerns the scales, the codes or the histories.
bool is_of_fp8(const Schedule& schedule, const Action& action) {
  if (action.operation == &operations::kAllGather) {
    return !action.writes.empty() && schedule.role(action.writes.front().buffer) == Role::kCode;
  }
  return !action.operation->is_pass || schedule.find(action.reads, BufferKind::kHistory) != nullptr;
}

TEST(CodeMutation, WhatPassesDoesNoHarm) {
  std::vector<MutantSubject> subjects;
  subjects.emplace_back(run_in_fp8("full_shard", 2, 1));
  subjects.emplace_back(run_in_fp8("full_shard", 3, 0));
  subjects.emplace_back(run_in_fp8("shard_grad_op", 2, 2));
  expect_no_harm(subjects,
                 {&operations::kAmax, &operations::kAllReduceMax, &operations::kEncode,
                  &operations::kAllGather},
                 mutants_per_operation(), is_of_fp8);
}

TEST(CodeMutation, WhatPassesWithHistoriesDoesNoHarm) {
  std::vector<MutantSubject> subjects;
  subjects.emplace_back(run_in_fp8("full_shard", 2, 1, Fp8Recipe::kDelayed));
  if (runs_long_tests()) {
    subjects.emplace_back(run_in_fp8("full_shard", 3, 0, Fp8Recipe::kDelayed));
    subjects.emplace_back(run_in_fp8("shard_grad_op", 2, 2, Fp8Recipe::kDelayed));
    subjects.emplace_back(run_in_fp8("ddp", 2, 1, Fp8Recipe::kDelayed));
  }
  expect_no_harm(subjects,
                 {&operations::kRollHistory, &operations::kAllReduceMax, &operations::kAmax,
                  &operations::kEncode, &operations::kForward, &operations::kBackward},
                 runs_long_tests() ? mutants_per_operation() : 3, is_of_fp8);
}

}  // namespace
}  // namespace tessera::test::code_mutation_test
