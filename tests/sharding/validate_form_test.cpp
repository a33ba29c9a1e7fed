#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"

namespace tessera {
namespace {

using namespace test;        // NOLINT: plans and edits
using namespace operations;  // NOLINT: rows of the table

TEST(ValidateForm, RejectsWaitsThatDoNotPointBackToAnotherLane) {
  Schedule s = planned("full_shard", grid(1, 2));
  at(s, 1).waits = {2};
  expect_breaks(s, Rule::kForm, "action 1 (all-gather over shard embedding.parameter -> p");
  expect_breaks(s, Rule::kForm, "waits for action 2, which is not issued before");
  at(s, 1).waits = {1};
  expect_breaks(s, Rule::kForm, "waits for action 1, which is not issued before");
  at(s, 1).waits = {-1};
  expect_breaks(s, Rule::kForm, "waits for action -1");
  const int second = find(s, kForward, 1);
  at(s, 1).waits = {};
  at(s, second).waits = {find(s, kForward)};
  expect_breaks(s, Rule::kForm, "of its own lane");
}

TEST(ValidateForm, RejectsIndicesOutOfRange) {
  const Schedule good = planned("full_shard", grid(1, 2));
  const auto expect = [&](int index, const std::function<void(Action&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(at(s, index));
    expect_breaks(s, Rule::kForm, says);
  };
  const int unshard = find(good, unshards);
  const auto slot_to = [](int buffer) {
    return [buffer](Action& a) { a.writes[0].buffer = buffer; };
  };
  expect(
      unshard, [](Action& a) { a.operation = nullptr; }, "has no operation");
  expect(
      unshard, [](Action& a) { a.lane = static_cast<Lane>(kLanes); }, "has no lane");
  expect(
      unshard, [](Action& a) { a.writes[0].unit = 5; }, "unit 5 does not exist");
  expect(
      unshard, [](Action& a) { a.writes[0].unit = -1; }, "unit -1 does not exist");
  expect(unshard, slot_to(9999), "buffer 9999 does not exist");
  expect(unshard, slot_to(-1), "buffer -1 does not exist");
  expect(unshard, slot_to(good.find("x.embedding.m0")), "x.embedding.m0 is touched by layers only");
  expect(unshard, slot_to(good.find("loss")), "loss holds no unit");
  expect(
      unshard, [](Action& a) { a.layer = 0; }, "layer 0 means nothing here");
  expect(
      unshard, [](Action& a) { a.micro_step = 1; }, "micro-step 1 means nothing here");
  expect(
      unshard, [](Action& a) { a.reads[0].adds = true; }, "adds to what it only reads");
  expect(
      unshard, [](Action& a) { a.axes = {}; }, "over none has no peers");
  expect(
      unshard, [](Action& a) { a.axes = {Axis::kReplicate}; }, "over replicate has no peers");
  expect(
      unshard, [](Action& a) { a.reads[0].sharded = {Axis::kReplicate}; },
      "embedding.parameter/replicate is sharded over an axis of size 1");
  expect(
      unshard, [](Action& a) { a.reads.push_back(a.reads[0]); },
      "embedding.parameter is named twice");
  const int forward = find(good, kForward);
  expect(
      forward, [](Action& a) { a.layer = 5; }, "layer 5 does not exist");
  expect(
      forward, [](Action& a) { a.micro_step = 1; }, "micro-step 1 does not exist");
  expect(
      forward, [](Action& a) { a.writes[0].unit = 0; }, "x.embedding.m0 holds no unit");
  expect(
      forward, [](Action& a) { a.axes = {Axis::kShard}; }, "axes mean nothing here");
  const int reduce = find(good, kReduceScatter);
  expect(
      reduce, [](Action& a) { a.reads[0].buffer = 9999; }, "buffer 9999 does not exist");
  const int step = find(good, kOptimizerStep);
  expect(
      step, [](Action& a) { a.micro_step = 0; }, "micro-step 0 means nothing here");
}

TEST(ValidateForm, RejectsSlotsThatAreTooSmall) {
  for (const char letter : {'p', 'g'}) {
    Schedule s = planned("full_shard", grid(1, 2));
    for (ScheduleBuffer& buffer : s.buffers) {
      if (buffer.is_slot() && buffer.name[0] == letter) buffer.numel = 64;
    }
    expect_breaks(s, Rule::kForm, concat("=embedding): slot ", letter));
    expect_breaks(s, Rule::kForm, "holds 64 elements, but 256 are needed");
  }
}

TEST(ValidateForm, RejectsContradictoryHeaders) {
  const auto expect = [](const std::function<void(Schedule&)>& change, const std::string& says) {
    Schedule s = planned("full_shard", grid(1, 2));
    change(s);
    expect_breaks(s, Rule::kForm, says);
  };
  expect([](Schedule& s) { s.mesh.set_size(Axis::kShard, 0); }, "an axis without ranks");
  expect([](Schedule& s) { s.mesh.set_size(Axis::kShard, 1); },
         "names axis shard, which has size 1");
  expect([](Schedule& s) { s.placement.gradient = {}; }, "no more axes than gradients");
  expect([](Schedule& s) { s.micro_steps = 0; }, "0 micro-steps");
  expect([](Schedule& s) { s.units[1].flats[0].numel = 3; }, "cannot be cut into 2 equal parts");
  expect([](Schedule& s) { s.units[1].name = s.units[0].name; }, "two units are named embedding");
  expect([](Schedule& s) { s.layers[1].name = s.layers[0].name; }, "two layers are named");
  expect([](Schedule& s) { s.layers[1].forward_reads = {7}; }, "names unit 7 of 5");
  expect([](Schedule& s) { s.layers[1].forward_reads = {1, 1}; }, "lists a unit twice");
  expect([](Schedule& s) { s.first_backward_layer = 5; }, "is not one of the 5 layers");
  expect([](Schedule& s) { s.first_backward_layer = 2; }, "writes gradients but has no backward");
  expect([](Schedule& s) { s.units[1].flats[0].trainable = false; }, "nothing to train");
}

TEST(ValidateForm, RejectsPartsThatOtherLayersContributeTo) {
  const auto expect = [](const std::function<void(Schedule&)>& change, const std::string& says) {
    Schedule s = planned("full_shard", grid(1, 2));
    change(s);
    expect_breaks(s, Rule::kForm, says);
  };
  expect([](Schedule& s) { s.units[1].flats[0].parts[0].layers = {2}; },
         "part h.0.weight of unit h.0 names a layer that does not write it");
  expect([](Schedule& s) { s.units[1].flats[0].parts[0].layers = {9}; },
         "a layer that does not write it");
  expect([](Schedule& s) { s.units[1].flats[0].parts.clear(); },
         "a layer writes the gradient of unit h.0 but contributes to none of its parts");
}

TEST(ValidateForm, RejectsBuffersThatCannotBe) {
  const auto expect = [](const std::string& name,
                         const std::function<void(ScheduleBuffer&)>& change,
                         const std::string& says) {
    Schedule s = planned("full_shard", grid(1, 2));
    change(buffer(s, name));
    expect_breaks(s, Rule::kForm, says);
  };
  using B = ScheduleBuffer;
  expect(
      "p0", [](B& b) { b.numel = -1; }, "p0 has -1 elements");
  expect(
      "p0", [](B& b) { b.name = "g0"; }, "two buffers are named g0");
  expect(
      "p0", [](B& b) { b.persistent = true; }, "p0 belongs to no unit and cannot persist");
  expect(
      "p0", [](B& b) { b.sharded = {Axis::kShard}; },
      "p0 belongs to no unit and cannot be sharded");
  expect(
      "p0", [](B& b) { b.role = Role::kMaster; }, "p0 is a slot, which holds no master");
  expect(
      "p0", [](B& b) { b.kind = BufferKind::kState; }, "p0 is a state, which belongs to a unit");
  expect(
      "x.h.0.m0", [](B& b) { b.micro_step = 7; }, "x.h.0.m0 is for micro-step 7 of ");
  expect(
      "x.h.0.m0", [](B& b) { b.layer = 2; },
      "x.h.1.m0 is the second activation of its layer and micro-step");
  expect(
      "d.h.0.m0", [](B& b) { b.numel = 64; },
      "d.h.0.m0 must be on the device, where its memory comes and goes");
  expect(
      "p0", [](B& b) { b.layer = 0; }, "p0 is a slot, which belongs to no layer");
  expect(
      "p0", [](B& b) { b.kind = BufferKind::kInput; }, "p0 is for layer -1 of 5");
  expect(
      "loss", [](B& b) { b.unit = 0; }, "loss is a loss, which belongs to no unit");
  expect(
      "h.0.first-moment", [](B& b) { b.tensor.clear(); },
      "h.0.first-moment must say which of the optimizer's tensors it is for");
  expect(
      "h.0.parameter", [](B& b) { b.tensor = "x"; },
      "h.0.parameter is for no tensor of the optimizer");
  expect(
      "h.0.parameter", [](B& b) { b.unit = 9; }, "h.0.parameter belongs to unit 9 of 5");
  expect(
      "h.0.parameter", [](B& b) { b.numel /= 2; },
      "h.0.parameter holds 96 elements, but 192 are needed");
  expect(
      "h.0.parameter", [](B& b) { b.format = DType::kBFloat16; },
      "h.0.parameter is kept in bf16, not in fp32");
  expect(
      "h.0.first-moment",
      [](B& b) {
        b.sharded = {};
        b.numel *= 2;
      },
      "h.0.first-moment is sharded over none, but its placement is shard");
  expect(
      "h.0.gradient", [](B& b) { b.persistent = true; },
      "h.0.gradient holds a gradient, which cannot persist");
}

}  // namespace
}  // namespace tessera
