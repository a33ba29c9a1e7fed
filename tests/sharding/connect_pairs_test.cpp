#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/small_run.h"
#include "tessera/collectives/nccl_group.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/operation.h"

// Pairs of pipeline ranks that NCCL connects at their first message are connected before the first
// step.
namespace tessera::test::connect_pairs_test {
namespace {

/// A thread group that stands for NCCL's: it has messages that were sent and received noted.
class NotedGroup : public NcclGroup {
 public:
  NotedGroup(std::unique_ptr<ProcessGroup> group, int& messages)
      : group_(std::move(group)), messages_(messages) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_gather(TensorView input, TensorView output, Stream& stream) override {
    group_->all_gather(input, output, stream);
  }
  void reduce_scatter(TensorView input, TensorView output, bool accumulate,
                      Stream& stream) override {
    group_->reduce_scatter(input, output, accumulate, stream);
  }
  void all_reduce(TensorView data, Stream& stream) override { group_->all_reduce(data, stream); }
  void broadcast(TensorView data, int root, Stream& stream) override {
    group_->broadcast(data, root, stream);
  }
  void all_to_all(TensorView input, TensorView output, Stream& stream) override {
    group_->all_to_all(input, output, stream);
  }
  void send(TensorView data, int destination, Stream& stream) override {
    ++messages_;
    group_->send(data, destination, stream);
  }
  void recv(TensorView data, int source, Stream& stream) override {
    ++messages_;
    group_->recv(data, source, stream);
  }
  void barrier(Stream& stream) override { group_->barrier(stream); }
  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    return std::make_unique<NotedGroup>(group_->split(color, key), messages_);
  }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  Traffic traffic() const override { return group_->traffic(); }
  std::string register_buffer(void*, std::size_t) override { return ""; }
  void watch_replay(std::string_view, std::chrono::milliseconds, CudaStream&,
                    const std::function<void()>& launch) override {
    launch();
  }

 private:
  const std::unique_ptr<ProcessGroup> group_;
  int& messages_;
};

/// The step of a small tied model in four stages of `width` ranks.
struct Stages {
  explicit Stages(int width)
      : run{.ranks = width, .first_layers = {0, 1, 2, 3}, .strategy = "no_shard", .micro_steps = 2},
        model(make_gpt(small_gpt())),
        layout(layout_of(run, model)),
        step(plan_step(layout, plan_options(run, model, layout, source))) {
    for (const Schedule& schedule : step.ranks) schedules.push_back(&schedule);
  }
  const Schedule& of(int rank) const {
    return *schedules[static_cast<std::size_t>(rank / run.ranks)];
  }
  /// How many a rank is part of.
  int pairs(int rank) const {
    std::set<PipelinePair> pairs;
    for (const Action& action : of(rank).actions) {
      if (!action.operation->is_message) continue;
      pairs.insert(PipelinePair::of(action.lane, of(rank).pipeline.rank, action.peer));
    }
    return static_cast<int>(pairs.size());
  }

  SmallRun run;
  Model model;
  RandomTokens source{11, 61, false};
  ModelLayout layout;
  StepPlan step;
  std::vector<const Schedule*> schedules;
};

TEST(ConnectPairs, SendsOneMessageOverEachPairThatIsNotCounted) {
  for (const int width : {1, 2}) {
    const Stages stages(width);
    launch_ranks(make_thread_group(4 * width), [&](int rank, ProcessGroup& world) {
      int messages = 0;
      NotedGroup noted(world.split(0, rank), messages);
      RankGroups groups = RankGroups::split_from(noted, stages.schedules);
      const auto device = make_cpu_device();
      const auto stream = device->create_stream({});
      float element = 0.0F;
      const TensorView view(&element, DType::kFloat32, Shape{1});
      EXPECT_EQ(messages, 0);
      groups.connect_pairs(view, *stream);
      EXPECT_GT(stages.pairs(rank), 1);
      EXPECT_EQ(messages, stages.pairs(rank));
      EXPECT_EQ(groups.traffic(), Traffic());
      groups.connect_pairs(view, *stream);
      EXPECT_EQ(messages, stages.pairs(rank));
    });
  }
}

TEST(ConnectPairs, SendsNothingWhereGroupsAreConnected) {
  const Stages stages(1);
  launch_ranks(make_thread_group(4), [&](int, ProcessGroup& world) {
    RankGroups groups = RankGroups::split_from(world, stages.schedules);
    const auto device = make_cpu_device();
    const auto stream = device->create_stream({});
    groups.connect_pairs(TensorView(), *stream);  // would fail
    EXPECT_EQ(groups.traffic(), Traffic());
  });
}

TEST(ConnectPairs, IsDoneByTheExecutorBeforeItsFirstStep) {
  const Stages stages(2);
  launch_ranks(make_thread_group(8), [&](int rank, ProcessGroup& world) {
    int messages = 0;
    NotedGroup noted(world.split(0, rank), messages);
    RankGroups groups = RankGroups::split_from(noted, stages.schedules);
    const auto device = make_cpu_device();
    Memory memory(*device);
    TrainingState state(stages.layout, state_options(stages.of(rank)), rank, memory);
    Executor executor(state, stages.model, {{&stages.of(rank), &stages.source}}, groups, memory,
                      executor_options(stages.run));
    EXPECT_EQ(messages, stages.pairs(rank));
    EXPECT_EQ(executor.traffic(), Traffic());
    executor.run_step(0, 1e-2);
    EXPECT_EQ(executor.traffic(), account_traffic(stages.of(rank)));
  });
}

}  // namespace
}  // namespace tessera::test::connect_pairs_test
