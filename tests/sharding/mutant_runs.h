#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharding/schedule_mutants.h"
#include "support/extent.h"
#include "support/small_run.h"

// Runs of schedules with one thing changed, and what comes of it.
namespace tessera::test {

using Operations = std::vector<const Operation*>;
/// Whether an action concerns a test.
using Concerns = std::function<bool(const Schedule&, const Action&)>;
inline constexpr int kMutantSteps = 2;
inline constexpr std::chrono::microseconds kLongestMutantDelay{100};

inline int mutants_per_operation() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 3;
#else
  return runs_long_tests() ? 500 : 20;
#endif
}

struct MutantOutcome {
  std::string failure;
  std::vector<double> losses, norms;
  std::vector<FullParameter> parameters;
  std::vector<Fp8History> histories;
  std::vector<std::string> races;
};

/// A run whose schedule is changed.
class MutantSubject {
 public:
  explicit MutantSubject(SmallRun run)
      : run_(std::move(run)),
        model_(make_model()),
        layout_(layout_of(run_, model_)),
        schedule_(plan(layout_, plan_options(run_))) {}

  const Schedule& schedule() const { return schedule_; }

  MutantOutcome run(const Schedule& schedule, std::uint32_t seed) const {
    MutantOutcome outcome;
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
                MutantOutcome& outcome, std::mutex& mutex) const {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    ExecutorOptions options = executor_options(run_);
    options.before_task = random_delays(seed, rank, kLongestMutantDelay);
    options.trace = true;
    const RandomTokens source(11, 61, true);
    TrainingState state(layout_, state_options(schedule_), rank, memory);
    Executor executor(state, model_, {{&schedule, &source}}, groups, memory, options);
    std::vector<double> losses, norms;
    std::vector<ActionTime> times;
    for (int step = 0; step < kMutantSteps; ++step) {
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

/// The operation in whose actions two schedules differ first; null: none of `operations`.
inline const Operation* changed_operation(const Schedule& a, const Schedule& b,
                                          const Operations& operations, const Concerns& concerns) {
  const std::size_t count = std::min(a.actions.size(), b.actions.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (a.actions[i] == b.actions[i]) continue;
    for (const Action* const action : {&a.actions[i], &b.actions[i]}) {
      const auto found = std::ranges::find(operations, action->operation);
      if (found != operations.end() && concerns(a, *action)) return *found;
    }
    return nullptr;
  }
  return nullptr;
}

inline std::string harm_of(const MutantOutcome& outcome, const MutantOutcome& expected) {
  if (!outcome.failure.empty()) return "fails: " + outcome.failure;
  if (!outcome.races.empty()) return "races: " + outcome.races.front();
  const bool same = outcome.losses == expected.losses && outcome.norms == expected.norms &&
                    same_bits(outcome.parameters, expected.parameters) &&
                    outcome.histories == expected.histories;
  return same ? "" : "gives other bits";
}

/// Expects that of `mutants` schedules of each operation none both passes validate() and does harm.
/// A mutant counts for the operation in whose actions it differs first, if these concern the test.
inline void expect_no_harm(const std::vector<MutantSubject>& subjects, const Operations& operations,
                           int mutants, const Concerns& concerns) {
  std::map<const Operation*, int> made, ran;
  std::uint32_t seed = 0;
  for (const MutantSubject& subject : subjects) {
    ASSERT_TRUE(validate(subject.schedule()).empty());
    const MutantOutcome expected = subject.run(subject.schedule(), ++seed);
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
      const Operation* const operation =
          changed_operation(subject.schedule(), *mutant, operations, concerns);
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

}  // namespace tessera::test
