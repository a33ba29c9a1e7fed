#include "world/world_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/error.h"
#include "world/world_group_state.h"

// What a process tells the others, and which groups it can have, without any others.
namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Process 0 of so many, each a machine of its own that says what this one says.
class LonelyMessenger : public Messenger {
 public:
  /// `told`: where the reasons of aborts are put.
  LonelyMessenger(int processes, std::vector<std::string>& told)
      : processes_(processes), told_(told) {}

  int process() const override { return 0; }
  int processes() const override { return processes_; }
  std::vector<std::string> exchange(const std::string& mine) override {
    std::vector<std::string> texts(static_cast<std::size_t>(processes_), mine);
    for (std::size_t p = 1; p < texts.size(); ++p) {
      const std::size_t own = mine.find("#0 ");  // in an introduction
      if (own != std::string::npos) texts[p].replace(own, 3, concat("#", p, " "));
    }
    return texts;
  }
  SharedWindow share_window(const std::vector<int>&) override { return {}; }
  std::shared_ptr<Transfer> send(int, std::uint32_t, const void*, std::size_t) override {
    return nullptr;
  }
  std::shared_ptr<Transfer> receive(int, std::uint32_t, void*, std::size_t) override {
    return nullptr;
  }
  void abort(std::string_view reason) noexcept override { told_.emplace_back(reason); }
  std::string failure() override { return ""; }
  int lost() noexcept override { return -1; }
  void leave() noexcept override {}

 private:
  const int processes_;
  std::vector<std::string>& told_;
};

TEST(WorldCoreTest, ARankTellsItsOwnReasonWhileAnotherWritesTheMachines) {
  std::vector<std::string> told;
  WorldCore core(std::make_unique<LonelyMessenger>(1, told), {});
  core.arena().mapping().header().abort_state = 1;  // as between the two stores of that rank
  core.abort("rank 1 failed: the disk is full");
  EXPECT_THAT(told, ElementsAre("rank 1 failed: the disk is full"));
}

TEST(WorldCoreTest, NoReasonIsOneToo) {
  std::vector<std::string> told;
  WorldCore core(std::make_unique<LonelyMessenger>(1, told), {});
  core.abort("");
  EXPECT_THAT(told, ElementsAre(kNoReason));
  EXPECT_EQ(core.reason(), kNoReason);
}

constexpr std::uint32_t kLastGroup = (1U << 13U) - 1;

/// Makes the group of all ranks under a number, as a split does at its end.
void make_group(const std::shared_ptr<WorldCore>& core, std::uint32_t id) {
  std::vector<int> ranks;
  for (int rank = 0; rank < core->size(); ++rank) ranks.push_back(rank);
  SharedArena& arena = core->arena();
  void* const memory = arena.allocate_for_good(WorldGroupState::shared_bytes(ranks.size()));
  const SharedBuffer shared{.process = 0, .offset = arena.offset_of(memory)};
  WorldGroupState(core, id, ranks, 0, shared);
}

TEST(WorldGroupStateTest, GroupsThatSpanMachinesEndWhereTheirNumbersDo) {
  std::vector<std::string> told;
  const auto core = std::make_shared<WorldCore>(std::make_unique<LonelyMessenger>(2, told),
                                                WorldOptions{.apart = true});
  EXPECT_NO_THROW(make_group(core, kLastGroup));
  try {
    make_group(core, kLastGroup + 1);
    ADD_FAILURE() << "there is no tag for it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("a run can have 8192 groups that span machines"));
  }
}

TEST(WorldGroupStateTest, GroupsOfOneMachineNeedNoTags) {
  std::vector<std::string> told;
  const auto core = std::make_shared<WorldCore>(std::make_unique<LonelyMessenger>(1, told),
                                                WorldOptions{.local_ranks = 300});
  EXPECT_NO_THROW(make_group(core, kLastGroup + 1));
}

TEST(WorldGroupStateTest, ProcessesHaveNoMoreRanksThanTags) {
  std::vector<std::string> told;
  const auto core = std::make_shared<WorldCore>(std::make_unique<LonelyMessenger>(2, told),
                                                WorldOptions{.local_ranks = 257, .apart = true});
  EXPECT_THROW(make_group(core, 0), Error);
}

}  // namespace
}  // namespace tessera
