#include "bench/collective_bench.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"

// `tessera bench collectives` names the faults of a group that computes wrongly.
namespace tessera::bench {
namespace {

/// A group whose collective of one kind leaves one element of rank 1's result wrong.
class WrongGroup : public ProcessGroup {
 public:
  WrongGroup(std::unique_ptr<ProcessGroup> group, CollectiveKind wrong)
      : group_(std::move(group)), wrong_(wrong) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_gather(TensorView input, TensorView output, Stream& stream) override {
    group_->all_gather(input, output, stream);
    spoil(CollectiveKind::kAllGather, output, stream);
  }
  void reduce_scatter(TensorView input, TensorView output, bool accumulate,
                      Stream& stream) override {
    group_->reduce_scatter(input, output, accumulate, stream);
    spoil(CollectiveKind::kReduceScatter, output, stream);
  }
  void all_reduce(TensorView data, Stream& stream) override {
    group_->all_reduce(data, stream);
    spoil(CollectiveKind::kAllReduce, data, stream);
  }
  void broadcast(TensorView data, int root, Stream& stream) override {
    group_->broadcast(data, root, stream);
    spoil(CollectiveKind::kBroadcast, data, stream);
  }
  void all_to_all(TensorView input, TensorView output, Stream& stream) override {
    group_->all_to_all(input, output, stream);
    spoil(CollectiveKind::kAllToAll, output, stream);
  }
  void send(TensorView data, int destination, Stream& stream) override {
    group_->send(data, destination, stream);
  }
  void recv(TensorView data, int source, Stream& stream) override {
    group_->recv(data, source, stream);
    spoil(CollectiveKind::kRecv, data, stream);
  }
  void barrier(Stream& stream) override { group_->barrier(stream); }
  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    return group_->split(color, key);
  }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  tessera::Traffic traffic() const override { return group_->traffic(); }

 private:
  void spoil(CollectiveKind kind, const TensorView& result, Stream& stream) {
    if (kind != wrong_ || rank() != 1) return;
    stream.submit({.name = "spoil"},
                  [last = result.data + result.bytes() - 1] { *last ^= std::byte{0x40}; });
  }

  std::unique_ptr<ProcessGroup> group_;
  const CollectiveKind wrong_;
};

/// The rows of `ranks` ranks, one of whose collectives is wrong.
std::vector<CollectiveRow> rows_of(const CollectiveCase& collective, int ranks,
                                   CollectiveKind wrong) {
  std::vector<std::unique_ptr<ProcessGroup>> groups = make_thread_group(ranks);
  const CollectiveOptions options{
      .min_bytes = 1000, .max_bytes = 1000, .iterations = 1, .warm_ups = 0, .repeats = 1};
  std::vector<CollectiveRow> rows;
  launch_ranks(groups, [&](int rank, ProcessGroup& world) {
    // Starts and times go over the world, which is right.
    WrongGroup group(world.split(0, rank), wrong);
    const auto device = make_cpu_device();
    auto mine = measure_collective(collective, {world, group}, *device, options);
    if (rank == 0) rows = std::move(mine);
  });
  return rows;
}

TEST(CollectiveBench, CountsElementsThatAreWrong) {
  const std::pair<const char*, CollectiveKind> cases[] = {
      {"all_gather", CollectiveKind::kAllGather},
      {"reduce_scatter", CollectiveKind::kReduceScatter},
      {"all_reduce", CollectiveKind::kAllReduce},
      {"broadcast", CollectiveKind::kBroadcast},
      {"all_to_all", CollectiveKind::kAllToAll},
      {"sendrecv", CollectiveKind::kRecv}};
  for (const auto& [name, kind] : cases) {
    const auto wrong = rows_of(find_collective(name), 3, kind);
    ASSERT_EQ(wrong.size(), 1U);
    EXPECT_EQ(wrong[0].out_of_place.wrong, 1) << name;
    EXPECT_EQ(wrong[0].in_place.wrong, 1) << name;
    EXPECT_EQ(wrong_elements(wrong), 2) << name;
    EXPECT_THROW(require_right(wrong), Error) << name;
    EXPECT_NO_THROW(require_right(rows_of(find_collective(name), 3, CollectiveKind::kBarrier)))
        << name;
  }
}

TEST(CollectiveBench, CountsPartsAsNcclTestsDo) {
  // 1000 bytes over 3 ranks: 83 floats each, rounded down to 16 bytes.
  const auto gather = rows_of(find_collective("all_gather"), 3, CollectiveKind::kBarrier);
  EXPECT_EQ(gather[0].count, 80);
  EXPECT_EQ(gather[0].bytes, 3 * 80 * 4);
  const auto reduce = rows_of(find_collective("all_reduce"), 3, CollectiveKind::kBarrier);
  EXPECT_EQ(reduce[0].count, 250);
  EXPECT_EQ(reduce[0].bytes, 1000);
}

}  // namespace
}  // namespace tessera::bench
