#include "tessera/sharding/contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"

// What buffers hold, action by action: schedules that get it wrong, each refused by name.
namespace tessera {
namespace {

using namespace test;        // NOLINT: plans and edits
using namespace operations;  // NOLINT: rows of the table

constexpr AxisSet kReplicate{Axis::kReplicate};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

/// With an action twice, one right after the other.
Schedule repeated(Schedule s, int index) {
  const Action copy = at(s, index);
  s.actions.insert(s.actions.begin() + index + 1, copy);
  std::vector<int> new_index(s.actions.size());
  for (int i = 0; i < static_cast<int>(new_index.size()); ++i) {
    new_index[static_cast<std::size_t>(i)] = i <= index ? i : i + 1;
  }
  renumber(s, new_index);
  return s;
}

// --- Parameters ---

TEST(ContentsOfParameters, FindsUseWithoutAnAllGather) {
  const Schedule s = planned("full_shard", grid(1, 3));
  const int unshard = find(s, [&](const Action& a) { return unshards(s, a) && unit_of(a) == 1; });
  const std::string slot = s.name_of(slot_of(s, at(s, unshard)));
  expect_breaks(without(s, unshard), Rule::kContents,
                concat("(forward h.0 m0 ", slot, "=h.0 x.embedding.m0 -> x.h.0.m0): reads ", slot,
                       ", which holds nothing at this point"));
}

TEST(ContentsOfParameters, FindsAReshardBeforeTheLastUse) {
  const Schedule s = planned("shard_grad_op", grid(1, 3));
  const int reshard = find_of(s, kReshard, 1);
  const int backward = find_pass(s, kBackward, 1);
  ASSERT_LT(backward, reshard);
  const std::string slot = s.name_of(slot_of(s, at(s, reshard)));
  expect_breaks(moved(s, reshard, backward), Rule::kContents,
                concat("reads ", slot, ", which holds nothing at this point"));
}

TEST(ContentsOfParameters, FindsAMissingReshard) {
  const Schedule s = planned("shard_grad_op", grid(1, 3));
  const int reshard = find(s, kReshard);
  const std::string slot = s.name_of(slot_of(s, at(s, reshard)));
  const std::string unit = s.units[static_cast<std::size_t>(unit_of(at(s, reshard)))].name;
  expect_breaks(without(s, reshard), Rule::kEnd,
                concat(slot, " still holds ", unit, " at the end"));
}

TEST(ContentsOfParameters, FindsDoubleAllGathersAndReshards) {
  const Schedule s = planned("full_shard", grid(1, 3));
  const int reshard = find(s, kReshard);
  const std::string slot = s.name_of(slot_of(s, at(s, reshard)));
  expect_breaks(repeated(s, reshard), Rule::kContents,
                concat("(reshard -> ", slot, "=embedding): reads ", slot,
                       ", which holds nothing at this point"));
  const int unshard = find(s, unshards, 1);
  expect_breaks(
      repeated(s, unshard), Rule::kContents,
      concat("overwrites ", s.name_of(slot_of(s, at(s, unshard))), ", which still holds h.0"));
}

TEST(ContentsOfParameters, FindsAReshardOfAnotherUnitOrBuffer) {
  const Schedule good = planned("full_shard", grid(1, 3));
  const auto expect = [&](const std::function<void(Operand&)>& change, const std::string& says) {
    Schedule s = good;
    change(at(s, find(good, kReshard)).writes[0]);
    expect_breaks(s, Rule::kContents, says);
  };
  const std::string slot = good.name_of(slot_of(good, at(good, find(good, kReshard))));
  expect([](Operand& o) { o.unit = 2; }, slot + " holds embedding, not h.1");
  expect([&](Operand& o) { o.buffer = good.find("embedding.parameter"); },
         "embedding.parameter is no slot for unsharded parameters");
  expect([&](Operand& o) { o.buffer = good.find("g0"); }, "g0 is no slot for unsharded parameters");
}

TEST(ContentsOfParameters, FindsASlotTakenWhileHeld) {
  Schedule s = planned("full_shard", grid(1, 2));
  for (ScheduleBuffer& buffer : s.buffers) {
    if (buffer.is_slot()) buffer.numel = 1 << 20;
  }
  const Operand first = at(s, find(s, unshards)).writes[0];
  at(s, find(s, unshards, 1)).writes[0].buffer = first.buffer;
  expect_breaks(s, Rule::kContents,
                concat("overwrites ", s.name_of(first.buffer), ", which still holds embedding"));
}

TEST(ContentsOfParameters, FindsAllGathersOverOtherAxes) {
  Schedule s = planned("hybrid_shard", grid(2, 2));
  at(s, find(s, unshards)).axes = kReplicate;
  expect_breaks(s, Rule::kContents,
                "gathers over replicate, but reads embedding.parameter as sharded over shard");
  s = planned("hybrid_full_optimizer", grid(2, 2));
  at(s, find(s, gathers_updated)).axes = kBoth;
  expect_breaks(s, Rule::kContents, "the result is unsharded, not sharded over shard");
}

TEST(ContentsOfParameters, FindsAllGathersOfOtherThings) {
  const Schedule good = planned("full_shard", grid(1, 2));
  const int frozen =
      find(good, [&](const Action& a) { return unshards(good, a) && unit_of(a) == 2; });
  ASSERT_EQ(at(good, frozen).reads.size(), 2U);
  const auto expect = [&](const std::function<void(Schedule&, Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(s, at(s, frozen));
    expect_breaks(s, Rule::kContents, says);
  };
  const int of_h0 = good.find("h.0.parameter");
  expect([](Schedule&, Action& a) { a.reads.pop_back(); },
         "the result is of h.1 (parameter), not of h.1 (parameter frozen)");
  expect([](Schedule&, Action& a) { a.reads.erase(a.reads.begin()); },
         "the result is of h.1 (frozen), not of h.1 (parameter frozen)");
  expect(
      [&](Schedule&, Action& a) {
        a.reads[1] = {of_h0, 1, kShard};
      },
      "gathers parts of different things: h.1.parameter and h.0.parameter");
  expect([&](Schedule&, Action& a) { a.reads = {{of_h0, 1, kShard}}; }, "the result is of h.0");
  Schedule other_format = good;
  const Operand& whole = at(other_format, frozen).writes[0];
  other_format.buffers[static_cast<std::size_t>(whole.buffer)].format = DType::kBFloat16;
  expect_breaks(other_format, Rule::kForm, "p0=h.1 has nothing of unit h.1");
  for (Action& action : other_format.actions) {
    for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
      for (Operand& operand : *operands) {
        if (operand.buffer != whole.buffer) continue;
        operand.flats = operand.unit == 2 ? FlatSet{0, 1} : FlatSet{0};
      }
    }
  }
  expect_breaks(other_format, Rule::kContents, "which has another format");
  expect([](Schedule&, Action& a) { a.reads[0].sharded = {}; },
         "h.1.parameter is sharded over shard, not unsharded");
}

TEST(ContentsOfParameters, FindsPassesThatReadOtherParameters) {
  Schedule good = planned("full_shard", grid(1, 2));
  for (ScheduleBuffer& buffer : good.buffers) {
    if (buffer.is_slot()) buffer.numel = 1 << 20;
  }
  const auto expect = [&](int index, const std::function<void(Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(at(s, index));
    expect_breaks(s, Rule::kContents, says);
  };
  const int forward = find_pass(good, kForward, 1);
  expect(
      forward, [](Action& a) { a.reads.erase(a.reads.begin()); },
      "must read the parameters of h.0");
  expect(
      forward, [](Action& a) { a.reads[0].unit = 2; }, "must read the parameters of h.0");
  expect(
      forward,
      [&](Action& a) {
        a.reads[0] = {good.find("h.0.parameter"), 1, kShard};
      },
      "reads a part of h.0 only: h.0.parameter is sharded over shard");
  expect(
      forward,
      [&](Action& a) {
        a.reads.push_back({good.find("h.1.parameter"), 2, kShard});
      },
      "reads parameters of units that layer h.0 does not read");
  expect(
      forward,
      [&](Action& a) {
        a.reads.push_back({good.find("h.0.first-moment"), 1, kShard});
      },
      "must read 2 buffers and write 1, but names 3 and 1");
}

// --- Passes ---

TEST(ContentsOfActivations, FindsComputationOutOfOrder) {
  const Schedule good = planned("no_shard", grid(1, 1), 2);
  Schedule s = good;
  const int forward = find(good, kForward);
  std::swap(at(s, forward), at(s, forward + 1));
  expect_breaks(s, Rule::kContents, "reads x.embedding.m0, which holds nothing at this point");
  const int last_backward = find_pass(good, kBackward, 0, 1);
  expect_breaks(without(good, last_backward), Rule::kContents, "the gradient of embedding");
  expect_breaks(repeated(good, last_backward), Rule::kContents,
                "reads x.embedding.m1, which holds nothing at this point");
  expect_breaks(repeated(good, forward), Rule::kContents,
                "overwrites x.embedding.m0, which still holds what is needed");
  expect_breaks(repeated(good, find(good, kLoss)), Rule::kContents,
                "reads x.h.2.m0, which was consumed already");
}

// A layer that names another's index, but its own operands, or the other way round.
TEST(ContentsOfActivations, FindsPassesOfOtherLayersAndMicroSteps) {
  const Schedule good = planned("no_shard", grid(1, 1), 2);
  const auto expect = [&](int index, const std::function<void(Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(at(s, index));
    expect_breaks(s, Rule::kContents, says);
  };
  const int forward = find_pass(good, kForward, 1);
  const int backward = find_pass(good, kBackward, 1);
  expect(
      forward, [](Action& a) { a.layer = 2; }, "must read the parameters of h.1");
  expect(
      forward, [](Action& a) { a.layer = 4; }, "its pass is 'loss' or 'forward-loss'");
  expect(
      forward, [](Action& a) { a.micro_step = 1; }, "must read its input, x.embedding.m1");
  expect(
      forward, [](Action& a) { a.reads.pop_back(); }, "must read its input, x.embedding.m0");
  expect(
      forward, [](Action& a) { a.writes.clear(); }, "must write its output, x.h.0.m0");
  expect(
      forward, [&](Action& a) { a.writes.push_back({.buffer = good.find("x.h.1.m0")}); },
      "must read 2 buffers and write 1, but names 2 and 2");
  expect(
      backward, [](Action& a) { a.micro_step = 1; }, "must read x.h.0.m1");
  expect(
      backward, [](Action& a) { a.reads.pop_back(); }, "must read d.h.0.m0");
  expect(
      backward, [](Action& a) { a.writes.pop_back(); },
      "must write the gradient of its input, d.embedding.m0");
  expect(
      backward, [](Action& a) { a.layer = 4; }, "is part of its loss");
  expect(
      find(good, kLoss), [](Action& a) { a.layer = 1; }, "only the last layer makes losses");
  expect(
      find(good, kLoss), [](Action& a) { a.operation = &kForwardLoss; }, "but names");
}

TEST(ContentsOfActivations, FindsAnActivationThatNobodyReads) {
  const Strategy& strategy = find_strategy("no_shard");
  Schedule evaluation =
      plan(small_layout(1),
           {.purpose = Purpose::kEvaluate, .mesh = {}, .placement = strategy.placement});
  ASSERT_EQ(text_of(validate(evaluation)), "");
  evaluation.purpose = Purpose::kTrain;
  expect_breaks(evaluation, Rule::kEnd, "x.embedding.m0 is never used up");
  expect_breaks(evaluation, Rule::kEnd, "embedding.parameter is never updated");
}

// --- Gradients ---

TEST(ContentsOfGradients, FindsASlotWrittenBeforeItsReduction) {
  Schedule s = planned("zero2", grid(1, 2));
  const int slot = s.find("g0");
  for (ScheduleBuffer& buffer : s.buffers) {
    if (buffer.is_slot()) buffer.numel = 1 << 20;
  }
  for (Action& a : s.actions) {
    for (auto* operands : {&a.reads, &a.writes}) {
      for (Operand& o : *operands) {
        if (s.role(o.buffer) == Role::kGradient && s.buffer(o).is_slot()) o.buffer = slot;
      }
    }
  }
  // Of an action that names it twice, the form is wrong; give the tied embedding another.
  const int loss = find(s, kLoss);
  for (Operand& o : at(s, loss).writes) {
    if (o.unit == 0) o.buffer = s.find("g1");
  }
  for (Action& a : s.actions) {
    if (a.operation == &kBackward && a.layer == 0) a.writes[0].buffer = s.find("g1");
    if (a.operation == &kReduceScatter && unit_of(a) == 0) a.reads[0].buffer = s.find("g1");
  }
  ASSERT_FALSE(breaks(validate(s), Rule::kForm));
  // One slot for all others does, as long as each is reduced before the next backward.
  EXPECT_FALSE(breaks(validate(s), Rule::kContents)) << text_of(validate(s));
  const int reduce = find_of(s, kReduceScatter, 4);
  expect_breaks(moved(s, reduce, find_pass(s, kBackward, 3)), Rule::kContents,
                "overwrites g0, which still holds head");
}

TEST(ContentsOfGradients, FindsGradientsThatAreNotReduced) {
  for (const char* strategy : {"zero2", "full_shard"}) {
    const Schedule s = planned(strategy, grid(1, 2), 2);
    expect_breaks(without(s, find(s, kReduceScatter)), Rule::kContents, "which still holds head");
  }
  const Schedule ddp = planned("no_shard", grid(1, 2));
  expect_breaks(without(ddp, find(ddp, kAllReduce)), Rule::kContents,
                "the gradient of head is still to be summed over shard");
  const Schedule zero1 = planned("zero1", grid(1, 2));
  expect_breaks(without(zero1, find(zero1, kReduceScatter)), Rule::kContents,
                "the gradient of head is still to be summed over shard");
  const Schedule hybrid = planned("hybrid_shard", grid(2, 2));
  expect_breaks(without(hybrid, find(hybrid, gathers_gradient)), Rule::kContents,
                "head.gradient is sharded over replicate+shard, not sharded over shard");
  const Schedule levels =
      planned("hybrid_full_optimizer", grid(2, 2), 1, false, ReductionOrder::kHierarchical);
  expect_breaks(without(levels, find(levels, kReduceScatter, 1)), Rule::kContents,
                "the gradient of head is still to be summed over replicate");
  const Schedule local = planned("no_shard", grid(1, 1), 2);
  expect_breaks(without(local, find(local, accumulates)), Rule::kContents, "which still holds");
}

TEST(ContentsOfGradients, FindsGradientsThatAreReducedTwice) {
  for (const char* strategy : {"zero1", "zero2", "no_shard"}) {
    const Schedule s = planned(strategy, grid(1, 2));
    const int reduce = find(s, [](const Action& a) {
      return a.operation == &kReduceScatter || a.operation == &kAllReduce;
    });
    const int slot = slot_of(s, at(s, reduce));
    const std::string whole =
        std::string_view(strategy) == "zero1"
            ? "head.gradient is sharded over shard, not unsharded"
            : "the gradient of head in head.gradient is summed over all ranks already";
    expect_breaks(repeated(s, reduce), Rule::kContents,
                  slot < 0 ? whole : concat("reads ", s.name_of(slot), ", which holds nothing"));
  }
}

TEST(ContentsOfGradients, FindsAReductionOfAnIncompleteGradient) {
  const Schedule s = planned("full_shard", grid(1, 2));
  const int reduce = find_of(s, kReduceScatter, 0);
  const int backward = find_pass(s, kBackward, 0);
  const std::string slot = s.name_of(slot_of(s, at(s, reduce)));
  expect_breaks(moved(s, reduce, backward), Rule::kContents,
                concat("adds to ", slot, ", which holds nothing at this point"));
  const Schedule ddp = planned("no_shard", grid(1, 2), 2);
  const int all_reduce = find_of(ddp, kAllReduce, 0);
  expect_breaks(moved(ddp, all_reduce, all_reduce - 1), Rule::kContents,
                "adds to embedding.gradient, which holds embedding unsharded and summed over all "
                "ranks, not embedding unsharded and still to be summed over shard");
}

TEST(ContentsOfGradients, FindsWrongAxesAndAdditions) {
  const auto expect = [](Schedule s, const std::function<void(Action&)>& change,
                         const std::string& says) {
    change(at(s, find(s, kReduceScatter)));
    expect_breaks(s, Rule::kContents, says);
  };
  const auto shard_only = [](Action& a) { a.axes = kShard; };
  const auto both = [](Action& a) { a.axes = kBoth; };
  const auto hierarchical = ReductionOrder::kHierarchical;
  const std::string to_both = "the result is sharded over shard, not sharded over replicate+shard";
  const std::string to_shard = "the result is sharded over replicate+shard, not sharded over shard";
  expect(planned("hybrid_shard", grid(2, 2)), shard_only, to_both);
  expect(planned("hybrid_shard", grid(2, 2), 1, false, hierarchical), both, to_shard);
  expect(planned("zero1", grid(2, 2)), shard_only, to_both);
  expect(planned("zero1", grid(2, 2), 1, false, hierarchical), both, to_shard);
  // And with the operand to match: the sum is then not the one that the next action expects.
  const auto to = [](AxisSet axes) {
    return [=](Action& a) { a.axes = a.writes[0].sharded = axes; };
  };
  expect(planned("hybrid_shard", grid(2, 2)), to(kShard),
         "the gradient of head in head.gradient is still to be summed over replicate");
  expect(planned("hybrid_shard", grid(2, 2), 1, false, hierarchical), to(kBoth),
         "head.gradient is sharded over replicate+shard, not sharded over shard");
  expect(planned("zero1", grid(2, 2), 1, false, hierarchical), to(kReplicate),
         "the gradient of head is still to be summed over shard");
  expect(
      planned("zero2", grid(1, 2)), [](Action& a) { a.writes[0].adds = true; },
      "adds to head.gradient, which holds nothing at this point");
  Schedule s = planned("zero2", grid(1, 2), 2);
  const int second =
      find(s, [](const Action& a) { return a.operation == &kReduceScatter && a.writes[0].adds; });
  at(s, second).writes[0].adds = false;
  expect_breaks(s, Rule::kContents,
                "the gradient of head is incomplete: it holds contribution 1 of 2");
}

// Ranks hold parts of their own sums, not of one: put together they are no gradient.
TEST(ContentsOfGradients, FindsAnAllGatherBeforeTheSum) {
  for (const char* strategy : {"no_shard", "zero1"}) {
    Schedule s = planned(strategy, grid(1, 2));
    const int reduce = find(s, [](const Action& a) {
      return a.operation == &kReduceScatter || a.operation == &kAllReduce;
    });
    s = repeated(s, reduce);
    const int gradient = at(s, reduce).reads[0].buffer;
    at(s, reduce).operation = &kAllGather;
    at(s, reduce).reads[0] = {gradient, 4, kShard};
    at(s, reduce).writes[0] = {gradient, 4, {}};
    expect_breaks(s, Rule::kContents,
                  "the gradient of head in head.gradient is still to be summed over shard: its "
                  "parts are not all of the same sum");
  }
}

TEST(ContentsOfGradients, FindsReductionsInTheWrongMicroStep) {
  const Schedule whole = planned("zero1", grid(1, 2), 2);
  const int reduce = find(whole, kReduceScatter);
  // Reduced after the first micro-step: the second adds what is still to be summed.
  const int first_loss = find(whole, kLoss);
  expect_breaks(moved(whole, reduce, first_loss + 1), Rule::kContents,
                "which holds head sharded over shard and summed over all ranks");
  Schedule adding = whole;
  at(adding, reduce).writes[0].adds = true;
  expect_breaks(adding, Rule::kContents, "adds to head.gradient, which holds head unsharded");
  // Added up where every micro-step is to be reduced.
  Schedule every = planned("zero2", grid(1, 2), 2);
  Action& accumulate = at(every, find(every, kReduceScatter));
  accumulate.operation = &kCast;
  accumulate.axes = {};
  expect_breaks(every, Rule::kContents, "the result is unsharded, not sharded over shard");
  accumulate.writes[0].sharded = {};
  expect_breaks(every, Rule::kContents,
                "head.gradient has room for what is sharded over shard only");
}

// What is added up in fp32 and sent in bf16: added, rounded into the slot, and sent from there.
TEST(ContentsOfGradients, FindsSumsThatAreNotSentAsRounded) {
  for (const char* strategy : {"no_shard", "zero1"}) {
    const Schedule s =
        planned(strategy, grid(1, 2), 2, false, ReductionOrder::kRank, DType::kBFloat16);
    const int round = find(s, rounds);
    const int unit = unit_of(at(s, round));
    ASSERT_EQ(unit, 4);
    const auto addition = [&](int occurrence) {
      return find(s, [&](const Action& a) {
        return accumulates(s, a) && unit_of(a) == unit && occurrence-- == 0;
      });
    };
    const int first = addition(0), last = addition(1);
    const std::string slot = s.name_of(slot_of(s, at(s, round)));
    expect_breaks(without(s, round), Rule::kContents, "reads " + slot + ", which holds nothing");
    expect_breaks(without(s, last), Rule::kContents,
                  concat("overwrites ", slot, ", which still holds head"));
    expect_breaks(without(s, first), Rule::kContents, "which still holds head");
    expect_breaks(moved(s, round, last), Rule::kContents,
                  concat("overwrites ", slot, ", which still holds head"));
    expect_breaks(without(s, find(s, kReduceScatter)), Rule::kContents,
                  "the gradient of head is still to be summed over shard");
    Schedule twice = s;
    at(twice, round) = at(twice, last);
    expect_breaks(twice, Rule::kContents, "reads " + slot + ", which holds nothing at this point");
    Schedule adding = s;
    at(adding, find(s, kReduceScatter)).writes[0].adds = true;
    expect_breaks(adding, Rule::kContents, "adds to head.gradient, which holds head unsharded");
  }
  const Schedule ddp =
      planned("no_shard", grid(1, 2), 1, false, ReductionOrder::kRank, DType::kBFloat16);
  expect_breaks(without(ddp, find(ddp, gathers_gradient)), Rule::kContents,
                "head.gradient is sharded over shard, not unsharded");
}

TEST(ContentsOfGradients, FindsGradientsWrittenElsewhere) {
  const auto expect = [](const Schedule& good,
                         const std::function<void(Schedule&, Action&)>& change,
                         const std::string& says) {
    Schedule s = good;
    change(s, at(s, find(s, kLoss)));
    expect_breaks(s, Rule::kContents, says);
  };
  const Schedule bf16 =
      planned("no_shard", grid(1, 2), 1, false, ReductionOrder::kRank, DType::kBFloat16);
  const std::string slot = bf16.name_of(at(bf16, find(bf16, kLoss)).writes[0].buffer);
  // To the buffer instead of the slot: the reduction finds nothing where it reads.
  expect(
      bf16, [](Schedule& s, Action& a) { a.writes[0].buffer = gradient_buffer(s, 4); },
      "reads " + slot + ", which holds nothing at this point");
  const Schedule every = planned("zero2", grid(1, 2), 2);
  expect(
      every, [](Schedule& s, Action& a) { a.writes[0].buffer = gradient_buffer(s, 4); },
      "head.gradient has room for what is sharded over shard only");
  expect(
      every, [](Schedule&, Action& a) { a.writes.erase(a.writes.begin()); },
      "must write the gradient of head");
  expect(
      every,
      [](Schedule& s, Action& a) {
        a.writes.push_back({gradient_buffer(s, 4), 4, {}});
      },
      "must read 5 buffers and write 4, but names 5 and 5");
  expect(
      every, [](Schedule&, Action& a) { a.writes[0].unit = 1; }, "must write the gradient of head");
  expect(
      every, [](Schedule&, Action& a) { a.writes[0].adds = true; },
      "which holds nothing at this point");
  expect(
      every, [](Schedule&, Action& a) { a.writes[0].sharded = kShard; },
      "the result is unsharded, not sharded over shard");
  const Schedule whole = planned("no_shard", grid(1, 2), 2);
  expect(
      whole, [](Schedule& s, Action& a) { a.writes[0].buffer = s.find("g0"); },
      "which holds nothing at this point");
}

TEST(ContentsOfGradients, FindsMicroStepsAddedOutOfOrder) {
  Schedule s = planned("no_shard", grid(1, 1), 3);
  const auto addition = [&](int occurrence) {
    return find(s, [&](const Action& a) {
      return accumulates(s, a) && unit_of(a) == 1 && occurrence-- == 0;
    });
  };
  // A slot of its own for the third micro-step, so that the second can be late.
  ScheduleBuffer own = buffer(s, "g0");
  own.name = "own";
  own.numel = s.units[1].numel(true);
  const int own_slot = static_cast<int>(s.buffers.size());
  s.buffers.push_back(own);
  const int second = addition(0), third = addition(1);
  at(s, third).reads[0].buffer = own_slot;
  for (Operand& o : at(s, find_pass(s, kBackward, 1, 2)).writes) {
    if (o.unit == 1) o.buffer = own_slot;
  }
  ASSERT_EQ(text_of(validate(s)), "");
  expect_breaks(moved(s, second, third), Rule::kContents,
                "adds contribution 2 to h.0.gradient, which holds contribution 0: each is added "
                "once, in order");
}

// --- The end of the step ---

TEST(ContentsOfTheStep, FindsMissingAndDoubleActions) {
  const Schedule s = planned("zero1", grid(1, 2));
  const auto drop = [&](const Operation& operation) { return without(s, find(s, operation)); };
  const auto repeat = [&](const Operation& operation) { return repeated(s, find(s, operation)); };
  expect_breaks(drop(kOptimizerStep), Rule::kEnd, "embedding.parameter is never updated");
  expect_breaks(repeat(kOptimizerStep), Rule::kContents, "embedding.parameter was updated already");
  expect_breaks(drop(kNormPartial), Rule::kContents, "the norm of head has not been taken");
  expect_breaks(repeat(kNormPartial), Rule::kContents, "the norm of head has been taken already");
  expect_breaks(drop(kResults), Rule::kContents, "reads results, which holds nothing");
  expect_breaks(repeat(kResults), Rule::kContents, "reads loss, which holds nothing");
  const int gather = find(s, gathers_updated);
  expect_breaks(without(s, gather), Rule::kEnd, "embedding.parameter ends sharded over shard");
  expect_breaks(without(s, gather), Rule::kEnd, "the updated parts are never gathered");
  for (const Mesh mesh : {grid(1, 2), grid(1, 1)}) {
    const Schedule any = planned("zero1", mesh);
    const int count = find(any, kCountTokens);
    expect_breaks(without(any, count), Rule::kContents, "reads tokens, which holds nothing");
    expect_breaks(repeated(any, count), Rule::kContents,
                  "overwrites tokens, which still holds what is needed");
  }
}

// A gather of what is unsharded already gives each rank what it has: wasteful, and right.
TEST(ContentsOfTheStep, AllowsASecondGatherOfTheSame) {
  const Schedule s = planned("zero1", grid(1, 2));
  const int gather = find(s, gathers_updated);
  Schedule twice = repeated(s, gather);
  const auto last = static_cast<int>(twice.actions.size()) - 1;
  ASSERT_TRUE(gathers_updated(twice, at(twice, last)));
  for (Action& action : twice.actions) {
    if (std::erase(action.previous_waits, gather) > 0) action.previous_waits.push_back(last);
  }
  EXPECT_EQ(text_of(validate(twice)), "");
}

TEST(ContentsOfTheStep, FindsActionsOutOfOrder) {
  const Schedule s = planned("zero1", grid(1, 2));
  const int results = find(s, kResults);
  const int step = find(s, kOptimizerStep);
  expect_breaks(moved(s, step, results), Rule::kContents, "reads results, which holds nothing");
  expect_breaks(moved(s, find(s, gathers_updated), step), Rule::kEnd,
                "embedding.parameter ends sharded over shard, not unsharded: the updated parts are "
                "never gathered");
  expect_breaks(moved(s, find(s, kNormPartial), results), Rule::kContents,
                "the norm of head has not been taken");
  const int reduce = find(s, kReduceScatter);
  ASSERT_EQ(at(s, reduce + 1).operation, &kNormPartial);
  expect_breaks(moved(s, reduce + 1, reduce), Rule::kContents,
                "the gradient of head is still to be summed over shard");
  expect_breaks(moved(s, results, find(s, kLoss)), Rule::kContents,
                "'loss' holds the losses of 0 of 1 micro-steps");
}

// A micro-step that begins after the update.
TEST(ContentsOfTheStep, FindsParametersThatAreReadAfterTheirUpdate) {
  Schedule s = planned("no_shard", grid(1, 1));
  const Action forward = at(s, find(s, kForward));
  s.actions.push_back(forward);
  expect_breaks(s, Rule::kContents, "reads embedding, which this step has updated already");
}

TEST(ContentsOfTheStep, FindsScalarsThatAreOverwrittenOrLeftOut) {
  const Schedule good = planned("zero1", grid(1, 2), 2);
  const auto expect = [&](const Operation& operation, const std::function<void(Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(at(s, find(s, operation)));
    expect_breaks(s, Rule::kContents, says);
  };
  const auto last_written_overwrites = [](Action& a) { a.writes.back().adds = false; };
  expect(kLoss, last_written_overwrites, "overwrites 'loss'; losses are added");
  expect(kNormPartial, last_written_overwrites, "overwrites 'norm'; squared norms are added");
  expect(
      kCountTokens, [](Action& a) { a.writes.pop_back(); },
      "adds to norm, which holds nothing at this point");
  expect(
      kCountTokens, [&](Action& a) { a.writes.push_back({.buffer = good.find("results")}); },
      "must read 0 buffers and write 3, but names 0 and 4");
  expect(
      kResults, [](Action& a) { a.reads.pop_back(); },
      "'results' has no clip factor: the results were made without 'norm'");
  expect(
      kResults, [](Action& a) { a.reads.erase(a.reads.begin()); }, "must name the buffer 'tokens'");
  expect(
      kOptimizerStep,
      [&](Action& a) {
        std::erase_if(a.reads, [&](const Operand& o) { return o.buffer == good.find("results"); });
      },
      "must name the buffer 'results'");
  expect_breaks(without(good, find(good, kLoss)), Rule::kContents,
                "adds losses of micro-step 1 to loss, which holds no losses: each is added once");
}

TEST(ContentsOfTheStep, FindsAnOptimizerThatTouchesOtherState) {
  const Schedule good = planned("zero1", grid(1, 2));
  const int unit = 1;
  const auto expect = [&](const std::function<void(Action&)>& change, const std::string& says) {
    Schedule s = good;
    change(at(s, find_of(s, kOptimizerStep, unit)));
    expect_breaks(s, Rule::kContents, says);
  };
  const int second_moment = good.find("h.0.second-moment");
  const auto erase = [&](std::vector<Operand>& operands, int buffer) {
    std::erase_if(operands, [&](const Operand& o) { return o.buffer == buffer; });
  };
  expect([&](Action& a) { erase(a.reads, second_moment); }, "must read h.0.second-moment");
  expect([&](Action& a) { erase(a.writes, second_moment); }, "must write h.0.second-moment");
  expect([&](Action& a) { erase(a.reads, gradient_buffer(good, unit)); }, "must read a gradient");
  expect([](Action& a) { std::swap(a.writes[1], a.writes[2]); },
         "must write the state of h.0 in the order of the buffers");
  expect(
      [&](Action& a) {
        a.reads.push_back({good.find("h.1.first-moment"), 2, kShard});
      },
      "does nothing with h.1.first-moment, which it names");
  expect([](Action& a) { a.reads[0].sharded = {}; },
         "h.0.gradient is sharded over shard, not unsharded");
  expect([](Action& a) { a.writes[0].sharded = {}; },
         "the result is sharded over shard, not unsharded");
}

TEST(ContentsOfTheStep, FindsFrozenUnitsThatAreTrained) {
  ModelLayout layout = small_layout(1);
  layout.units[3].flats[0].name = "frozen";
  layout.units[3].flats[0].trainable = false;
  const Schedule s = plan(layout, {.mesh = {}, .placement = find_strategy("no_shard").placement});
  ASSERT_EQ(text_of(validate(s)), "");
  ASSERT_EQ(gradient_buffer(s, 3), -1);
  const int frozen = s.find(Role::kParameter, 3);
  for (const Operation* operation : {&kNormPartial, &kOptimizerStep}) {
    Schedule trained = repeated(s, find(s, *operation));
    Action& action = at(trained, find(s, *operation));
    for (Operand& o : action.reads) {
      if (trained.role(o.buffer) == Role::kGradient) o = {.buffer = frozen, .unit = 3};
    }
    expect_breaks(
        trained, Rule::kContents,
        operation == &kNormPartial ? "h.2.frozen holds no gradient" : "must read a gradient");
  }
}

}  // namespace
}  // namespace tessera
