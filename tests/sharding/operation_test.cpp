#include "tessera/sharding/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "support/tied_chain.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/contents.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/step_context.h"

namespace tessera::test::operation_test {
namespace {

using ::testing::HasSubstr;

TEST(Operations, HaveANameASummaryAndARule) {
  std::set<std::string_view> names;
  for (const Operation* const operation : all_operations()) {
    EXPECT_FALSE(operation->name.empty());
    EXPECT_EQ(operation->name.find(' '), std::string_view::npos) << "a word of the schedule's text";
    EXPECT_FALSE(operation->summary.empty()) << operation->name;
    EXPECT_NE(operation->rule, nullptr) << operation->name;
    const bool moves = operation->meeting != Meeting::kNone || operation == &operations::kCopy;
    EXPECT_EQ(operation->charge != nullptr, moves)
        << operation->name << ": bytes are sent where ranks meet, and copied";
    EXPECT_TRUE(names.insert(operation->name).second) << operation->name;
    EXPECT_EQ(find_operation(operation->name), operation);
  }
  EXPECT_EQ(find_operation("duplicate"), nullptr);
  EXPECT_EQ(find_operation(""), nullptr);
}

TEST(Operations, AreThoseOfTheReadme) {
  std::ifstream file(TESSERA_SOURCE_DIR "/runtime/sharding/README.md");
  std::ostringstream text;
  text << file.rdbuf();
  std::string table = "| operation | does |\n|---|---|\n";
  for (const Operation* const operation : all_operations()) {
    table += concat("| `", operation->name, "` | ", operation->summary, " |\n");
  }
  EXPECT_THAT(text.str(), HasSubstr(table + "\n"));
}

constexpr int kLayers = 3;

/// One layer per unit, in fp32 but for the reductions.
Schedule planned(SmallRun run) {
  return plan(make_layout(make_tied(kLayers), {}, run.ranks), plan_options(run));
}

TEST(Operations, CountTheBytesOfTheirOperands) {
  const Schedule schedule = planned({.ranks = 2,
                                     .strategy = "full_shard",
                                     .micro_steps = 2,
                                     .accumulate_unsharded = true,
                                     .dtype = DType::kBFloat16});
  const ScheduleUnit& unit = schedule.units.front();
  ASSERT_EQ(unit.numel(false), 0);
  const std::int64_t numel = unit.numel(true);
  const auto bytes = [&](const Operation& operation) {
    for (const Action& action : schedule.actions) {
      if (action.operation != &operation) continue;
      const auto& operands = action.writes.empty() ? action.reads : action.writes;
      if (operands.front().unit <= 0) return operand_bytes(schedule, action);
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(bytes(operations::kAllGather), 2 * (numel / 2 + numel)) << "a shard in, all out";
  EXPECT_EQ(bytes(operations::kReduceScatter), 4 * (numel + numel / 2));
  EXPECT_EQ(bytes(operations::kCast), 4 * (numel + 2 * numel)) << "what is added to is read, too";
  EXPECT_EQ(bytes(operations::kReshard), 2 * numel);
  // The first layer's forward reads its parameters; activations do not count.
  EXPECT_EQ(bytes(operations::kForward), 2 * numel);
  // A shard each of gradient, master weights and two moments in; all but the gradient out, and the
  // parameters. And what the clip factor came with.
  EXPECT_EQ(bytes(operations::kOptimizerStep), numel / 2 * (4 * 4 + 3 * 4 + 2) + 2 * 8);
}

// ---- An operation of one's own ----------------------------------------------------------------
//
// What it takes to add an operation: a row, its rule, and what it does. No planner, validator or
// executor knows this one.

void copy_rule(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(action.reads.size() == 1 && action.writes.size() == 1,
                         "copies one buffer to another")) {
    return;
  }
  const Operand &from = action.reads.front(), &to = action.writes.front();
  walk.require_that(walk.schedule().buffer(from).format == walk.schedule().buffer(to).format,
                    "copies to another format");
  walk.carry(from, to);
  walk.write(to, walk.read(from));
}

void copy_charge(const Schedule& schedule, const Action& action, Traffic& traffic) {
  traffic.copied_bytes += operand_bytes(schedule, action) / 2;
}

void copy_run(StepContext& context, const Action& action, Stream& stream) {
  context.kernels().cast(
      {.src = context.view(action.reads.front()), .dst = context.view(action.writes.front())},
      stream);
}

const Operation kDuplicate{.name = "duplicate",
                           .summary = "the same in another buffer",
                           .rule = copy_rule,
                           .charge = copy_charge,
                           .run = copy_run};

std::vector<const Operation*> all_and_one_more() {
  std::vector<const Operation*> operations(all_operations().begin(), all_operations().end());
  operations.push_back(&kDuplicate);
  return operations;
}

/// Appends a buffer. Activations are numbered behind the buffers.
int add_buffer(Schedule& schedule, ScheduleBuffer buffer) {
  const int index = static_cast<int>(schedule.buffers.size());
  for (Action& action : schedule.actions) {
    for (auto* operands : {&action.reads, &action.writes}) {
      for (Operand& operand : *operands) operand.buffer += operand.buffer >= index ? 1 : 0;
    }
  }
  schedule.buffers.push_back(std::move(buffer));
  return index;
}

void insert(Schedule& schedule, int index, Action action) {
  for (Action& other : schedule.actions) {
    for (int& wait : other.waits) wait += wait >= index ? 1 : 0;
    for (int& wait : other.previous_waits) wait += wait >= index ? 1 : 0;
  }
  schedule.actions.insert(schedule.actions.begin() + index, std::move(action));
}

/// Of an action that nobody waits for.
void erase(Schedule& schedule, int index) {
  schedule.actions.erase(schedule.actions.begin() + index);
  for (Action& action : schedule.actions) {
    for (int& wait : action.waits) wait -= wait > index ? 1 : 0;
    for (int& wait : action.previous_waits) wait -= wait > index ? 1 : 0;
  }
}

/// The first unit's optimizer step reads a copy of the gradient, made just before on the same lane.
/// The copy's index.
int read_a_copy(Schedule& schedule) {
  const auto step =
      std::ranges::find(schedule.actions, &operations::kOptimizerStep, &Action::operation);
  const auto index = static_cast<int>(step - schedule.actions.begin());
  const auto gradient = std::ranges::find_if(step->reads, [&](const Operand& operand) {
    return schedule.role(operand.buffer) == Role::kGradient;
  });
  const Operand from = *gradient;
  const auto place = gradient - step->reads.begin();
  const int unit = from.unit;
  const int buffer = add_buffer(
      schedule, {.name = schedule.units[static_cast<std::size_t>(unit)].name + ".gradient-copy",
                 .kind = BufferKind::kCopy,
                 .role = Role::kGradient,
                 .unit = unit,
                 .sharded = from.sharded,
                 .numel = schedule.flat(unit, 0).numel / schedule.mesh.size(from.sharded)});
  Action copy{.operation = &kDuplicate,
              .reads = {from},
              .writes = {{.buffer = buffer, .unit = unit, .sharded = from.sharded}},
              .waits = schedule.actions[static_cast<std::size_t>(index)].waits};
  schedule.actions[static_cast<std::size_t>(index)].reads[static_cast<std::size_t>(place)].buffer =
      buffer;
  insert(schedule, index, std::move(copy));
  return index;
}

TEST(AnOperationOfOnesOwn, IsValidPrintedAndParsed) {
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    const Schedule before = planned({.ranks = 4, .strategy = strategy.name, .micro_steps = 2});
    Schedule schedule = before;
    const int index = read_a_copy(schedule);
    require_valid(schedule);
    const std::string text = to_string(schedule);
    EXPECT_THAT(text, HasSubstr("l0.gradient-copy"));
    EXPECT_THAT(describe(schedule, schedule.actions[static_cast<std::size_t>(index)]),
                HasSubstr("duplicate l0.gradient"));
    EXPECT_EQ(parse_schedule(text, all_and_one_more()), schedule);
    EXPECT_EQ(to_string(parse_schedule(text, all_and_one_more())), text);
    EXPECT_THROW(parse_schedule(text), Error);
    EXPECT_EQ(hash_of(gradient_sums(schedule)), hash_of(gradient_sums(before)));
    const ScheduleBuffer& copy = schedule.buffers.back();
    Traffic expected = account_traffic(before);
    expected.copied_bytes += copy.numel * 4;
    EXPECT_EQ(account_traffic(schedule), expected);
  }
}

TEST(AnOperationOfOnesOwn, RunsAndChangesNoBit) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(concat(strategy.name, " on ", ranks, " ranks"));
      ChainRun chain{
          .run = {.ranks = ranks, .strategy = strategy.name, .micro_steps = 2, .delay_seed = 5},
          .model = make_tied(kLayers)};
      const ChainResult expected = train(chain);
      EXPECT_NE(expected.losses.front(), expected.losses.back());
      read_a_copy(chain.schedule);
      const ChainResult actual = train(chain);
      EXPECT_EQ(actual.losses, expected.losses);
      EXPECT_EQ(actual.norms, expected.norms);
      EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
    }
  }
}

TEST(AnOperationOfOnesOwn, TakesTheMemoryThatIsPredicted) {
  ChainRun chain{.run = {.ranks = 2}, .model = make_tied(kLayers)};
  read_a_copy(chain.schedule);
  const MemoryPeak predicted =
      predict_memory(chain.schedule, chain.layout, chain.model, chain.source, chain.options);
  launch_ranks(make_thread_group(2), [&](int, ProcessGroup& group) {
    ChainRank member(chain, group);
    member.executor->run_step(0, kRate);
    EXPECT_EQ(member.memory.peak(), predicted);
  });
}

/// What validate() says of it first.
std::string refusal_of(const Schedule& schedule) {
  const std::vector<Violation> violations = validate(schedule);
  return violations.empty()
             ? "nothing"
             : concat(to_string(violations.front().rule), ": ", violations.front().message);
}

class ABrokenCopy : public testing::Test {
 protected:
  Schedule schedule_ = planned({.ranks = 2});
  const int index_ = read_a_copy(schedule_);
  Action& copy() { return schedule_.actions[static_cast<std::size_t>(index_)]; }
};

TEST_F(ABrokenCopy, OfAnotherUnitIsRefused) {
  copy().reads.front() = {schedule_.find(Role::kGradient, 1), 1, copy().reads.front().sharded};
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("contents: "));
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("the result is of l1, not of l0"));
}

TEST_F(ABrokenCopy, WithoutItsWaitIsRefused) {
  copy().waits.clear();
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("happens-before: "));
}

TEST_F(ABrokenCopy, BeforeTheSumIsCompleteIsRefused) {
  Action moved = copy();
  erase(schedule_, index_);
  moved.waits.clear();
  insert(schedule_, 1, moved);
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("holds nothing at this point"));
}

TEST_F(ABrokenCopy, ThatIsLeftOutIsRefused) {
  erase(schedule_, index_);
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("l0.gradient-copy, which holds nothing"));
}

TEST_F(ABrokenCopy, ThatNamesMoreThanItTouchesIsRefused) {
  copy().writes.push_back({.buffer = schedule_.find(Role::kGradient, 1), .unit = 1});
  EXPECT_THAT(refusal_of(schedule_), HasSubstr("copies one buffer to another"));
}

}  // namespace
}  // namespace tessera::test::operation_test
