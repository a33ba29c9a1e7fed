#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "sharding/schedule_mutants.h"
#include "support/extent.h"
#include "support/small_run.h"

// No mutant of a schedule that gathers codes may both pass validate() and do harm. Mutants are
// those whose change concerns the scales, the codes or what reads them.
namespace tessera::test::code_mutation_test {
namespace {

using Operations = std::vector<const Operation*>;
constexpr int kSteps = 2;
constexpr std::chrono::microseconds kLongestDelay{100};

int mutants_per_operation() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 3;
#else
  return runs_long_tests() ? 500 : 20;
#endif
}

struct Outcome {
  std::string failure;
  std::vector<double> losses, norms;
  std::vector<FullParameter> parameters;
  std::vector<Fp8History> histories;
  std::vector<std::string> races;
};

class Subject {
 public:
  Subject(const std::string& strategy, int ranks, int depth, Fp8Recipe recipe = Fp8Recipe::kCurrent)
      : run_{.ranks = ranks,
             .layers = 2,
             .strategy = strategy,
             .policy = {.prefetch_forward = depth, .prefetch_backward = depth},
             .dtype = DType::kBFloat16,
             .fp8 = {.enabled = true,
                     .recipe = recipe,
                     .scale_units = 1 + depth % 2,
                     .history = 2}},
        model_(make_model()),
        layout_(layout_of(run_, model_)),
        schedule_(plan(layout_, plan_options(run_))) {}

  const Schedule& schedule() const { return schedule_; }

  Outcome run(const Schedule& schedule, std::uint32_t seed) const {
    Outcome outcome;
    std::mutex mutex;
    try {
      const auto world = make_thread_group(run_.ranks, {.timeout = std::chrono::minutes(1)});
      launch_ranks(world, [&](int rank, ProcessGroup& group) {
        run_rank(schedule, rank, group, seed, outcome, mutex);
      });
    } catch (const std::exception& error) {
      outcome.failure = error.what();
    }
    return outcome;
  }

 private:
  Model make_model() const {
    GptConfig config = small_gpt();
    config.layers = run_.layers;
    return make_gpt(config);
  }

  void run_rank(const Schedule& schedule, int rank, ProcessGroup& group, std::uint32_t seed,
                Outcome& outcome, std::mutex& mutex) const {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    ExecutorOptions options = executor_options(run_);
    options.before_task = random_delays(seed, rank, kLongestDelay);
    options.trace = true;
    const RandomTokens source(11, 61, true);
    TrainingState state(layout_, state_options(schedule_), rank, memory);
    Executor executor(state, model_, {{&schedule, &source}}, groups, memory, options);
    std::vector<double> losses, norms;
    std::vector<ActionTime> times;
    for (int step = 0; step < kSteps; ++step) {
      executor.begin_step(step, 1e-2);
      const StepResult result = executor.finish_step();
      losses.push_back(result.loss);
      norms.push_back(result.gradient_norm);
      for (const ActionSpan& span : executor.spans()) {
        times.push_back({span.action, span.begin, span.end, span.step});
      }
    }
    auto parameters = executor.gather_parameters();
    auto histories = executor.fp8_histories();
    const std::lock_guard lock(mutex);
    for (const Violation& race : validate_times(schedule, times)) {
      outcome.races.push_back(race.message);
    }
    if (!outcome.histories.empty() && outcome.histories != histories) {
      outcome.failure = "ranks have other histories";
    }
    outcome.histories = std::move(histories);
    if (rank != 0) return;
    outcome.losses = std::move(losses);
    outcome.norms = std::move(norms);
    outcome.parameters = std::move(parameters);
  }

  SmallRun run_;
  Model model_;
  ModelLayout layout_;
  Schedule schedule_;
};

/// Whether an action concerns the scales, the codes or the histories.
bool is_of_fp8(const Schedule& schedule, const Action& action) {
  if (action.operation == &operations::kAllGather) {
    return !action.writes.empty() && schedule.role(action.writes.front().buffer) == Role::kCode;
  }
  return !action.operation->is_pass || schedule.find(action.reads, BufferKind::kHistory) != nullptr;
}

/// The operation in whose actions two schedules differ first; null: none of `operations`.
const Operation* changed_operation(const Schedule& a, const Schedule& b,
                                   const Operations& operations) {
  const std::size_t count = std::min(a.actions.size(), b.actions.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (a.actions[i] == b.actions[i]) continue;
    for (const Action* const action : {&a.actions[i], &b.actions[i]}) {
      const auto found = std::ranges::find(operations, action->operation);
      if (found != operations.end() && is_of_fp8(a, *action)) return *found;
    }
    return nullptr;
  }
  return nullptr;
}

std::string harm_of(const Outcome& outcome, const Outcome& expected) {
  if (!outcome.failure.empty()) return "fails: " + outcome.failure;
  if (!outcome.races.empty()) return "races: " + outcome.races.front();
  const bool same = outcome.losses == expected.losses && outcome.norms == expected.norms &&
                    same_bits(outcome.parameters, expected.parameters) &&
                    outcome.histories == expected.histories;
  return same ? "" : "gives other bits";
}

/// `mutants`: of each operation.
void expect_no_harm(const std::vector<Subject>& subjects, const Operations& operations,
                    int mutants) {
  std::map<const Operation*, int> made, ran;
  std::uint32_t seed = 0;
  for (const Subject& subject : subjects) {
    ASSERT_TRUE(validate(subject.schedule()).empty());
    const Outcome expected = subject.run(subject.schedule(), ++seed);
    ASSERT_EQ(expected.failure, "");
    ASSERT_EQ(expected.races, std::vector<std::string>());
    Mutator mutator(seed);
    std::set<std::string> seen;
    std::map<const Operation*, int> own;
    const int wanted = mutants / static_cast<int>(std::min<std::size_t>(subjects.size(), 3)) + 1;
    for (int tries = 0; tries < 400 * wanted; ++tries) {
      const auto kind = static_cast<Mutation>(mutator.below(kMutations));
      const std::optional<Schedule> mutant = mutator.mutant(subject.schedule(), kind);
      if (!mutant) continue;
      const Operation* const operation = changed_operation(subject.schedule(), *mutant, operations);
      if (operation == nullptr || own[operation] >= wanted) continue;
      if (!seen.insert(to_string(*mutant)).second) continue;
      ++own[operation];
      ++made[operation];
      if (!validate(*mutant).empty()) continue;
      ++ran[operation];
      const std::string harm = harm_of(subject.run(*mutant, ++seed), expected);
      EXPECT_EQ(harm, "") << kMutationNames[static_cast<std::size_t>(kind)] << " of "
                          << operation->name << "\n"
                          << to_string(*mutant);
    }
  }
  for (const Operation* const operation : operations) {
    std::cout << operation->name << ": " << made[operation] << " mutants, " << ran[operation]
              << " accepted\n";
    EXPECT_GE(made[operation], mutants) << operation->name;
  }
}

TEST(CodeMutation, WhatPassesDoesNoHarm) {
  std::vector<Subject> subjects;
  subjects.emplace_back("full_shard", 2, 1);
  subjects.emplace_back("full_shard", 3, 0);
  subjects.emplace_back("shard_grad_op", 2, 2);
  expect_no_harm(subjects,
                 {&operations::kAmax, &operations::kAllReduceMax, &operations::kEncode,
                  &operations::kAllGather},
                 mutants_per_operation());
}

TEST(CodeMutation, WhatPassesWithHistoriesDoesNoHarm) {
  std::vector<Subject> subjects;
  subjects.emplace_back("full_shard", 2, 1, Fp8Recipe::kDelayed);
  if (runs_long_tests()) {
    subjects.emplace_back("full_shard", 3, 0, Fp8Recipe::kDelayed);
    subjects.emplace_back("shard_grad_op", 2, 2, Fp8Recipe::kDelayed);
    subjects.emplace_back("ddp", 2, 1, Fp8Recipe::kDelayed);
  }
  expect_no_harm(subjects,
                 {&operations::kRollHistory, &operations::kAllReduceMax, &operations::kAmax,
                  &operations::kEncode, &operations::kForward, &operations::kBackward},
                 runs_long_tests() ? mutants_per_operation() : 3);
}

}  // namespace
}  // namespace tessera::test::code_mutation_test
