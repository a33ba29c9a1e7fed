#include "tessera/sharding/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_mixtures.h"
#include "sharding/frozen_values.h"
#include "sharding/schedule_edits.h"
#include "support/happens_before.h"

// Waits, and the proof of them: by all pairs of actions (support/happens_before.h), and by
// validate().
namespace tessera::test::synchronise_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- Lists by hand: buffers are numbers -------------------------------------------------------

Action act(Lane lane, const std::vector<int>& reads, const std::vector<int>& writes) {
  Action action{.operation = &operations::kCopy, .lane = lane};
  for (const int buffer : reads) action.reads.push_back({.buffer = buffer});
  for (const int buffer : writes) action.writes.push_back({.buffer = buffer});
  return action;
}

Schedule synchronised(std::vector<Action> actions, int buffers = 8) {
  Schedule schedule;
  schedule.buffers.resize(static_cast<std::size_t>(buffers));
  schedule.actions = std::move(actions);
  return synchronise(std::move(schedule));
}

constexpr Lane kA = Lane::kCompute, kB = Lane::kGather, kC = Lane::kReduce;

TEST(Synchronise, ReadsComeAfterWritesAndWritesAfterBoth) {
  const Schedule s = synchronised(
      {act(kA, {}, {0}), act(kB, {0}, {1}), act(kC, {}, {0}), act(kA, {}, {1}), act(kC, {5}, {6})});
  EXPECT_THAT(s.actions[0].waits, IsEmpty());
  EXPECT_THAT(s.actions[1].waits, ElementsAre(0)) << "which writes what it reads";
  EXPECT_THAT(s.actions[2].waits, ElementsAre(1)) << "which reads what it writes";
  EXPECT_THAT(s.actions[3].waits, ElementsAre(1)) << "which writes the same";
  EXPECT_THAT(s.actions[4].waits, IsEmpty());
}

TEST(Synchronise, ReadsAreInNoOrder) {
  const Schedule s = synchronised({act(kA, {0}, {}), act(kB, {0}, {}), act(kC, {0}, {})});
  for (const Action& action : s.actions) {
    EXPECT_THAT(action.waits, IsEmpty());
    EXPECT_THAT(action.previous_waits, IsEmpty());
  }
}

TEST(Synchronise, AWriteWaitsForEveryLaneThatHasRead) {
  const Schedule s = synchronised({act(kA, {}, {0}), act(kB, {0}, {}), act(kC, {0}, {}),
                                   act(kB, {0}, {}), act(Lane::kOptimizer, {}, {0})});
  EXPECT_THAT(s.actions[4].waits, ElementsAre(2, 3)) << "of a lane, for the last one";
}

TEST(Synchronise, AnActionThatReadsWhatItWritesDoesNotWaitForItself) {
  const Schedule s = synchronised({act(kA, {0}, {0}), act(kA, {0}, {0})});
  for (const Action& action : s.actions) EXPECT_THAT(action.waits, IsEmpty());
}

TEST(Synchronise, ALaneAndOtherWaitsStandForAWait) {
  const Schedule s = synchronised(
      {act(kA, {}, {0, 1}), act(kB, {0}, {2}), act(kB, {1}, {3}), act(kC, {1, 2}, {})});
  EXPECT_THAT(s.actions[1].waits, ElementsAre(0));
  EXPECT_THAT(s.actions[2].waits, IsEmpty()) << "its lane has waited";
  EXPECT_THAT(s.actions[3].waits, ElementsAre(1)) << "which has waited for 0";
}

TEST(Synchronise, AStepComesAfterThePreviousOne) {
  const Schedule s = synchronised({act(kA, {0}, {1}), act(kB, {1}, {2}), act(kC, {2}, {0})});
  EXPECT_THAT(s.actions[0].previous_waits, ElementsAre(2)) << "which has waited for 1";
  EXPECT_THAT(s.actions[1].previous_waits, IsEmpty());
  EXPECT_THAT(s.actions[2].previous_waits, IsEmpty());
}

TEST(Synchronise, AWaitOfTheStepStandsForOneForThePreviousStep) {
  const Schedule s = synchronised({act(kA, {}, {0}), act(kB, {0}, {1}), act(kC, {1}, {2, 3}),
                                   act(Lane::kOptimizer, {0, 3}, {})});
  EXPECT_THAT(s.actions[0].previous_waits, ElementsAre(3)) << "which has waited for 2";
  EXPECT_THAT(s.actions[1].previous_waits, IsEmpty()) << "2 of the previous step is over with 0";
  EXPECT_THAT(s.actions[2].previous_waits, IsEmpty());
}

TEST(Synchronise, WhateverWaitsThereWereAreGone) {
  std::vector<Action> actions{act(kA, {}, {0}), act(kB, {0}, {}), act(kC, {1}, {})};
  const Schedule s = synchronised(actions);
  actions[1].waits = {};
  actions[1].previous_waits = {2};
  actions[2].waits = {0, 1};
  EXPECT_EQ(synchronised(std::move(actions)), s);
  EXPECT_EQ(synchronise(s), s);
  EXPECT_THAT(synchronised({}).actions, IsEmpty());
}

// ---- By all pairs of actions ------------------------------------------------------------------

/// Calls `visit` with the schedule without each of its waits; how many there are.
int without_each_wait(const Schedule& schedule,
                      const std::function<void(const Schedule&, const std::string&)>& visit) {
  int waits = 0;
  Schedule mutant = schedule;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    for (const auto kind : {&Action::waits, &Action::previous_waits}) {
      for (const int wait : schedule.actions[i].*kind) {
        std::erase(mutant.actions[i].*kind, wait);
        visit(mutant, concat("action ", i, " without its wait for ", wait,
                             kind == &Action::waits ? "" : " of the previous step"));
        mutant.actions[i].*kind = schedule.actions[i].*kind;
        ++waits;
      }
    }
  }
  return waits;
}

/// Waits fix the order that conflicts demand, and no other; without any of them, there is a race.
/// How many there are.
int expect_fewest_waits(const Schedule& schedule) {
  const std::vector<ActionPair> conflicts = conflicts_of(schedule);
  EXPECT_THAT(races_of(schedule, conflicts), IsEmpty());
  EXPECT_TRUE(HappensBefore(schedule, pairs_of_waits(schedule)) ==
              HappensBefore(schedule, conflicts))
      << "what does not conflict is in some order";
  return without_each_wait(schedule, [&](const Schedule& mutant, const std::string& what) {
    EXPECT_FALSE(races_of(mutant, conflicts).empty()) << what << " has no race";
  });
}

TEST(Synchronise, KeepsTheFewestWaitsOfRandomLists) {
  std::mt19937 random(5);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  int waits = 0;
  for (int list = 0; list < 400 && !testing::Test::HasFailure(); ++list) {
    SCOPED_TRACE(concat("list ", list));
    const int buffers = 1 + below(8), lanes = 1 + below(kLanes);
    std::vector<Action> actions(static_cast<std::size_t>(1 + below(24)));
    for (Action& action : actions) {
      std::vector<int> reads, writes;
      for (int buffer = 0; buffer < buffers; ++buffer) {
        if (below(4) == 0) reads.push_back(buffer);
        if (below(6) == 0) writes.push_back(buffer);
      }
      action = act(kAllLanes[static_cast<std::size_t>(below(lanes))], reads, writes);
    }
    waits += expect_fewest_waits(synchronised(std::move(actions), buffers));
  }
  EXPECT_GT(waits, 2000);
}

/// Frozen configurations, and mixtures beside them.
std::vector<FrozenConfiguration> frozen() {
  std::vector<FrozenConfiguration> all = FrozenList::make();
  for (FrozenConfiguration& mixture : FrozenMixtures::make()) all.push_back(std::move(mixture));
  return all;
}

/// Every schedule of every `stride`th frozen configuration.
void for_each_frozen(int stride, const std::function<void(const Schedule&)>& visit) {
  const std::vector<FrozenConfiguration> all = frozen();
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(stride)) {
    const FrozenPlans plans(all[i]);
    for (const auto& [name, schedule] : plans.schedules) {
      SCOPED_TRACE(concat(i, ": ", name_of(all[i]), ": ", name));
      visit(schedule);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(HappensBefore, OrdersConflictsOfFrozenConfigurationsByTheFewestWaits) {
  int waits = 0;
  for_each_frozen(1, [&](const Schedule& schedule) { waits += expect_fewest_waits(schedule); });
  EXPECT_GT(waits, 10000);
}

// validate() finds the same with vector clocks, and looks at the last accesses alone.
TEST(HappensBefore, ValidateRefusesFrozenConfigurationsWithoutAnyOfTheirWaits) {
  int waits = 0;
  for_each_frozen(1, [&](const Schedule& schedule) {
    waits += without_each_wait(schedule, [&](const Schedule& mutant, const std::string& what) {
      EXPECT_TRUE(breaks(validate(mutant), Rule::kHappensBefore)) << what << " is not refused";
    });
  });
  EXPECT_GT(waits, 10000);
}

// Without many waits at once: each action that validate() refuses is in a race, and it refuses a
// schedule if and only if there is one.
TEST(HappensBefore, AgreesWithValidateOnFrozenConfigurationsWithoutManyWaits) {
  std::mt19937 random(9);
  std::size_t early = 0;
  for_each_frozen(11, [&](const Schedule& schedule) {
    const std::vector<ActionPair> conflicts = conflicts_of(schedule);
    for (int trial = 0; trial < 4; ++trial) {
      Schedule mutant = schedule;
      for (Action& action : mutant.actions) {
        for (auto* waits : {&action.waits, &action.previous_waits}) {
          std::erase_if(*waits, [&](int /*wait*/) { return random() % 5 == 0; });
        }
      }
      const int count = static_cast<int>(mutant.actions.size());
      std::set<int> racing, refused;
      for (const auto& [earlier, later] : races_of(mutant, conflicts)) {
        if (earlier < count) racing.insert(later % count);
      }
      for (const Violation& violation : validate(mutant)) {
        if (violation.rule == Rule::kHappensBefore) refused.insert(violation.action);
      }
      early += refused.size();
      for (const int action : refused) EXPECT_TRUE(racing.contains(action)) << action;
      EXPECT_EQ(racing.empty(), refused.empty());
    }
  });
  EXPECT_GT(early, 100U);
}

}  // namespace
}  // namespace tessera::test::synchronise_test
