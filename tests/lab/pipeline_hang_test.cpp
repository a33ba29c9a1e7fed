#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/small_run.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/lab/dump_writer.h"
#include "tessera/lab/flight_dump.h"
#include "tessera/sharding/operation.h"

// Stages that stop, throw or are slow: who is told what. Ranks are threads, and each pipeline rank
// has a schedule of its own.
namespace tessera::test::pipeline_hang_test {
namespace {

using ::testing::HasSubstr;

constexpr int kStages = 4;
constexpr int kSteps = 3;

/// Something that one thread says and others wait for.
class Latch {
 public:
  explicit Latch(int count = 1) : left_(count) {}
  void count_down() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

/// How a rank's training ended.
struct Ending {
  int good_steps = 0;
  std::string what;  ///< empty: it did not fail
  std::optional<ErrorCode> code;
};

using BeforeAction = std::function<void(int rank, std::int64_t step, const Action& action)>;

/// Four stages of `width` ranks each, of one block or two.
class PipelineHang : public ::testing::Test {
 protected:
  void plan_with(int width) {
    run_ = {.ranks = width,
            .layers = 4,
            .first_layers = {0, 2, 3, 4},
            .strategy = "no_shard",
            .micro_steps = 6};
    GptConfig config = small_gpt();
    config.layers = run_.layers;
    model_ = make_gpt(config);
    layout_ = layout_of(run_, model_);
    step_ = plan_step(layout_, plan_options(run_, model_, layout_, source_));
    require_valid(step_);
    schedules_.clear();
    std::vector<std::vector<const Schedule*>> by_rank;
    for (const Schedule& schedule : step_.ranks) {
      schedules_.push_back(&schedule);
      by_rank.push_back({&schedule});
    }
    dumps_ = std::make_unique<DumpWriter>(DumpOptions{.strategy = run_.strategy,
                                                      .ranks = kStages * width,
                                                      .folder = folder_.path("dumps"),
                                                      .requests = requests_},
                                          by_rank);
    dumps_->begin({.name = "run"});
  }

  /// All ranks on raw threads: nobody but the executors spreads news.
  std::vector<Ending> train(const BeforeAction& before, std::chrono::milliseconds timeout) {
    const int ranks = kStages * run_.ranks;
    const auto world = make_thread_group(ranks, {.timeout = timeout});
    std::vector<Ending> endings(static_cast<std::size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          endings[static_cast<std::size_t>(rank)] =
              train_rank(rank, *world[static_cast<std::size_t>(rank)], before);
          ended_->count_down();
        });
      }
    }
    return endings;
  }

  Ending train_rank(int rank, ProcessGroup& group, const BeforeAction& before) {
    Ending ending;
    const auto device = make_cpu_device();
    Memory memory(*device);
    try {
      RankGroups groups = RankGroups::split_from(group, schedules_);
      const Schedule& schedule = step_.ranks[static_cast<std::size_t>(rank / run_.ranks)];
      TrainingState state(layout_, state_options(schedule), rank, memory);
      ExecutorOptions options = executor_options(run_);
      options.recorder = &dumps_->recorder(rank);
      options.before_action = before;
      Executor executor(state, model_, {{&schedule, &source_}}, groups, memory, options);
      for (; ending.good_steps < kSteps; ++ending.good_steps) {
        executor.run_step(ending.good_steps, 1e-2);
      }
    } catch (const Error& error) {
      ending.what = error.what();
      ending.code = error.code();
    } catch (const std::exception& error) {
      ending.what = error.what();
    }
    return ending;
  }

  std::vector<FlightDump> dumps() const {
    const std::vector<std::string> paths{folder_.path("dumps")};
    return read_flight_dumps(paths);
  }

  /// The pass of the second step in which a stage is held: its second micro-step.
  static bool is_held(std::int64_t step, const Action& action, const Operation& operation,
                      int layer) {
    return step == 1 && action.operation == &operation && action.layer == layer &&
           action.micro_step == 1;
  }

  test::TemporaryFolder folder_;
  std::vector<std::string> notes_;
  std::shared_ptr<DumpRequests> requests_ =
      std::make_shared<DumpRequests>([this](const std::string& note) { notes_.push_back(note); });
  SmallRun run_;
  Model model_;
  RandomTokens source_{11, 61, true};
  ModelLayout layout_;
  StepPlan step_;
  std::vector<const Schedule*> schedules_;
  std::unique_ptr<DumpWriter> dumps_;
  std::unique_ptr<Latch> ended_;
};

/// A pass, who runs it, and who waits for it first.
struct Held {
  int stage;
  int layer;
  const Operation* operation;
  std::string text;
};

std::vector<Held> held_passes() {
  return {{1, 2, &operations::kForward, "forward h.1 m1"},
          {2, 3, &operations::kBackward, "backward h.2 m1"},
          {0, 1, &operations::kForward, "forward h.0 m1"}};
}

TEST_F(PipelineHang, OfAStageThatStopsNamesPipelineRankAndStage) {
  for (const Held& held : held_passes()) {
    SCOPED_TRACE(held.text);
    plan_with(1);
    ended_ = std::make_unique<Latch>(kStages - 1);
    const auto endings = train(
        [&](int rank, std::int64_t step, const Action& action) {
          if (rank != held.stage || !is_held(step, action, *held.operation, held.layer)) return;
          ended_->wait();  // for all others
        },
        std::chrono::seconds(2));
    const std::string place = concat("rank ", held.stage, " (pipeline rank ", held.stage,
                                     ", stage ", held.stage, ") was, for ");
    int late = 0;
    for (int rank = 0; rank < kStages; ++rank) {
      const Ending& ending = endings[static_cast<std::size_t>(rank)];
      EXPECT_EQ(ending.good_steps, 1) << rank;
      ASSERT_TRUE(ending.code) << rank << ending.what;
      EXPECT_TRUE(ending.code == ErrorCode::kTimeout || ending.code == ErrorCode::kAborted);
      late += ending.code == ErrorCode::kTimeout ? 1 : 0;
      EXPECT_THAT(ending.what, HasSubstr(place)) << rank;
      EXPECT_THAT(ending.what, HasSubstr(concat("in step 2, compute lane: ", held.text))) << rank;
      EXPECT_THAT(ending.what, HasSubstr("the messages from pipeline rank ")) << rank;
    }
    EXPECT_GE(late, 1);
    const auto found = dumps();
    ASSERT_EQ(found.size(), 1U);
    const FlightDiagnosis diagnosis = diagnose(found);
    EXPECT_THAT(diagnosis.root, HasSubstr(place));
    EXPECT_THAT(diagnosis.root, HasSubstr(held.text));
    EXPECT_THAT(diagnosis.root, HasSubstr(" waited for it in "));
    EXPECT_THAT(notes_.back(), HasSubstr(place));
    // Whoever waits for another that waits is no root.
    for (const CollectiveWait& wait : diagnosis.waits) {
      for (const Absence& absence : wait.absent) {
        EXPECT_EQ(absence.waits_itself, absence.rank != held.stage) << absence.rank;
      }
    }
    std::filesystem::remove_all(folder_.path("dumps"));
  }
}

/// Ranks of one stage have peers in the others at their own place alone.
TEST_F(PipelineHang, OfOneOfTheRanksOfAStageNamesThatRank) {
  plan_with(2);
  ended_ = std::make_unique<Latch>(2 * kStages - 1);
  const auto endings = train(
      [&](int rank, std::int64_t step, const Action& action) {
        if (rank == 5 && is_held(step, action, operations::kForward, 3)) ended_->wait();
      },
      std::chrono::seconds(2));
  for (const Ending& ending : endings) {
    EXPECT_THAT(ending.what, HasSubstr("rank 5 (pipeline rank 2, stage 2) was, for "));
  }
}

TEST_F(PipelineHang, OfAStageThatThrowsNamesPipelineRankAndStage) {
  for (const Held& held : held_passes()) {
    SCOPED_TRACE(held.text);
    plan_with(1);
    ended_ = std::make_unique<Latch>();
    const auto endings = train(
        [&](int rank, std::int64_t step, const Action& action) {
          if (rank != held.stage || !is_held(step, action, *held.operation, held.layer)) return;
          throw std::runtime_error("the disk is on fire");
        },
        std::chrono::minutes(5));
    for (int rank = 0; rank < kStages; ++rank) {
      const Ending& ending = endings[static_cast<std::size_t>(rank)];
      EXPECT_EQ(ending.good_steps, 1) << rank;
      EXPECT_THAT(ending.what, HasSubstr("the disk is on fire")) << rank;
      if (rank == held.stage) {
        EXPECT_FALSE(ending.code) << "its own exception";
        continue;
      }
      EXPECT_EQ(ending.code, ErrorCode::kAborted);
      EXPECT_THAT(ending.what, HasSubstr(concat("pipeline rank ", held.stage, ", stage ",
                                                held.stage, ", in step 2, ", held.text)));
    }
    EXPECT_THAT(dumps().at(0).reason,
                HasSubstr(concat("pipeline rank ", held.stage, ", stage ", held.stage)));
    std::filesystem::remove_all(folder_.path("dumps"));
  }
}

/// A stage that is slow is named while the others wait, and the run goes on.
TEST_F(PipelineHang, OfAStageThatIsSlowIsNone) {
  plan_with(1);
  ended_ = std::make_unique<Latch>();
  std::string root;
  const auto endings = train(
      [&](int rank, std::int64_t step, const Action& action) {
        if (rank != 1 || !is_held(step, action, operations::kForward, 2)) return;
        // Until the stage behind it has come to the message that it cannot get, and the others to
        // theirs: before that, one that is on its way may be the last that is waited for.
        for (bool waits = false; !waits || root.find("rank 1 (") != 0; std::this_thread::yield()) {
          ASSERT_TRUE(requests_->write("a test asks"));
          const std::vector<FlightDump> found = dumps();
          const FlightDiagnosis diagnosis = diagnose(found);
          root = diagnosis.root;
          for (const CollectiveWait& wait : diagnosis.waits) {
            const std::string& text = found[0]
                                          .programs[static_cast<std::size_t>(wait.at.program)]
                                          .actions[static_cast<std::size_t>(wait.at.action)]
                                          .text;
            waits = waits || (wait.waiting == std::vector<int>{2} &&
                              text.find("receive h.1 m1 from 1") != std::string::npos);
          }
        }
      },
      std::chrono::minutes(5));
  EXPECT_THAT(root, HasSubstr("rank 1 (pipeline rank 1, stage 1) was, for "));
  EXPECT_THAT(root, HasSubstr("in step 2, compute lane: forward h.1 m1"));
  for (const Ending& ending : endings) {
    EXPECT_EQ(ending.good_steps, kSteps) << ending.what;
    EXPECT_EQ(ending.what, "");
  }
}

/// The same edge is another action on its two sides.
TEST_F(PipelineHang, MatchesMessagesByTheirPlaceOnTheCommunicator) {
  plan_with(2);
  const FlightDump run = dumps_->describe_run();
  ASSERT_EQ(run.programs.size(), static_cast<std::size_t>(kStages));
  const auto messages = [](const DumpedProgram& program, const std::string& group) {
    std::vector<int> at;
    for (int a = 0; a < static_cast<int>(program.actions.size()); ++a) {
      if (program.actions[static_cast<std::size_t>(a)].group == group) at.push_back(a);
    }
    return at;
  };
  for (int sender = 0; sender + 1 < kStages; ++sender) {
    const DumpedProgram& from = run.programs[static_cast<std::size_t>(sender)];
    const DumpedProgram& to = run.programs[static_cast<std::size_t>(sender) + 1];
    EXPECT_EQ(from.pipeline_rank, sender);
    const std::string group = concat("send lane from pipeline rank ", sender, " to ", sender + 1);
    const auto sends = messages(from, group), receives = messages(to, group);
    ASSERT_EQ(sends.size(), 6U);
    ASSERT_EQ(receives.size(), 6U);
    for (std::size_t m = 0; m < sends.size(); ++m) {
      const DumpedAction& send = from.actions[static_cast<std::size_t>(sends[m])];
      const DumpedAction& receive = to.actions[static_cast<std::size_t>(receives[m])];
      EXPECT_EQ(send.stage, sender);
      EXPECT_EQ(receive.stage, sender + 1);
      const std::string edge = concat("h.", sender, " m", m);
      EXPECT_THAT(send.text, HasSubstr(concat("send ", edge, " to ", sender + 1)));
      EXPECT_THAT(receive.text, HasSubstr(concat("receive ", edge, " from ", sender)));
    }
  }
  EXPECT_EQ(dumps_->program_of(0, 0), 0);
  EXPECT_EQ(dumps_->program_of(3, 0), 1);
  EXPECT_EQ(dumps_->program_of(7, 0), 3);
}

}  // namespace
}  // namespace tessera::test::pipeline_hang_test
