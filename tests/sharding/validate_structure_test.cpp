#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"

namespace tessera::validate_structure_test {
namespace {

using namespace test;  // NOLINT: plans and edits
using Kind = ActionKind;

TEST(ValidateStructure, RejectsWaitsThatDoNotPointBackToAnotherLane) {
  Schedule s = planned("full_shard", {1, 2});
  at(s, 1).waits = {2};
  expect_breaks(s, Rule::kStructure, "action 1 (unshard embedding over shard -> p");
  expect_breaks(s, Rule::kStructure, "waits for action 2, which is not issued before");
  at(s, 1).waits = {1};
  expect_breaks(s, Rule::kStructure, "waits for action 1, which is not issued before");
  at(s, 1).waits = {-1};
  expect_breaks(s, Rule::kStructure, "waits for action -1");
  const int second = find(s, Kind::kForward, 1);
  at(s, 1).waits = {};
  at(s, second).waits = {find(s, Kind::kForward)};
  expect_breaks(s, Rule::kStructure, "of its own lane");
}

TEST(ValidateStructure, RejectsIndicesOutOfRange) {
  const Schedule good = planned("full_shard", {1, 2});
  const int unshard = find(good, Kind::kUnshard);
  const auto expect = [&](int index, const std::function<void(Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(at(s, index));
    expect_breaks(s, Rule::kStructure, says);
  };
  expect(
      unshard, [](Action& a) { a.unit = 5; }, "unit 5 does not exist");
  expect(
      unshard, [](Action& a) { a.unit = -1; }, "unit -1 does not exist");
  expect(
      unshard, [](Action& a) { a.layer = 0; }, "layer 0 means nothing here");
  expect(
      unshard, [](Action& a) { a.slot = 99; }, "slot p99 does not exist");
  expect(
      unshard, [](Action& a) { a.slot = -1; }, "slot p-1 does not exist");
  expect(
      unshard, [](Action& a) { a.micro_step = 1; }, "micro-step 1 does not exist");
  expect(
      unshard, [](Action& a) { a.accumulate = true; }, "nothing to accumulate");
  expect(
      unshard, [](Action& a) { a.axes = {}; }, "over none has no peers");
  const int forward = find(good, Kind::kForward);
  expect(
      forward, [](Action& a) { a.layer = 5; }, "layer 5 does not exist");
  expect(
      forward, [](Action& a) { a.unit = 0; }, "unit 0 means nothing here");
  expect(
      forward, [](Action& a) { a.slot = 0; }, "slot 0 means nothing here");
  expect(
      forward, [](Action& a) { a.axes = {Axis::kShard}; }, "axes mean nothing here");
  const int reduce = find(good, Kind::kReduceScatter);
  expect(
      reduce, [](Action& a) { a.slot = 99; }, "slot g99 does not exist");
  const int update = find(good, Kind::kUpdate);
  expect(
      update, [](Action& a) { a.micro_step = 0; }, "micro-step 0 means nothing here");
}

TEST(ValidateStructure, RejectsSlotsThatAreTooSmall) {
  Schedule s = planned("full_shard", {1, 2});
  for (std::int64_t& numel : s.parameter_slots) numel = 64;
  expect_breaks(s, Rule::kStructure, "holds 64 elements, but 256 are needed");
  s = planned("full_shard", {1, 2});
  for (std::int64_t& numel : s.gradient_slots) numel = 64;
  expect_breaks(s, Rule::kStructure, "the gradient of embedding in m0: slot g");
}

TEST(ValidateStructure, RejectsParametersGatheredOverOtherAxes) {
  Schedule s = planned("hybrid_shard", {2, 2});
  at(s, find(s, Kind::kUnshard)).axes = {Axis::kReplicate};
  expect_breaks(s, Rule::kStructure, "parameters are to be gathered over shard, not replicate");
  s = planned("hybrid_full_optimizer", {2, 2});
  at(s, find(s, Kind::kGatherParameter)).axes = {Axis::kReplicate, Axis::kShard};
  expect_breaks(s, Rule::kStructure, "gathered over replicate, not replicate+shard");
}

TEST(ValidateStructure, RejectsComputationOutOfOrder) {
  const Schedule good = planned("no_shard", {1, 1}, 2);
  Schedule s = good;
  const int forward = find(good, Kind::kForward);
  std::swap(at(s, forward).layer, at(s, forward + 1).layer);
  expect_breaks(s, Rule::kStructure, "forward embedding, m0 must come here");
  const int last_backward = find(good, [&](const Action& a) {
    return a.kind == Kind::kBackward && a.layer == 0 && a.micro_step == 1;
  });
  expect_breaks(without(good, last_backward), Rule::kStructure,
                "backward embedding, m1 is missing");
  s = good;
  s.actions.push_back(at(s, last_backward));
  expect_breaks(s, Rule::kStructure, "the step's computation is over");
}

TEST(ValidateStructure, RejectsBadGradientTargets) {
  const auto expect = [](const Schedule& good, const std::function<void(Schedule&)>& change,
                         const std::string& says) {
    Schedule s = good;
    change(s);
    expect_breaks(s, Rule::kStructure, says);
  };
  const Schedule every = planned("zero2", {1, 2}, 2);
  expect(
      every, [](Schedule& s) { s.gradient_targets.pop_back(); }, "in m1 has no target");
  expect(
      every, [](Schedule& s) { s.gradient_targets.push_back(s.gradient_targets[0]); },
      "has two targets");
  expect(
      every, [](Schedule& s) { s.gradient_targets[0].slot = -1; },
      "must be written to a slot, not to the buffer");
  expect(
      every, [](Schedule& s) { s.gradient_targets[0].unit = 9; }, "whose gradient nobody writes");
  expect(
      planned("no_shard", {1, 2}, 2), [](Schedule& s) { s.gradient_targets[0].slot = 0; },
      "must be written to the buffer, not to a slot");
}

TEST(ValidateStructure, RejectsContradictoryHeaders) {
  const auto expect = [](const std::function<void(Schedule&)>& change, const std::string& says) {
    Schedule s = planned("full_shard", {1, 2});
    change(s);
    expect_breaks(s, Rule::kStructure, says);
  };
  expect([](Schedule& s) { s.mesh.shard = 0; }, "an axis without ranks");
  expect([](Schedule& s) { s.mesh.shard = 1; }, "names axis shard, which has size 1");
  expect([](Schedule& s) { s.placement.gradient = {}; }, "no more axes than gradients");
  expect([](Schedule& s) { s.micro_steps = 0; }, "0 micro-steps");
  expect([](Schedule& s) { s.units[1].trainable_numel = 3; }, "cannot be cut evenly for 2 ranks");
  expect([](Schedule& s) { s.units[1].name = s.units[0].name; }, "two units are named embedding");
  expect([](Schedule& s) { s.layers[1].name = s.layers[0].name; }, "two layers are named");
  expect([](Schedule& s) { s.layers[1].forward_reads = {7}; }, "names unit 7 of 5");
  expect([](Schedule& s) { s.layers[1].forward_reads = {1, 1}; }, "lists a unit twice");
  expect([](Schedule& s) { s.first_backward_layer = 5; }, "is not one of the 5 layers");
  expect([](Schedule& s) { s.first_backward_layer = 2; }, "writes gradients but has no backward");
  expect([](Schedule& s) { s.units[1].trainable_numel = 0; }, "nothing to train");
  expect([](Schedule& s) { s.parameter_slots[0] = -1; }, "a slot has -1 elements");
}

TEST(ValidateStructure, RejectsAMissingOrSecondCountOfItems) {
  for (const Mesh mesh : {Mesh{1, 2}, Mesh{1, 1}}) {
    Schedule s = planned("zero1", mesh);
    expect_breaks(without(s, find(s, Kind::kCountItems)), Rule::kStructure,
                  "there are 0 count-items; a step needs one");
    s.actions.push_back({.kind = Kind::kCountItems});
    expect_breaks(s, Rule::kStructure, "there are 2 count-items; a step needs one");
  }
}

}  // namespace
}  // namespace tessera::validate_structure_test
