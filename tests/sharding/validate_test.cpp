#include "tessera/sharding/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"

namespace tessera::validate_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace test;        // NOLINT: plans and edits
using namespace operations;  // NOLINT: rows of the table

TEST(Validate, AcceptsWhateverThePlannerMakes) {
  int plans = 0;
  for_each_plan([&](const Schedule& s, const std::string& what) {
    ++plans;
    const auto violations = validate(s);
    ASSERT_THAT(violations, IsEmpty()) << what << '\n' << text_of(violations) << to_string(s);
  });
  EXPECT_EQ(plans, 8 * 8 * 2 * 2 * 3 * 2 * 4);
}

TEST(Validate, FindsEverySingleMissingWait) {
  std::int64_t dropped = 0;
  for_each_plan([&](const Schedule& s, const std::string& what) {
    Schedule mutant = s;
    for (std::size_t i = 0; i < s.actions.size(); ++i) {
      for (const auto kind : {&Action::waits, &Action::previous_waits}) {
        for (std::size_t w = 0; w < (s.actions[i].*kind).size(); ++w) {
          auto& waits = mutant.actions[i].*kind;
          waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
          ++dropped;
          ASSERT_TRUE(breaks(validate(mutant), Rule::kHappensBefore))
              << what << ": action " << i << " does not need to wait for "
              << (s.actions[i].*kind)[w] << '\n'
              << to_string(s);
          waits = s.actions[i].*kind;
        }
      }
    }
  });
  EXPECT_GT(dropped, 10000);
}

TEST(Validate, FindsEverySingleMissingAction) {
  for_each_plan(
      [&](const Schedule& s, const std::string& what) {
        for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
          ASSERT_THAT(validate(without(s, i)), ::testing::Not(IsEmpty()))
              << what << ": without action " << i << '\n'
              << to_string(s);
        }
      },
      7);
}

TEST(ValidateHappensBefore, NamesBothSides) {
  Schedule s = planned("full_shard", grid(1, 2));
  const int forward = find(s, kForward);
  ASSERT_THAT(at(s, forward).waits, ::testing::Contains(1));
  const std::string slot = s.name_of(slot_of(s, at(s, forward)));
  at(s, forward).waits.clear();
  expect_breaks(s, Rule::kHappensBefore,
                concat("action ", forward, " (forward embedding m0 ", slot,
                       "=embedding batch.m0 -> x.embedding.m0): reads ", slot,
                       " without waiting until action 1 (all-gather over shard "
                       "embedding.parameter -> ",
                       slot, "=embedding) has written it"));
}

TEST(ValidateHappensBefore, FindsALossThatDoesNotKnowTheNumberOfTokens) {
  Schedule s = planned("zero1", grid(1, 2));
  const int loss = find(s, kLoss);
  ASSERT_THAT(at(s, loss).waits, ::testing::Contains(find(s, kCountTokens)));
  at(s, loss).waits.clear();
  expect_breaks(s, Rule::kHappensBefore,
                "reads tokens without waiting until action 0 (count-tokens -> tokens loss norm)");
}

// The lane of an action is free, its place in the order of other lanes is not.
// Layers use the compute lane's scratch memory, so even ordered passes stay there.
TEST(ValidateForm, KeepsPassesOnTheComputeLane) {
  for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
    Schedule s = planned("no_shard", grid(1, 1));
    const int forward = find(s, kForward, 1);
    at(s, forward).lane = lane;
    for (Action& action : s.actions) std::erase(action.waits, forward);
    expect_breaks(s, Rule::kForm, "layers run on the compute lane");
    at(s, forward).waits = {forward - 1};
    at(s, forward + 1).waits = {forward};
    expect_breaks(s, Rule::kForm, "layers run on the compute lane");
  }
}

TEST(ValidateRanks, AcceptsEqualSchedules) {
  for_each_plan([&](const Schedule& s, const std::string& what) {
    if (s.mesh.world_size() > 3) return;
    const std::vector<Schedule> ranks(static_cast<std::size_t>(s.mesh.world_size()), s);
    ASSERT_THAT(validate(ranks), IsEmpty()) << what;
  });
  EXPECT_THAT(validate(std::span<const Schedule>()), IsEmpty());
}

TEST(ValidateRanks, FindsCollectivesInAnotherOrder) {
  const Schedule s = planned("full_shard", grid(1, 3));
  const int first = find(s, unshards);
  const int second = find(s, unshards, 1);
  std::vector<Schedule> ranks{s, s, s};
  ranks[1] = moved(s, second, first);
  const auto violations = validate(ranks);
  ASSERT_TRUE(breaks(violations, Rule::kCollectiveOrder)) << text_of(violations);
  EXPECT_THAT(text_of(violations),
              HasSubstr("rank 1: action 1 (all-gather over shard h.0.parameter"));
  EXPECT_THAT(text_of(violations),
              HasSubstr("but rank 0 issues action 1 (all-gather over shard embedding.parameter"));
}

// Each lane by itself agrees, but rank 0 reduces before it gathers and rank 1 gathers before it
// reduces: with a wait between the two on both ranks, neither could go on.
TEST(ValidateRanks, FindsOrdersThatDifferOnlyBetweenLanes) {
  const Schedule s = planned("full_shard", grid(1, 2));
  const int count = find(s, kCountTokens);
  const int unshard = find(s, unshards);
  ASSERT_LT(count, unshard);
  const std::vector<Schedule> ranks{s, moved(s, unshard, count)};
  EXPECT_THAT(validate(ranks[1]), IsEmpty());
  EXPECT_TRUE(breaks(validate(ranks), Rule::kCollectiveOrder));
}

TEST(ValidateRanks, FindsMissingCollectivesAndOtherSizes) {
  const Schedule s = planned("zero1", grid(1, 2));
  std::vector<Schedule> ranks{s, without(s, find(s, gathers_updated, 4))};
  EXPECT_THAT(text_of(validate(ranks)), HasSubstr("collectives, but rank 0 issues"));
  const Strategy& strategy = find_strategy("zero1");
  const Schedule smaller =
      plan(small_layout(2, 2), {.mesh = grid(1, 2), .placement = strategy.placement});
  for (const Schedule& other : {smaller, planned("zero1", grid(1, 2), 2)}) {
    ranks[1] = other;
    EXPECT_THAT(
        text_of(validate(ranks)),
        HasSubstr("rank 1: purpose, mesh, placement, micro-steps or units differ from rank 0's"));
  }
  ranks = {s};
  EXPECT_THAT(text_of(validate(ranks)), HasSubstr("schedules of 1 ranks for a mesh of 2"));
}

TEST(RequireValid, ThrowsWithEveryViolation) {
  const Schedule s = planned("zero1", grid(1, 2));
  EXPECT_NO_THROW(require_valid(s));
  try {
    require_valid(
        without(without(s, find_of(s, kOptimizerStep, 4)), find_of(s, kOptimizerStep, 3)));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("end: h.2.parameter is never updated"));
    EXPECT_THAT(error.what(), HasSubstr("end: head.second-moment is never updated"));
  }
}

}  // namespace
}  // namespace tessera::validate_test
