#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "sharding/step_plan_mutants.h"
#include "support/extent.h"
#include "support/folder_in_memory.h"
#include "support/pipeline_chain.h"
#include "tessera/sharding/validate.h"

// No mutant of a step plan may both pass validate() and do harm: those that pass are run on
// threads, a rank of each pipeline rank at least, under random delays. Every rank's recorded times
// must show no race, and losses, norms and every byte of the training state must be the original's.
namespace tessera::test::pipeline_mutation_test {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr int kSteps = 3;
constexpr std::chrono::minutes kTimeout{2};  // of a message: a mutant that hangs
constexpr std::chrono::microseconds kLongestDelay{150};

int mutants_of_each_kind() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 8;
#else
  return runs_long_tests() ? 500 : 60;
#endif
}

/// What is left when a step plan has run.
struct Outcome {
  std::string failure;  ///< what was thrown
  std::vector<double> losses, norms;
  std::vector<std::string> states;  ///< by rank: every byte
  std::vector<std::string> races;

  bool same(const Outcome& other) const {
    return failure.empty() && losses == other.losses && norms == other.norms &&
           states == other.states;
  }
};

std::string bytes_of(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.data), static_cast<std::size_t>(view.bytes())};
}

std::string bytes_of(const TrainingState& state) {
  std::string bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.tier != Tier::kDisk) {
      bytes += bytes_of(tensor.view);
      continue;
    }
    std::string read(static_cast<std::size_t>(tensor.view.bytes()), '\0');
    state.disk()->read(tensor.extent, std::as_writable_bytes(std::span(read)));
    bytes += read;
  }
  return bytes;
}

std::vector<ActionTime> times_of(const std::vector<ActionSpan>& spans) {
  std::vector<ActionTime> times;
  for (const ActionSpan& span : spans) {
    times.push_back({span.action, span.begin, span.end, span.step});
  }
  return times;
}

/// Runs `step` in place of the chain's own plan, for whose state it is.
class StepPlanRun {
 public:
  StepPlanRun(const PipelineChain& chain, const StepPlan& step, std::uint32_t seed,
              std::chrono::milliseconds timeout = kTimeout)
      : chain_(chain), step_(step), seed_(seed), timeout_(timeout) {
    for (const Schedule& schedule : step.ranks) schedules_.push_back(&schedule);
  }

  Outcome run() {
    const int world_size = step_.mesh().world_size();
    outcome_.states.resize(static_cast<std::size_t>(world_size));
    try {
      const auto world = make_thread_group(world_size, {.timeout = timeout_});
      launch_ranks(world, [&](int rank, ProcessGroup& group) { run_rank(rank, group); });
    } catch (const std::exception& error) {
      outcome_.failure = error.what();
    }
    return std::move(outcome_);
  }

 private:
  void run_rank(int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(world, schedules_);
    const auto place = static_cast<std::size_t>(step_.mesh().index(Axis::kPipeline, rank));
    const Schedule& schedule = *schedules_[place];
    FaultyCalls calls;  // which has no faults, but takes folders in memory
    calls.plain_queues = true;
    TrainingState state(
        chain_.layout(), state_options(chain_.step().ranks[place]), rank, memory,
        {.folder = folder_in_memory().string(), .block_bytes = kDiskAlignment, .calls = &calls});
    ExecutorOptions options = executor_options(chain_.run());
    options.before_task = random_delays(seed_, rank, kLongestDelay);
    options.trace = true;
    options.steps_in_flight = 2;
    Executor executor(state, chain_.model(), {{&schedule, &chain_.source()}}, groups, memory,
                      std::move(options));
    std::vector<double> losses, norms;
    executor.begin_step(0, kRate);
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) executor.begin_step(step + 1, kRate);
      const StepResult result = executor.finish_step();
      losses.push_back(result.loss);
      norms.push_back(result.gradient_norm);
    }
    const std::vector<Violation> races = validate_times(schedule, times_of(executor.spans()));
    std::string after = bytes_of(state);
    for (const StateTensor& tensor : state) {
      if (schedule.find(tensor.name + "@snapshot") < 0) continue;
      after += bytes_of(executor.snapshot(0, tensor.name));
    }
    const std::lock_guard lock(mutex_);
    for (const Violation& race : races) outcome_.races.push_back(race.message);
    outcome_.states[static_cast<std::size_t>(rank)] = std::move(after);
    if (rank > 0) return;
    outcome_.losses = std::move(losses);
    outcome_.norms = std::move(norms);
  }

  const PipelineChain& chain_;
  const StepPlan& step_;
  const std::uint32_t seed_;
  const std::chrono::milliseconds timeout_;
  std::vector<const Schedule*> schedules_;
  std::mutex mutex_;
  Outcome outcome_;
};

/// What became of the mutants.
struct Tally {
  std::array<int, kStepMutations> made{}, ran{};
  std::map<std::string, int> refused, refused_alone;  ///< by rule
  std::vector<std::string> harmful;
};

std::set<std::string> rules_of(const std::vector<Violation>& violations) {
  std::set<std::string> rules;
  for (const Violation& violation : violations)
    rules.insert(std::string(to_string(violation.rule)));
  return rules;
}

/// Where two plans differ first, on each rank.
std::string difference(const StepPlan& a, const StepPlan& b) {
  std::string text;
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    const Schedule &x = a.ranks[rank], &y = b.ranks[rank];
    int shown = 0;
    for (std::size_t i = 0; i < std::min(x.actions.size(), y.actions.size()) && shown < 3; ++i) {
      if (x.actions[i] == y.actions[i]) continue;
      ++shown;
      text += concat("\n  rank ", rank, ", ", i, ": ", describe(x, x.actions[i]), "\n   now ",
                     describe(y, y.actions[i]));
    }
  }
  return text;
}

/// One mutant of each kind, of one subject.
void try_each_kind(const PipelineSubject& subject, std::uint32_t seed, Tally& tally,
                   std::mutex& mutex) {
  const PipelineChain chain(subject);
  ASSERT_TRUE(validate(chain.step()).empty()) << subject.name;
  std::optional<Outcome> expected;
  StepPlanMutator mutator(seed);
  for (int kind = 0; kind < kStepMutations; ++kind) {
    const auto k = static_cast<std::size_t>(kind);
    const std::optional<StepPlan> mutant =
        mutator.mutant(chain.step(), static_cast<StepMutation>(kind));
    if (!mutant) continue;
    const std::set<std::string> rules = rules_of(validate(*mutant));
    std::string harm;
    if (rules.empty()) {
      if (!expected) {
        expected = StepPlanRun(chain, chain.step(), seed).run();
        ASSERT_EQ(expected->failure, "") << subject.name;
        EXPECT_EQ(expected->races, std::vector<std::string>()) << subject.name;
      }
      const Outcome outcome = StepPlanRun(chain, *mutant, seed + 1).run();
      if (!outcome.failure.empty()) {
        harm = "fails: " + outcome.failure;
      } else if (!outcome.races.empty()) {
        harm = "races: " + outcome.races.front();
      } else if (!outcome.same(*expected)) {
        harm = "gives other bits";
      }
    }
    const std::lock_guard lock(mutex);
    ++tally.made[k];
    tally.ran[k] += rules.empty() ? 1 : 0;
    for (const std::string& rule : rules) ++tally.refused[rule];
    if (rules.size() == 1) ++tally.refused_alone[*rules.begin()];
    if (!harm.empty()) {
      tally.harmful.push_back(concat("seed ", seed, ", ", subject.name, ": ", kStepMutationNames[k],
                                     ": ", harm, difference(chain.step(), *mutant)));
    }
  }
}

void print(const Tally& tally) {
  std::ostringstream out;
  for (const auto& [rule, count] : tally.refused) {
    const auto alone = tally.refused_alone.find(rule);
    out << "refused by " << rule << ": " << count << ", by nothing else "
        << (alone == tally.refused_alone.end() ? 0 : alone->second) << '\n';
  }
  for (std::size_t k = 0; k < kStepMutations; ++k) {
    out << "  " << kStepMutationNames[k] << ": " << tally.made[k] << ", of which ran "
        << tally.ran[k] << '\n';
  }
  std::cout << out.str();
}

TEST(PipelineMutation, WhatPassesDoesNoHarm) {
  std::vector<PipelineSubject> all = pipeline_subjects();
  std::erase_if(all, [](const PipelineSubject& s) { return s.run.ranks > 2; });
  const int wanted = mutants_of_each_kind();
  Tally tally;
  std::mutex mutex;
  std::atomic<std::uint32_t> next{0};
  const auto is_enough = [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::all_of(tally.made, [&](int made) { return made >= wanted; });
  };
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&] {
        const auto limit = static_cast<std::uint32_t>(20 * wanted);
        while (!is_enough()) {
          const std::uint32_t seed = next++;
          if (seed >= limit) return;
          try_each_kind(all[seed * 7U % all.size()], seed, tally, mutex);
        }
      });
    }
  }
  print(tally);
  for (const std::string& harmful : tally.harmful) ADD_FAILURE() << harmful;
  for (std::size_t k = 0; k < kStepMutations; ++k) {
    EXPECT_GE(tally.made[k], wanted) << kStepMutationNames[k];
  }
  for (const char* rule : {"form", "happens-before", "contents", "end", "messages", "progress"}) {
    EXPECT_GT(tally.refused_alone[rule], 0) << rule;
  }
}

/// Stage 1 does not send its first output before it has the gradient that comes of it.
StepPlan with_a_circle(StepPlan step) {
  Schedule& s = step.ranks[1];
  const auto find_first = [&](Lane lane) {
    return std::ranges::find(s.actions, lane, &Action::lane);
  };
  const auto receive = find_first(Lane::kReceiveBack);
  std::rotate(find_first(Lane::kSend), receive, receive + 1);
  s = synchronise(std::move(s));
  const auto wait = static_cast<int>(find_first(Lane::kReceiveBack) - s.actions.begin());
  find_first(Lane::kSend)->waits.push_back(wait);
  return step;
}

// What the rules of several ranks alone refuse does harm: a circle hangs, until messages time out,
// and among the mutants whose messages do not fit are some that hang or give other bits.
TEST(PipelineMutation, WhatRulesOfSeveralRanksAloneRefuseDoesHarm) {
  constexpr std::chrono::milliseconds kShort{500};
  PipelineSubject subject{.name = "three stages", .run = {.strategy = "no_shard"}};
  subject.run.first_layers = {0, 2, 3};
  subject.run.micro_steps = 4;
  const PipelineChain chain(subject);
  const StepPlan circle = with_a_circle(chain.step());
  EXPECT_EQ(rules_of(validate(circle)), std::set<std::string>{"progress"});
  EXPECT_THAT(StepPlanRun(chain, circle, 1, kShort).run().failure, HasSubstr("did not arrive"));
  const Outcome expected = StepPlanRun(chain, chain.step(), 1).run();
  ASSERT_EQ(expected.failure, "");
  StepPlanMutator mutator(3);
  int harmful = 0;
  for (int tries = 0; harmful == 0 && tries < 600; ++tries) {
    const std::optional<StepPlan> mutant = mutator.mutant(chain.step(), StepMutation::kMoveMessage);
    if (!mutant || rules_of(validate(*mutant)) != std::set<std::string>{"messages"}) continue;
    harmful += StepPlanRun(chain, *mutant, 2, kShort).run().same(expected) ? 0 : 1;
  }
  EXPECT_EQ(harmful, 1);
}

}  // namespace
}  // namespace tessera::test::pipeline_mutation_test
