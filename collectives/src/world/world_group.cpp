#include "world/world_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "block_pool.h"
#include "call_group.h"
#include "copy_bytes.h"
#include "ordered_sum.h"
#include "split_groups.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "world/world_operation.h"

namespace tessera {
namespace {

void copy(const TensorView& source, const TensorView& destination) {
  if (source.data == destination.data || destination.bytes() == 0) return;
  copy_bytes(destination.data, source.data, static_cast<std::size_t>(destination.bytes()));
}

/// Calls each(peer) for near peers; everybody starts with another one, so no buffer is read by all
/// at once.
template <typename Do>
void for_each_near(const WorldOperation& op, const Do& each) {
  for (int i = 0; i < op.size(); ++i) {
    const int peer = (op.rank() + i) % op.size();
    if (op.near(peer)) each(peer);
  }
}

void finish(WorldOperation& op) {
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void all_gather_body(WorldOperation& op) {
  const TensorView output = op.call().output;
  for (int peer : op.far_peers()) op.expect(peer, part_of(output, peer, op.size()));
  op.meet();
  for (int peer : op.far_peers()) op.send(peer, op.call().input);
  for_each_near(op, [&](int peer) {
    const bool own = peer == op.rank();
    copy(own ? op.call().input : op.offered_by(peer), part_of(output, peer, op.size()));
  });
  op.deliver();
  finish(op);
}

/// Sources of a sum in rank order: near ones where they lie, far ones from messages that are sent
/// and asked for here. `part` picks of a whole buffer what a rank adds up.
template <typename Part>
std::vector<TensorView> collect(WorldOperation& op, const Part& part) {
  std::vector<TensorView> sources(static_cast<std::size_t>(op.size()));
  const TensorView own = part(op.call().input, op.rank());
  for (int peer : op.far_peers()) {
    TensorView& source = sources[static_cast<std::size_t>(peer)];
    source = op.landing(own.shape, own.dtype);
    op.expect(peer, source);
  }
  op.meet();
  for (int peer : op.far_peers()) op.send(peer, part(op.call().input, peer));
  for_each_near(op, [&](int peer) {
    sources[static_cast<std::size_t>(peer)] = part(op.offered_by(peer), op.rank());
  });
  op.deliver();
  return sources;
}

void reduce_scatter_body(WorldOperation& op, Stream& stream) {
  const auto sources = collect(
      op, [&](const TensorView& whole, int rank) { return part_of(whole, rank, op.size()); });
  sum_in_order(sources, op.call().output.flat(), op.call().accumulate, stream);
  finish(op);
}

void all_reduce_body(WorldOperation& op, Stream& stream) {
  const auto chunk = [&](const TensorView& whole, int rank) {
    return chunk_of(whole, rank, op.size());
  };
  // Chunk r is read and written by rank r only, until it is reduced.
  const std::vector<TensorView> sources = collect(op, chunk);
  const TensorView data = op.call().input;
  const TensorView reduced = chunk(op.offered(), op.rank());
  sum_in_order(sources, reduced, false, stream);
  op.arrive(Stage::kReduced);
  for (int peer : op.far_peers()) {
    op.expect(peer, chunk(data, peer));
    op.send(peer, reduced);
  }
  op.unstage(reduced, chunk(data, op.rank()));
  for_each_near(op, [&](int peer) {
    if (peer == op.rank()) return;
    op.await(peer, Stage::kReduced);
    copy(chunk(op.offered_by(peer), peer), chunk(data, peer));
  });
  op.deliver();
  finish(op);
}

void broadcast_body(WorldOperation& op) {
  const int root = op.call().peer;
  const bool from_far = op.rank() != root && !op.near(root);
  if (from_far) op.expect(root, op.call().input);
  op.meet();
  if (op.rank() == root) {
    for (int peer : op.far_peers()) op.send(peer, op.call().input);
  } else if (!from_far) {
    copy(op.offered_by(root), op.call().input);
  }
  op.deliver();
  finish(op);
}

void all_to_all_body(WorldOperation& op) {
  const TensorView output = op.call().output;
  for (int peer : op.far_peers()) op.expect(peer, part_of(output, peer, op.size()));
  op.meet();
  for (int peer : op.far_peers()) op.send(peer, part_of(op.call().input, peer, op.size()));
  for_each_near(op, [&](int peer) {
    copy(part_of(op.offered_by(peer), op.rank(), op.size()), part_of(output, peer, op.size()));
  });
  op.deliver();
  finish(op);
}

void barrier_body(WorldOperation& op) {
  op.meet();
  finish(op);
}

void run_body(WorldOperation& op, Stream* stream) {
  switch (op.call().kind) {
    case CollectiveKind::kAllGather:
      return all_gather_body(op);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter_body(op, *stream);
    case CollectiveKind::kAllReduce:
      return all_reduce_body(op, *stream);
    case CollectiveKind::kBroadcast:
      return broadcast_body(op);
    case CollectiveKind::kAllToAll:
      return all_to_all_body(op);
    case CollectiveKind::kSend:
      return op.send_to_peer();
    case CollectiveKind::kRecv:
      return op.receive_from_peer();
    case CollectiveKind::kBarrier:
      return barrier_body(op);
  }
}

class WorldGroup : public CallGroup<> {
 public:
  /// `joined`: one more than the highest id of the groups that this rank was ever in. Its groups
  /// share it; `split` is a host operation, called by one thread at a time.
  WorldGroup(std::shared_ptr<WorldGroupState> state,
             std::shared_ptr<std::atomic<std::int64_t>> joined)
      : state_(std::move(state)), joined_(std::move(joined)), numbers_(state_->size()) {}

  int rank() const override { return state_->rank(); }
  int size() const override { return state_->size(); }

  std::unique_ptr<ProcessGroup> split(int color, int key) override;

  void abort(std::string_view reason) noexcept override { state_->core().abort(reason); }
  void set_label(const std::string& label) override { state_->set_label(label); }
  Traffic traffic() const override {
    Traffic result = CallGroup<>::traffic();
    result.copied_bytes = copied_bytes_->load();
    return result;
  }

 private:
  std::int64_t issue(const CollectiveCall& call, Stream& stream) override {
    require(dynamic_cast<CudaStream*>(&stream) == nullptr, ErrorCode::kUnavailable,
            "ranks in several processes exchange buffers in host memory, not on GPUs");
    const std::uint64_t sequence = numbers_.next(call);
    // The task shares the state: it may outlive this end of the group.
    stream.submit({.name = to_string(call.kind)},
                  Pooled{[state = state_, copied = copied_bytes_, sequence, call, &stream] {
                    WorldOperation operation(*state, sequence, call);
                    operation.run([&](WorldOperation& op) { run_body(op, &stream); });
                    copied->fetch_add(operation.copied_bytes());
                  }});
    return 0;  // counted as it goes
  }

  /// Gathers a few numbers of every rank, on the calling thread; not counted.
  template <std::size_t kCount>
  std::vector<std::array<std::int64_t, kCount>> gather(std::array<std::int64_t, kCount> own) {
    std::vector<std::array<std::int64_t, kCount>> all(static_cast<std::size_t>(size()));
    const CollectiveCall call{
        .kind = CollectiveKind::kAllGather,
        .input = TensorView(own.data(), DType::kInt64, Shape{kCount}),
        .output = TensorView(all.front().data(), DType::kInt64,
                             Shape{size() * static_cast<std::int64_t>(kCount)})};
    WorldOperation operation(*state_, numbers_.next(call), call);
    operation.run([](WorldOperation& op) { run_body(op, nullptr); });
    return all;
  }

  const std::shared_ptr<WorldGroupState> state_;
  const std::shared_ptr<std::atomic<std::int64_t>> joined_;
  CallNumbers numbers_;
  const std::shared_ptr<std::atomic<std::int64_t>> copied_bytes_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

/// Nobody is in charge: every rank computes the same groups from what all have said. A new group's
/// id is above those of every group that one of its ranks was in (see [Note: message tags]). Its
/// first rank on each machine makes the memory of that machine's ranks.
std::unique_ptr<ProcessGroup> WorldGroup::split(int color, int key) {
  enum { kColor, kKey, kJoined };
  const auto gathered = gather<3>({color, key, joined_->load()});
  std::vector<SplitSeat> seats;
  std::int64_t first_id = 0;
  for (const auto& said : gathered) {
    seats.push_back({.color = static_cast<int>(said[kColor]), .key = static_cast<int>(said[kKey])});
    first_id = std::max(first_id, said[kJoined]);
  }
  const std::vector<std::vector<int>> groups = split_groups(seats);
  joined_->store(first_id + static_cast<std::int64_t>(groups.size()));
  const auto mine = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& ranks) {
    return seats[static_cast<std::size_t>(ranks.front())].color == color;
  });
  const std::int64_t id = first_id + std::distance(groups.begin(), mine);

  std::vector<int> world_ranks;
  int new_rank = 0;
  int leader = -1;  // of the new group's ranks on this machine, as a rank of this group
  for (const int r : *mine) {
    if (r == rank()) new_rank = static_cast<int>(world_ranks.size());
    if (leader < 0 && state_->near(r)) leader = r;
    world_ranks.push_back(state_->world_rank(r));
  }
  WorldCore& core = state_->core();
  std::int64_t offset = 0;
  if (leader == rank()) {
    SharedArena& arena = core.arena();
    offset = static_cast<std::int64_t>(arena.offset_of(
        arena.allocate_for_good(WorldGroupState::shared_bytes(world_ranks.size()))));
  }
  const auto offsets = gather<1>({offset});
  const SharedBuffer shared{
      .process = core.process_of(state_->world_rank(leader)),
      .offset = static_cast<std::uint64_t>(offsets[static_cast<std::size_t>(leader)][0])};
  return std::make_unique<WorldGroup>(
      std::make_shared<WorldGroupState>(state_->shared_core(), static_cast<std::uint32_t>(id),
                                        std::move(world_ranks), new_rank, shared),
      joined_);
}

}  // namespace

std::unique_ptr<ProcessGroup> make_world_group(std::shared_ptr<WorldGroupState> state) {
  return std::make_unique<WorldGroup>(std::move(state),
                                      std::make_shared<std::atomic<std::int64_t>>(1));
}

}  // namespace tessera
