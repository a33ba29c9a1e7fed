#include "tessera/collectives/thread_group.h"

#include <algorithm>
#include <utility>

#include "block_pool.h"
#include "call_group.h"
#include "copy_bytes.h"
#include "ordered_sum.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"
#include "thread/enqueued_operation.h"
#include "thread/thread_operation.h"

namespace tessera {
namespace {

void copy(const TensorView& source, const TensorView& destination) {
  if (source.data == destination.data) return;
  copy_bytes(destination.data, source.data, static_cast<std::size_t>(source.bytes()));
}

void all_gather_body(ThreadOperation& op) {
  op.publish();
  op.await_all(Stage::kPublished);
  {
    const ThreadOperation::Reading reading(op);
    // Everybody starts with another peer, its own part first, so no buffer is read by all at once.
    for (int i = 0; i < op.size(); ++i) {
      const int peer = (op.rank() + i) % op.size();
      op.check_same(peer);
      copy(op.input_of(peer), part_of(op.call().output, peer, op.size()));
    }
  }
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void reduce_scatter_body(ThreadOperation& op, Stream& stream) {
  op.publish();
  op.await_all(Stage::kPublished);
  {
    const ThreadOperation::Reading reading(op);
    std::vector<TensorView> sources;
    for (int peer = 0; peer < op.size(); ++peer) {
      op.check_same(peer);
      sources.push_back(part_of(op.input_of(peer), op.rank(), op.size()));
    }
    sum_in_order(sources, op.call().output.flat(), op.call().accumulate, stream);
  }
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

/// Bytes that a core sums before it hands the sum out: it finds them in its cache.
constexpr std::int64_t kSummedBytesPerThread = std::int64_t{256} << 10;

// [Note: who writes a sum] Chunk r of every rank's buffer is read and written by rank r only: it
// takes the sum and writes it to all. If each rank fetched the sums of the others instead, it would
// write cache lines that another core has just read, and to make a shared line one's own again
// costs much more than to take over a line that one other core has written. To write a buffer of
// 256 KiB, all-reduce it and read it took two cores of an EPYC 176 us that way, and takes 28.
void all_reduce_body(ThreadOperation& op, Stream& stream) {
  op.publish();
  op.await_all(Stage::kPublished);
  {
    const ThreadOperation::Reading reading(op);
    std::vector<TensorView> chunks;
    for (int peer = 0; peer < op.size(); ++peer) {
      op.check_same(peer);
      chunks.push_back(chunk_of(op.input_of(peer), op.rank(), op.size()));
    }
    const TensorView& own = chunks[static_cast<std::size_t>(op.rank())];
    const std::int64_t most =
        kSummedBytesPerThread * team_threads() / static_cast<std::int64_t>(size_of(own.dtype));
    std::vector<TensorView> sources(chunks.size());
    for (std::int64_t begin = 0; begin < own.numel(); begin += most) {
      const std::int64_t numel = std::min(most, own.numel() - begin);
      std::ranges::transform(chunks, sources.begin(), [&](const TensorView& chunk) {
        return chunk.narrow(0, begin, numel);
      });
      const TensorView& sum = sources[static_cast<std::size_t>(op.rank())];
      sum_in_order(sources, sum, false, stream);
      for (int i = 1; i < op.size(); ++i) {
        copy(sum, sources[static_cast<std::size_t>((op.rank() + i) % op.size())]);
      }
    }
  }
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void broadcast_body(ThreadOperation& op) {
  const int root = op.call().peer;
  op.publish();
  // All are awaited, not the root alone: a rank that means another root would leave, and publish
  // its next call, while this one is compared.
  op.await_all(Stage::kPublished);
  {
    const ThreadOperation::Reading reading(op);
    for (int peer = 0; peer < op.size(); ++peer) op.check_same(peer);
    if (op.rank() != root) copy(op.input_of(root), op.call().input);
  }
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void all_to_all_body(ThreadOperation& op) {
  op.publish();
  op.await_all(Stage::kPublished);
  {
    const ThreadOperation::Reading reading(op);
    for (int i = 0; i < op.size(); ++i) {
      const int peer = (op.rank() + i) % op.size();
      op.check_same(peer);
      copy(part_of(op.input_of(peer), op.rank(), op.size()),
           part_of(op.call().output, peer, op.size()));
    }
  }
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void barrier_body(ThreadOperation& op) {
  op.publish();
  op.await_all(Stage::kPublished);
  // The calls are compared once all are there; nobody may publish the next one before that.
  for (int peer = 0; peer < op.size(); ++peer) op.check_same(peer);
  op.arrive(Stage::kDone);
  op.await_all(Stage::kDone);
}

void run_body(ThreadOperation& op, Stream& stream) {
  switch (op.call().kind) {
    case CollectiveKind::kAllGather:
      return all_gather_body(op);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter_body(op, stream);
    case CollectiveKind::kAllReduce:
      return all_reduce_body(op, stream);
    case CollectiveKind::kBroadcast:
      return broadcast_body(op);
    case CollectiveKind::kAllToAll:
      return all_to_all_body(op);
    case CollectiveKind::kSend:
      return op.send();
    case CollectiveKind::kRecv:
      return op.recv();
    case CollectiveKind::kBarrier:
      return barrier_body(op);
  }
}

class ThreadGroup : public CallGroup<> {
 public:
  ThreadGroup(std::shared_ptr<ThreadGroupState> state, int rank)
      : state_(std::move(state)), rank_(rank), numbers_(state_->size()) {}

  int rank() const override { return rank_; }
  int size() const override { return state_->size(); }

  std::unique_ptr<ProcessGroup> split(int color, int key) override {
    auto [state, rank] = state_->splits().join(rank_, splits_++, {.color = color, .key = key});
    return std::make_unique<ThreadGroup>(std::move(state), rank);
  }

  void abort(std::string_view reason) noexcept override { state_->family().abort(reason); }
  void set_label(const std::string& label) override { state_->set_label(label); }

 private:
  std::int64_t issue(const CollectiveCall& call, Stream& stream) override {
    const std::uint64_t sequence = numbers_.next(call);
    if (auto* const cuda = dynamic_cast<CudaStream*>(&stream)) {
      enqueue_operation(state_, rank_, sequence, call, *cuda);
      return 0;
    }
    // The task shares the state: it may outlive this end of the group.
    stream.submit({.name = to_string(call.kind)},
                  Pooled{[state = state_, rank = rank_, sequence, call, &stream] {
                    ThreadOperation operation(*state, rank, sequence, call);
                    operation.run([&](ThreadOperation& op) { run_body(op, stream); });
                  }});
    return 0;
  }

  const std::shared_ptr<ThreadGroupState> state_;
  const int rank_;
  CallNumbers numbers_;
  std::uint64_t splits_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<ProcessGroup>> make_thread_group(int size, ThreadGroupOptions options) {
  require(size >= 1, ErrorCode::kInvalidArgument, "a thread group of ", size,
          " ranks is not possible");
  require(options.timeout.count() > 0, ErrorCode::kInvalidArgument, "a timeout of ",
          options.timeout.count(), " ms is not positive");
  const auto state = make_thread_group_state(size, options.timeout, std::make_shared<Family>());
  std::vector<std::unique_ptr<ProcessGroup>> ends;
  for (int rank = 0; rank < size; ++rank) {
    ends.push_back(std::make_unique<ThreadGroup>(state, rank));
  }
  return ends;
}

}  // namespace tessera
