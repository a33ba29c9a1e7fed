#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "sharding/schedule_edits.h"
#include "support/chain_run.h"
#include "tessera/sharding/account.h"

// The batch of a micro-step is an operand of the passes through layers that read it, and of no
// others; layers declare it.
namespace tessera::test::batch_operand_test {
namespace {

using namespace operations;  // NOLINT: rows of the table
using ::testing::HasSubstr;

Schedule planned_apart() {
  PlanOptions options{.mesh = {}, .placement = find_strategy("no_shard").placement};
  options.micro_steps = 2;
  options.policy.split_backward = true;
  Schedule schedule = plan(small_layout(1), options);
  EXPECT_EQ(text_of(validate(schedule)), "");
  return schedule;
}

TEST(BatchOperand, IsReadByTheFirstLayerAndTheLast) {
  for (const Schedule& s : {planned("full_shard", grid(1, 2), 2), planned_apart()}) {
    for (const Action& action : s.actions) {
      const Operand* const batch = s.find(action.reads, BufferKind::kBatch);
      const bool at_an_end = action.operation->is_pass &&
                             (action.layer == 0 || action.layer == std::ssize(s.layers) - 1);
      EXPECT_EQ(batch != nullptr, at_an_end) << describe(s, action);
      EXPECT_EQ(s.find(action.writes, BufferKind::kBatch), nullptr);
      if (batch == nullptr) continue;
      EXPECT_EQ(s.buffer(*batch).micro_step, action.micro_step);
      EXPECT_EQ(s.name_of(batch->buffer), concat("batch.m", action.micro_step));
    }
  }
}

TEST(BatchOperand, HasNoMemoryOfThePlansOwn) {
  const Schedule s = planned("full_shard", grid(1, 2), 2);
  const ScheduleBuffer& batch = s.buffers[static_cast<std::size_t>(s.find("batch.m1"))];
  EXPECT_EQ(batch.numel, 0);
  EXPECT_EQ(category_of(batch), MemoryCategory::kData);
  EXPECT_EQ(account_memory(s)[MemoryCategory::kData], 0);
}

TEST(BatchOperand, IsWhatLayersDeclare) {
  const Model model = make_chain({.reads_batch = false});
  const ModelLayout silent = make_layout(model, {}, 1);
  std::vector<bool> declared;
  for (const LayerLayout& layer : silent.layers) declared.push_back(layer.reads_batch);
  EXPECT_EQ(declared, (std::vector<bool>{true, false, false, true}));
  for (const LayerLayout& layer : make_layout(make_chain(), {}, 1).layers) {
    EXPECT_TRUE(layer.reads_batch) << layer.name;
  }
}

// ChainLayer asks the batch for its number.
TEST(BatchOperand, ALayerThatReadsItWithoutSayingSoEndsTheRun) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    SmallRun run{.strategy = "no_shard"};
    run.policy.recompute = recompute;
    const ChainRun chain{.run = run, .model = make_chain({.reads_batch = false})};
    std::string text = "no error";
    const auto world = make_thread_group(1);
    launch_ranks(world, [&](int, ProcessGroup& group) {
      try {
        ChainRank rank(chain, group);
        rank.executor->run_step(0, kRate);
      } catch (const Error& error) {
        text = error.what();
      }
    });
    EXPECT_THAT(text, HasSubstr("layer 'l1' reads the batch and does not declare it: set "
                                "reads_batch_ in its constructor"));
  }
}

// ---- Rules --------------------------------------------------------------------------------------

/// Each pass of a step in which all can be broken: of the first layer, and of the last.
std::vector<int> readers(const Schedule& s) {
  std::vector<int> passes;
  for (int i = 0; i < static_cast<int>(s.actions.size()); ++i) {
    if (s.find(at(s, i).reads, BufferKind::kBatch) != nullptr) passes.push_back(i);
  }
  return passes;
}

Operand& batch_of(Schedule& s, int action) {
  return *std::ranges::find_if(at(s, action).reads, [&](const Operand& operand) {
    return s.is_of_kind(operand, BufferKind::kBatch);
  });
}

TEST(BatchOperandContents, FindsAPassWithoutItsBatch) {
  for (const Schedule& s : {planned("no_shard", {}, 2), planned_apart()}) {
    for (const int pass : readers(s)) {
      Schedule broken = s;
      std::erase_if(at(broken, pass).reads, [&](const Operand& operand) {
        return s.is_of_kind(operand, BufferKind::kBatch);
      });
      expect_breaks(
          broken, Rule::kContents,
          concat("must read the batch of its micro-step, batch.m", at(s, pass).micro_step));
    }
  }
}

TEST(BatchOperandContents, FindsThatOfAnotherMicroStep) {
  for (const Schedule& s : {planned("no_shard", {}, 2), planned_apart()}) {
    for (const int pass : readers(s)) {
      Schedule broken = s;
      const int other = 1 - at(s, pass).micro_step;
      batch_of(broken, pass).buffer = s.find(concat("batch.m", other));
      expect_breaks(broken, Rule::kContents, "must read the batch of its micro-step");
    }
  }
}

TEST(BatchOperandContents, FindsAPassThatNamesItForNothing) {
  const Schedule s = planned_apart();
  for (const Operation* const operation : {&kForward, &kBackwardInput, &kBackwardWeight}) {
    Schedule broken = s;
    at(broken, find_pass(s, *operation, 2)).reads.push_back({.buffer = s.find("batch.m0")});
    expect_breaks(broken, Rule::kContents, "but names");
  }
  Schedule written = s;
  at(written, find_pass(s, kForward, 0)).writes.push_back({.buffer = s.find("batch.m0")});
  expect_breaks(written, Rule::kContents, "but names");
}

TEST(BatchOperandForm, FindsWhatIsNoBatch) {
  const Schedule good = planned("no_shard", {}, 2);
  const auto expect = [&](const std::function<void(ScheduleBuffer&)>& change,
                          const std::string& says) {
    Schedule s = good;
    change(buffer(s, "batch.m0"));
    expect_breaks(s, Rule::kForm, says);
  };
  using B = ScheduleBuffer;
  expect([](B& b) { b.micro_step = 1; }, "batch.m1 is the second batch of its micro-step");
  expect([](B& b) { b.micro_step = 2; }, "batch.m0 is for micro-step 2 of 2");
  expect([](B& b) { b.micro_step = -1; }, "batch.m0 is for micro-step -1 of 2");
  expect([](B& b) { b.layer = 0; }, "batch.m0 is a batch, which belongs to no layer");
  expect([](B& b) { b.unit = 0; }, "batch.m0 is a batch, which belongs to no unit");
  expect([](B& b) { b.role = Role::kActivation; },
         "batch.m0 is a batch, which holds no activation");
  expect([](B& b) { b.tier = Tier::kHost; },
         "batch.m0 must be on the device, and as large as the data say");
  expect([](B& b) { b.numel = 8; }, "batch.m0 must be on the device, and as large as the data say");
  Schedule s = good;
  at(s, find(s, kResults)).reads.push_back({.buffer = s.find("batch.m0")});
  expect_breaks(s, Rule::kForm, "batch.m0 is touched by layers only");
}

}  // namespace
}  // namespace tessera::test::batch_operand_test
