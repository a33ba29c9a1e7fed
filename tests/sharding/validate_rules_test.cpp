#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"

namespace tessera::validate_rules_test {
namespace {

using namespace test;  // NOLINT: plans and edits
using Kind = ActionKind;

TEST(ValidateResidency, FindsUseWithoutUnshard) {
  const Schedule s = planned("full_shard", {1, 3});
  const int unshard =
      find(s, [](const Action& a) { return a.kind == Kind::kUnshard && a.unit == 1; });
  expect_breaks(without(s, unshard), Rule::kResidency,
                "(forward h.0, m0): reads unit h.0, which is not unsharded");
}

TEST(ValidateResidency, FindsAReshardBeforeTheLastUse) {
  const Schedule s = planned("shard_grad_op", {1, 3});
  const int reshard =
      find(s, [](const Action& a) { return a.kind == Kind::kReshard && a.unit == 1; });
  const int backward =
      find(s, [](const Action& a) { return a.kind == Kind::kBackward && a.layer == 1; });
  ASSERT_LT(backward, reshard);
  expect_breaks(moved(s, reshard, backward), Rule::kResidency,
                "(backward h.0, m0): reads unit h.0, which is not unsharded");
}

TEST(ValidateResidency, FindsAMissingReshard) {
  const Schedule s = planned("shard_grad_op", {1, 3});
  expect_breaks(without(s, find(s, Kind::kReshard)), Rule::kResidency, "when the step ends");
}

TEST(ValidateResidency, FindsDoubleUnshardsAndReshards) {
  Schedule s = planned("full_shard", {1, 3});
  const int reshard = find(s, Kind::kReshard);
  Schedule twice = s;
  twice.actions.push_back(at(s, reshard));
  expect_breaks(twice, Rule::kResidency, "the unit is not in slot p");
  const int unshard = find(s, Kind::kUnshard, 1);
  s.actions.insert(s.actions.begin() + unshard, at(s, unshard));
  std::vector<int> new_index(s.actions.size());
  for (int i = 0; i < static_cast<int>(new_index.size()); ++i) {
    new_index[static_cast<std::size_t>(i)] = i < unshard ? i : i + 1;
  }
  renumber(s, new_index);
  expect_breaks(s, Rule::kResidency, "the unit is already in slot p");
}

TEST(ValidateSlotReuse, FindsAParameterSlotTakenWhileHeld) {
  Schedule s = planned("full_shard", {1, 2});
  for (std::int64_t& numel : s.parameter_slots) numel = 1 << 20;
  at(s, find(s, Kind::kUnshard, 1)).slot = at(s, find(s, Kind::kUnshard)).slot;
  expect_breaks(s, Rule::kSlotReuse, "still holds unit embedding");
}

TEST(ValidateSlotReuse, FindsAGradientSlotWrittenBeforeItsReduction) {
  Schedule s = planned("zero2", {1, 2});
  for (std::int64_t& numel : s.gradient_slots) numel = 1 << 20;
  for (GradientTarget& target : s.gradient_targets) target.slot = 0;
  for (Action& a : s.actions) {
    if (a.kind == Kind::kReduceScatter) a.slot = 0;
  }
  // The tied embedding's gradient is under way from the loss to the end.
  expect_breaks(s, Rule::kSlotReuse, "to slot g0, which still holds that of embedding in m0");
}

TEST(ValidateReduction, FindsGradientsThatAreNotReduced) {
  for (const char* strategy : {"zero2", "full_shard"}) {
    const Schedule s = planned(strategy, {1, 2}, 2);
    expect_breaks(without(s, find(s, Kind::kReduceScatter)), Rule::kReduction,
                  "is complete for 1 of 2 micro-steps");
  }
  const Schedule ddp = planned("no_shard", {1, 2});
  expect_breaks(without(ddp, find(ddp, Kind::kAllReduce)), Rule::kReduction,
                "lacks its all-reduce over shard");
  const Schedule zero1 = planned("zero1", {1, 2});
  expect_breaks(without(zero1, find(zero1, Kind::kReduceScatter)), Rule::kReduction,
                "lacks its reduce-scatter over shard");
  const Schedule hybrid = planned("hybrid_shard", {2, 2});
  expect_breaks(without(hybrid, find(hybrid, Kind::kGatherGradient)), Rule::kReduction,
                "lacks its gather-gradient over replicate");
  const Schedule levels =
      planned("hybrid_full_optimizer", {2, 2}, 1, false, ReductionOrder::kHierarchical);
  expect_breaks(without(levels, find(levels, Kind::kReduceScatter, 1)), Rule::kReduction,
                "lacks its reduce-scatter over replicate");
  const Schedule local = planned("no_shard", {1, 1}, 2);
  expect_breaks(without(local, find(local, Kind::kAccumulate)), Rule::kReduction,
                "is complete for 1 of 2 micro-steps");
}

TEST(ValidateReduction, FindsGradientsThatAreReducedTwice) {
  for (const char* strategy : {"zero1", "zero2", "no_shard"}) {
    Schedule s = planned(strategy, {1, 2});
    const int reduce = find(s, [](const Action& a) {
      return a.kind == Kind::kReduceScatter || a.kind == Kind::kAllReduce;
    });
    const int squares = find(s, Kind::kSquares);
    ASSERT_EQ(squares, reduce + 1);
    // In place of the norm, which is beside the point here, so that no number changes.
    at(s, squares) = at(s, reduce);
    expect_breaks(s, Rule::kReduction,
                  s.reduces_every_micro_step() ? "reduced already, or not yet written"
                                               : "the gradient is reduced already");
  }
}

TEST(ValidateReduction, FindsAReductionOfAnIncompleteGradient) {
  const Schedule s = planned("full_shard", {1, 2});
  const int reduce =
      find(s, [](const Action& a) { return a.kind == Kind::kReduceScatter && a.unit == 0; });
  const int backward =
      find(s, [](const Action& a) { return a.kind == Kind::kBackward && a.layer == 0; });
  expect_breaks(moved(s, reduce, backward), Rule::kReduction,
                "the gradient is incomplete: backward of embedding has not added its part");
  const Schedule ddp = planned("no_shard", {1, 2}, 2);
  const int all_reduce =
      find(ddp, [](const Action& a) { return a.kind == Kind::kAllReduce && a.unit == 0; });
  expect_breaks(moved(ddp, all_reduce, all_reduce - 1), Rule::kReduction,
                "the buffer has the gradients of 1 of 2 micro-steps");
}

TEST(ValidateReduction, FindsWrongAxesAndFlags) {
  const auto expect = [](Schedule s, const std::function<void(Action&)>& change,
                         const std::string& says) {
    change(at(s, find(s, Kind::kReduceScatter)));
    expect_breaks(s, Rule::kReduction, says);
  };
  const auto shard_only = [](Action& a) { a.axes = {Axis::kShard}; };
  const auto both = [](Action& a) { a.axes = {Axis::kReplicate, Axis::kShard}; };
  const auto hierarchical = ReductionOrder::kHierarchical;
  expect(planned("hybrid_shard", {2, 2}), shard_only, "must reduce over replicate+shard");
  expect(planned("hybrid_shard", {2, 2}, 1, false, hierarchical), both, "must reduce over shard");
  expect(planned("zero1", {2, 2}), shard_only, "must be reduce-scatter over replicate+shard");
  expect(planned("zero1", {2, 2}, 1, false, hierarchical), both,
         "must be reduce-scatter over shard");
  expect(
      planned("zero2", {1, 2}), [](Action& a) { a.accumulate = true; },
      "adds to a buffer that holds nothing yet");
  Schedule s = planned("zero2", {1, 2}, 2);
  at(s, find(s, [](const Action& a) { return a.accumulate; })).accumulate = false;
  expect_breaks(s, Rule::kReduction, "overwrites the sum of earlier micro-steps");
}

TEST(ValidateReduction, FindsBufferReductionsWithWrongFields) {
  Schedule s = planned("zero1", {1, 2}, 2);
  Action& reduce = at(s, find(s, Kind::kReduceScatter));
  reduce.micro_step = 0;
  expect_breaks(s, Rule::kReduction, "belongs to the last micro-step");
  reduce.micro_step = 1;
  reduce.accumulate = true;
  expect_breaks(s, Rule::kReduction, "must not accumulate");
}

TEST(ValidateReduction, FindsReductionsInTheWrongMicroStep) {
  Schedule whole = planned("zero1", {1, 2}, 2);
  Action& accumulate = at(whole, find(whole, Kind::kAccumulate));
  accumulate.kind = Kind::kReduceScatter;
  accumulate.axes = {Axis::kShard};
  accumulate.accumulate = true;
  for (Action& action : whole.actions) action.waits.clear();  // one of them is of its own lane now
  expect_breaks(whole, Rule::kReduction, "are to be reduced in the last micro-step only");
  Schedule every = planned("zero2", {1, 2}, 2);
  Action& reduce = at(every, find(every, Kind::kReduceScatter));
  reduce.kind = Kind::kAccumulate;
  reduce.axes = {};
  for (Action& action : every.actions) action.waits.clear();
  expect_breaks(every, Rule::kReduction, "are to be reduced in every micro-step");
}

// What is added up in fp32 and sent in bf16: added, rounded into the slot, and sent from there.
TEST(ValidateReduction, FindsSumsThatAreNotSentAsRounded) {
  for (const char* strategy : {"no_shard", "zero1"}) {
    const Schedule s = planned(strategy, {1, 2}, 2, false, ReductionOrder::kRank, DType::kBFloat16);
    const int round = find(s, Kind::kRound);
    const int unit = s.actions[static_cast<std::size_t>(round)].unit;
    const int last_addition = find(s, [&](const Action& a) {
      return a.kind == Kind::kAccumulate && a.unit == unit && a.micro_step == 1;
    });
    const int first_addition = find(s, [&](const Action& a) {
      return a.kind == Kind::kAccumulate && a.unit == unit && a.micro_step == 0;
    });
    expect_breaks(without(s, round), Rule::kReduction, "does not hold the sum of all micro-steps");
    expect_breaks(without(s, last_addition), Rule::kReduction,
                  "or lacks the gradient that lies there");
    expect_breaks(without(s, first_addition), Rule::kReduction,
                  "the buffer has the gradients of 0 micro-steps");
    expect_breaks(moved(s, round, last_addition), Rule::kReduction,
                  "or lacks the gradient that lies there");
    expect_breaks(without(s, find(s, Kind::kReduceScatter)), Rule::kReduction,
                  "is complete for 1 of 2 micro-steps");
    Schedule twice = s;
    at(twice, round) = at(twice, last_addition);
    expect_breaks(twice, Rule::kReduction, "the buffer has the gradient already");
    Schedule adding = s;
    at(adding, find(s, Kind::kReduceScatter)).accumulate = true;
    expect_breaks(adding, Rule::kReduction, "adds to the sum that it reduces");
  }
  const Schedule ddp =
      planned("no_shard", {1, 2}, 1, false, ReductionOrder::kRank, DType::kBFloat16);
  expect_breaks(without(ddp, find(ddp, Kind::kGatherGradient)), Rule::kReduction,
                "lacks its gather-gradient over shard");
}

TEST(ValidateReduction, FindsBf16GradientsThatAreWrittenToBuffers) {
  Schedule s = planned("no_shard", {1, 2}, 1, false, ReductionOrder::kRank, DType::kBFloat16);
  s.gradient_targets.front().slot = -1;
  expect_breaks(s, Rule::kStructure, "must be written to a slot, not to the buffer");
}

TEST(ValidateReduction, FindsMicroStepsAddedOutOfOrder) {
  Schedule s = planned("no_shard", {1, 1}, 3);
  const auto accumulate_of = [&](int micro_step) {
    return find(s, [=](const Action& a) {
      return a.kind == Kind::kAccumulate && a.unit == 1 && a.micro_step == micro_step;
    });
  };
  // A slot of its own for the third micro-step, so that the second can be late.
  const int own_slot = static_cast<int>(s.gradient_slots.size());
  s.gradient_slots.push_back(s.units[1].trainable_numel);
  for (GradientTarget& target : s.gradient_targets) {
    if (target.unit == 1 && target.micro_step == 2) target.slot = own_slot;
  }
  at(s, accumulate_of(2)).slot = own_slot;
  ASSERT_FALSE(breaks(validate(s), Rule::kReduction));
  expect_breaks(moved(s, accumulate_of(1), accumulate_of(2)), Rule::kReduction,
                "the buffer has the gradients of 1 micro-steps; they must be added in order");
}

TEST(ValidateUpdate, FindsMissingAndDoubleActions) {
  const Schedule s = planned("zero1", {1, 2});
  const auto drop = [&](Kind kind) { return without(s, find(s, kind)); };
  const auto repeat = [&](Kind kind) {
    Schedule twice = s;
    twice.actions.push_back(at(twice, find(twice, kind)));
    return twice;
  };
  expect_breaks(drop(Kind::kUpdate), Rule::kUpdate, "unit embedding is never updated");
  expect_breaks(repeat(Kind::kUpdate), Rule::kUpdate, "the unit was updated already");
  expect_breaks(drop(Kind::kSquares), Rule::kUpdate, "has not been taken");
  expect_breaks(repeat(Kind::kSquares), Rule::kUpdate, "norm was taken already");
  expect_breaks(drop(Kind::kExchange), Rule::kUpdate, "exchange is missing");
  expect_breaks(repeat(Kind::kExchange), Rule::kUpdate, "norms were exchanged already");
  expect_breaks(drop(Kind::kGatherParameter), Rule::kUpdate, "are never gathered");
  expect_breaks(repeat(Kind::kGatherParameter), Rule::kUpdate, "were gathered already");
}

TEST(ValidateUpdate, FindsActionsOutOfOrder) {
  const Schedule s = planned("zero1", {1, 2});
  const int exchange = find(s, Kind::kExchange);
  const int update = find(s, Kind::kUpdate);
  expect_breaks(moved(s, update, exchange), Rule::kUpdate, "before the exchange");
  expect_breaks(moved(s, update, find(s, Kind::kLoss)), Rule::kUpdate,
                "reads unit embedding, which this step has updated already");
  expect_breaks(moved(s, find(s, Kind::kGatherParameter), update), Rule::kUpdate,
                "comes before the unit's update");
  expect_breaks(moved(s, find(s, Kind::kSquares), exchange), Rule::kUpdate, "too late");
  const int reduce = find(s, Kind::kReduceScatter);
  ASSERT_EQ(at(const_cast<Schedule&>(s), reduce + 1).kind, Kind::kSquares);
  expect_breaks(moved(s, reduce + 1, reduce), Rule::kUpdate, "after its norm was taken");
  expect_breaks(moved(s, exchange, find(s, Kind::kLoss)), Rule::kUpdate, "needs every loss");
}

TEST(ValidateUpdate, FindsFrozenUnitsThatAreTrained) {
  Schedule s = planned("no_shard", {1, 1});
  s.units.push_back({"frozen", 0, 64});
  for (const Kind kind : {Kind::kSquares, Kind::kUpdate}) {
    Schedule trained = s;
    trained.actions.push_back({.kind = kind, .unit = 5});
    expect_breaks(trained, Rule::kUpdate, "frozen): the unit has no gradient");
  }
}

}  // namespace
}  // namespace tessera::validate_rules_test
