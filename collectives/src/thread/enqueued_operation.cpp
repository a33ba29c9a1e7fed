#include "thread/enqueued_operation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cuda_collectives.h"
#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"
#include "thread/thread_operation.h"

namespace tessera {
namespace {

/// One rank's part, on the host thread that issues it.
class Enqueuer {
 public:
  Enqueuer(ThreadGroupState& state, ThreadOperation& op, CudaStream& stream)
      : state_(state), op_(op), stream_(stream), cuda_(cuda_collectives()) {
    cuda_.require_no_capture(to_string(op.call().kind), stream);
  }

  void run_collective() {
    op_.publish(stream_.record());
    op_.await_all(Stage::kPublished);
    for_each_peer([&](int peer) {
      op_.check_same(peer);
      reach(op_.gpu_of(peer));
    });
    read(Stage::kDone, [&] { enqueue(); });
    op_.arrive(Stage::kDone);
    op_.await_all(Stage::kDone);
    if (is_read_by_all()) wait_for_all(Stage::kDone);
  }

  /// Posts this end of transfer `sequence`, and copies if the other is there. True if not.
  bool post(ThreadGroupState::Channel& channel, std::uint64_t sequence) {
    const bool sends = op_.call().kind == CollectiveKind::kSend;
    const ThreadGroupState::Transfer::End own{.call = op_.call(), .ready = stream_.record()};
    std::optional<ThreadGroupState::Transfer::End> other;
    {
      const std::lock_guard lock(channel.mutex);
      ThreadGroupState::Transfer& transfer = channel.transfers[sequence];
      (sends ? transfer.sent : transfer.received) = own;
      other = sends ? transfer.received : transfer.sent;
    }
    if (!other) return true;
    op_.check_pair(op_.call().peer, other->call);
    reach(other->call.gpu);
    {
      const ThreadOperation::Reading reading(op_);
      stream_.wait(other->ready);
      const TensorView& source = sends ? own.call.input : other->call.input;
      const TensorView& destination = sends ? other->call.input : own.call.input;
      copy({range(source, destination)});
      const std::lock_guard lock(channel.mutex);
      channel.transfers[sequence].done = stream_.record();
    }
    channel.taken.raise(sequence + 1);
    return false;
  }

  /// The end that was posted first: its buffer is its stream's again once the copy has run.
  void settle(ThreadGroupState::Channel& channel, std::uint64_t sequence) {
    op_.await_transfer(channel);
    Event done;
    {
      const std::lock_guard lock(channel.mutex);
      done = channel.transfers.extract(sequence).mapped().done;
    }
    stream_.wait(done);
  }

  /// After a failure nobody enqueues reads any more (see ThreadOperation::run): what is enqueued
  /// must have run before this rank's stream is seen to be over and its buffers are freed.
  void wait_for_readers(ThreadGroupState::Channel* channel, std::uint64_t sequence) {
    if (channel != nullptr) {
      const std::lock_guard lock(channel->mutex);
      stream_.wait(channel->transfers[sequence].done);
      return;
    }
    for_each_peer([&](int peer) {
      stream_.wait(op_.passed(peer, Stage::kReduced));
      stream_.wait(op_.passed(peer, Stage::kDone));
    });
  }

 private:
  void enqueue() {
    switch (op_.call().kind) {
      case CollectiveKind::kAllGather:
        return all_gather();
      case CollectiveKind::kReduceScatter:
        return reduce_scatter();
      case CollectiveKind::kAllReduce:
        return all_reduce();
      case CollectiveKind::kBroadcast:
        return broadcast();
      case CollectiveKind::kAllToAll:
        return all_to_all();
      case CollectiveKind::kBarrier:
        return wait_for_all(Stage::kPublished);
      case CollectiveKind::kSend:
      case CollectiveKind::kRecv:
        fail(ErrorCode::kInternal, "a transfer between two ranks is not a collective");
    }
  }

  void all_gather() {
    wait_for_all(Stage::kPublished);
    std::vector<CopyRange> copies;
    for (int i = 0; i < op_.size(); ++i) {
      const int peer = (op_.rank() + i) % op_.size();
      copies.push_back(range(op_.input_of(peer), part_of(op_.call().output, peer, op_.size())));
    }
    copy(std::move(copies));
  }

  void reduce_scatter() {
    wait_for_all(Stage::kPublished);
    std::vector<TensorView> sources;
    for (int peer = 0; peer < op_.size(); ++peer) {
      sources.push_back(part_of(op_.input_of(peer), op_.rank(), op_.size()));
    }
    sum(sources, op_.call().output.flat(), op_.call().accumulate);
  }

  void all_reduce() {
    if (op_.size() == 1) return;
    wait_for_all(Stage::kPublished);
    // Chunk r is read and written by rank r only, until it is reduced.
    std::vector<TensorView> sources;
    for (int peer = 0; peer < op_.size(); ++peer) {
      sources.push_back(chunk_of(op_.input_of(peer), op_.rank(), op_.size()));
    }
    sum(sources, chunk_of(op_.call().input, op_.rank(), op_.size()), false);
    op_.set_passed(Stage::kReduced, stream_.record());
    op_.arrive(Stage::kReduced);
    op_.await_all(Stage::kReduced);
    wait_for_all(Stage::kReduced);
    std::vector<CopyRange> copies;
    for_each_peer([&](int peer) {
      copies.push_back(range(chunk_of(op_.input_of(peer), peer, op_.size()),
                             chunk_of(op_.call().input, peer, op_.size())));
    });
    copy(std::move(copies));
  }

  void broadcast() {
    const int root = op_.call().peer;
    if (op_.rank() == root) return;
    stream_.wait(op_.passed(root, Stage::kPublished));
    copy({range(op_.input_of(root), op_.call().input)});
  }

  void all_to_all() {
    wait_for_all(Stage::kPublished);
    std::vector<CopyRange> copies;
    for (int i = 0; i < op_.size(); ++i) {
      const int peer = (op_.rank() + i) % op_.size();
      copies.push_back(range(part_of(op_.input_of(peer), op_.rank(), op_.size()),
                             part_of(op_.call().output, peer, op_.size())));
    }
    copy(std::move(copies));
  }

  /// Enqueues what reads buffers of peers, and leaves an event behind it.
  void read(Stage stage, const std::function<void()>& enqueue_reads) {
    const ThreadOperation::Reading reading(op_);
    enqueue_reads();
    op_.set_passed(stage, stream_.record());
  }

  bool is_read_by_all() const {
    const CollectiveCall& call = op_.call();
    if (call.kind == CollectiveKind::kBroadcast) return call.peer == op_.rank();
    return call.kind != CollectiveKind::kBarrier;
  }

  void wait_for_all(Stage stage) {
    for_each_peer([&](int peer) { stream_.wait(op_.passed(peer, stage)); });
  }

  void for_each_peer(const std::function<void(int peer)>& visit) const {
    for (int i = 1; i < op_.size(); ++i) visit((op_.rank() + i) % op_.size());
  }

  /// Gives this rank's GPU access to the memory of `gpu`.
  void reach(int gpu) {
    std::vector<int>& reached = state_.member(op_.rank()).reached_gpus;
    const bool known = std::find(reached.begin(), reached.end(), gpu) != reached.end();
    if (gpu == stream_.ordinal() || known) return;
    cuda_.enable_peer_access(stream_.ordinal(), gpu);
    reached.push_back(gpu);
  }

  static CopyRange range(const TensorView& source, const TensorView& destination) {
    return {.destination = destination.data, .source = source.data, .bytes = source.bytes()};
  }

  void copy(std::vector<CopyRange> ranges) {
    std::erase_if(ranges,
                  [](const CopyRange& r) { return r.bytes == 0 || r.source == r.destination; });
    if (!ranges.empty()) cuda_.copy(ranges, stream_);
  }

  void sum(const std::vector<TensorView>& sources, const TensorView& dst, bool accumulate) {
    if (size_of(dst.dtype) == 8) return cuda_.ordered_sum_wide(sources, dst, stream_);
    stream_.kernels().ordered_sum({.sources = sources, .dst = dst, .accumulate = accumulate},
                                  stream_);
  }

  ThreadGroupState& state_;
  ThreadOperation& op_;
  CudaStream& stream_;
  const CudaCollectives& cuda_;
};

/// The needs of one call, kept until it has been enqueued.
struct Issue {
  std::shared_ptr<ThreadGroupState> state;
  int rank;
  std::uint64_t sequence;
  CollectiveCall call;
  CudaStream& stream;

  ThreadGroupState::Channel& channel() const {
    return call.kind == CollectiveKind::kSend ? state->channel(rank, call.peer)
                                              : state->channel(call.peer, rank);
  }
  void run(const std::function<void(Enqueuer&)>& body) const {
    ThreadOperation op(*state, rank, sequence, call);
    Enqueuer enqueuer(*state, op, stream);
    try {
      op.run([&](ThreadOperation&) { body(enqueuer); });
    } catch (const std::exception&) {
      enqueuer.wait_for_readers(is_pairwise(call.kind) ? &channel() : nullptr, sequence);
      throw;
    }
  }
};

}  // namespace

void enqueue_operation(const std::shared_ptr<ThreadGroupState>& state, int rank,
                       std::uint64_t sequence, const CollectiveCall& call, CudaStream& stream) {
  Issue issue{.state = state, .rank = rank, .sequence = sequence, .call = call, .stream = stream};
  issue.call.gpu = stream.ordinal();
  const Work work{.name = to_string(call.kind)};
  if (!is_pairwise(call.kind)) {
    stream.submit(work, [&] { issue.run([](Enqueuer& e) { e.run_collective(); }); });
    return;
  }
  bool alone = false;
  stream.submit(
      work, [&] { issue.run([&](Enqueuer& e) { alone = e.post(issue.channel(), sequence); }); });
  if (!alone) return;
  stream.defer(work, [issue] {
    issue.run([&](Enqueuer& e) { e.settle(issue.channel(), issue.sequence); });
  });
}

}  // namespace tessera
