#include "tessera/sharding/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sharding/frozen_mixtures.h"
#include "sharding/frozen_run.h"
#include "support/extent.h"
#include "tessera/sharding/gradient_sums.h"

// Each pass of planning by itself: what it returns can be executed, one action after the other, and
// trains the same bits.
namespace tessera::test::passes_test {
namespace {

/// The actions one after the other, whatever their lanes, from step to step.
Schedule one_after_the_other(Schedule schedule) {
  const int count = static_cast<int>(schedule.actions.size());
  for (int a = 0; a < count; ++a) {
    Action& action = schedule.actions[static_cast<std::size_t>(a)];
    action.waits.clear();
    action.previous_waits.clear();
    const int before = a > 0 ? a - 1 : count - 1;
    if (schedule.actions[static_cast<std::size_t>(before)].lane == action.lane) continue;
    (a > 0 ? action.waits : action.previous_waits).push_back(before);
  }
  return schedule;
}

/// The same configuration, whose steps are as plain as passes before the last can run.
FrozenConfiguration plain(FrozenConfiguration c, int steps) {
  c.snapshots = c.evaluates = false;
  c.run.steps = steps;
  c.run.steps_in_flight = 1;
  return c;
}

FrozenConfiguration on_one_rank(FrozenConfiguration c) {
  c.run.ranks = 1;
  c.run.replicas = 1;
  return c;
}

/// The state of ranks that keep everything on the device.
StateOptions on_device(StateOptions state) {
  state.offload_optimizer = state.offload_parameters = 0.0;
  state.disk_optimizer = state.disk_parameters = 0.0;
  return state;
}

/// What comes of a configuration's steps if planning ends with `pass`.
FrozenResult train_after(std::string_view pass, const FrozenConfiguration& c) {
  FrozenPlans plans(c);
  PlanOptions options = plan_options(c.run, plans.model, plans.layout, plans.source);
  if (c.placement) options.placement = *c.placement;
  plans.schedules.front().second = one_after_the_other(plan(plans.layout, options, pass));
  if (pass == "order" || pass == "update" || pass == "shard") plans.state = on_device(plans.state);
  return execute(plans);
}

bool has_quantized(const FrozenConfiguration& c) {
  return c.run.base_format != WeightFormat::kNone;
}

std::vector<FrozenConfiguration> sample() {
  std::vector<FrozenConfiguration> all = FrozenList::make();
  const std::vector<FrozenConfiguration> mixtures = FrozenMixtures::make();
  all.insert(all.end(), mixtures.begin(), mixtures.end());
  if (runs_long_tests()) return all;
  std::vector<FrozenConfiguration> some;
  for (std::size_t i = 0; i < all.size(); i += 13) some.push_back(std::move(all[i]));
  return some;
}

TEST(PlanPasses, OrderAloneGivesTheLossesOfOneRank) {
  for (const FrozenConfiguration& given : sample()) {
    if (has_quantized(given)) continue;
    SCOPED_TRACE(name_of(given));
    const FrozenConfiguration c = on_one_rank(plain(given, 1));
    std::vector<double> losses;
    const FrozenResult planned = train_after("synchronise", c), ordered = train_after("order", c);
    EXPECT_EQ(ordered.losses, planned.losses);
  }
}

TEST(PlanPasses, FromUpdateOnOneRankTrainsTheSameBits) {
  for (const FrozenConfiguration& given : sample()) {
    if (has_quantized(given)) continue;
    SCOPED_TRACE(name_of(given));
    const FrozenConfiguration c = on_one_rank(plain(given, 2));
    const FrozenResult planned = train_after("synchronise", c), updated = train_after("update", c);
    EXPECT_EQ(updated.parameters, planned.parameters);
    EXPECT_EQ(updated.results, planned.results);
  }
}

TEST(PlanPasses, FromShardOnAllRanksTrainTheSameBits) {
  for (const FrozenConfiguration& given : sample()) {
    SCOPED_TRACE(name_of(given));
    const FrozenConfiguration c = plain(given, 2);
    const FrozenResult planned = train_after("synchronise", c);
    for (const char* const pass : {"shard", "tiers", "prefetch", "slots"}) {
      if (pass == std::string_view("shard") && has_quantized(c)) continue;
      SCOPED_TRACE(pass);
      const FrozenResult result = train_after(pass, c);
      EXPECT_EQ(result.parameters, planned.parameters);
      EXPECT_EQ(result.results, planned.results);
    }
  }
}

TEST(PlanPasses, KeepTheGradientSumsFromShardOn) {
  for (const FrozenConfiguration& given : sample()) {
    SCOPED_TRACE(name_of(given));
    const FrozenPlans plans(given);
    PlanOptions options = plan_options(given.run, plans.model, plans.layout, plans.source);
    if (given.placement) options.placement = *given.placement;
    const std::uint64_t planned = hash_of(gradient_sums(plans.schedules.front().second));
    for (const char* const pass : {"tiers", "prefetch", "slots"}) {
      EXPECT_EQ(hash_of(gradient_sums(plan(plans.layout, options, pass))), planned) << pass;
    }
  }
}

TEST(PlanPasses, GiveEachContentABufferOfItsOwnUntilSlots) {
  for (const FrozenConfiguration& given : sample()) {
    SCOPED_TRACE(name_of(given));
    const FrozenPlans plans(given);
    PlanOptions options = plan_options(given.run, plans.model, plans.layout, plans.source);
    if (given.placement) options.placement = *given.placement;
    const Schedule schedule = plan(plans.layout, options, "prefetch");
    std::vector<int> written(schedule.buffers.size());
    for (const Action& action : schedule.actions) {
      if (action.operation == &operations::kReshard) continue;
      for (const Operand& operand : action.writes) {
        const ScheduleBuffer& buffer = schedule.buffer(operand);
        // Layers add to a gradient one after the other, and an all-gather completes an update.
        const bool completes = operand.adds || buffer.keeps_places() ||
                               buffer.kind == BufferKind::kStateSlot ||
                               action.operation == &operations::kCast;
        if (!buffer.is_slot() || completes) continue;
        EXPECT_EQ(++written[static_cast<std::size_t>(operand.buffer)], 1) << buffer.name;
      }
    }
  }
}

TEST(PlanPasses, AreNamedAndExplained) {
  std::vector<std::string_view> names;
  for (const PlanPass& pass : plan_passes()) {
    names.push_back(pass.name);
    EXPECT_FALSE(pass.summary.empty()) << pass.name;
  }
  const std::vector<std::string_view> expected{"order",    "update",     "shard",     "tiers",
                                               "prefetch", "factored",   "histories", "codes",
                                               "slots",    "synchronise"};
  EXPECT_EQ(names, expected);
}

TEST(PlanPasses, AnUnknownOneIsRefusedWithTheNamesOfAll) {
  const std::vector<FrozenConfiguration> all = FrozenList::make();
  const FrozenPlans plans(all.front());
  const PlanOptions options =
      plan_options(plans.configuration.run, plans.model, plans.layout, plans.source);
  try {
    plan(plans.layout, options, "polish");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("there is no pass 'polish'; passes are order, "
                                   "update, shard, tiers, prefetch, factored, histories, codes, "
                                   "slots, synchronise"));
  }
}

}  // namespace
}  // namespace tessera::test::passes_test
