#include "thread/thread_operation.h"

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "copy_bytes.h"
#include "tessera/core/error.h"

namespace tessera {
ThreadOperation::ThreadOperation(ThreadGroupState& state, int rank, std::uint64_t sequence,
                                 const CollectiveCall& call)
    : state_(state),
      rank_(rank),
      sequence_(sequence),
      call_(call),
      deadline_(std::chrono::steady_clock::now() + state.timeout()),
      own_summary_(summary_of(call)) {}

std::string ThreadOperation::name() const {
  const std::string label = state_.label();
  return concat(to_string(call_.kind), " #", sequence_, " on rank ", rank_, " of ", size(),
                label.empty() ? "" : " of ", label);
}

void ThreadOperation::wait(Counter& counter, std::uint64_t target,
                           const std::function<std::string()>& missing) {
  while (true) {
    switch (counter.wait(target, deadline_, state_.family().aborted(), state_.yield_after())) {
      case Counter::Wait::kReached:
        return;
      case Counter::Wait::kAborted:
        fail_aborted();
      case Counter::Wait::kTimeout:
        const SteadyTime later = state_.family().last_moved() + state_.timeout();
        if (later <= deadline_) {
          fail(ErrorCode::kTimeout, name(), ": ", missing(), " did not arrive within ",
               state_.timeout().count(), " ms");
        }
        deadline_ = later;
    }
  }
}

void ThreadOperation::fail_aborted() const {
  fail(ErrorCode::kAborted, name(), ": ", state_.family().reason());
}

void ThreadOperation::publish(Event ready) {
  ThreadGroupState::Member& own = state_.member(rank_);
  wait(own.finished, sequence_, [this] { return concat("its own operation #", sequence_ - 1); });
  if (state_.family().aborted().load(std::memory_order_seq_cst)) fail_aborted();
  own.published = {.input = call_.input.data, .summary = own_summary_, .gpu = call_.gpu};
  if (ready.state() != nullptr) set_passed(Stage::kPublished, std::move(ready));
  arrive(Stage::kPublished);
}

void ThreadOperation::arrive(Stage stage) { state_.member(rank_).progress.raise(target(stage)); }

void ThreadOperation::set_passed(Stage stage, Event event) const {
  state_.member(rank_).passed[static_cast<std::size_t>(stage)] = std::move(event);
}

const Event& ThreadOperation::passed(int peer, Stage stage) const {
  return state_.member(peer).passed[static_cast<std::size_t>(stage)];
}

void ThreadOperation::await_all(Stage stage) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < size(); ++peer) {
      if (state_.member(peer).progress.value() < target(stage)) ranks.push_back(peer);
    }
    return list_ranks(ranks);
  };
  for (int i = 1; i < size(); ++i) {
    wait(state_.member((rank_ + i) % size()).progress, target(stage), missing);
  }
}

void ThreadOperation::check_same(int peer) const {
  const CallSummary& other = state_.member(peer).published.summary;
  if (fits(own_summary_, other)) return;  // the usual case must not pay for the text
  fail(ErrorCode::kInvalidArgument, name(), ": rank ", rank_, " issued ", describe(own_summary_),
       " but rank ", peer, " issued ", describe(other),
       "; all ranks must issue the same operations in the same order");
}

void ThreadOperation::check_pair(int peer, const CollectiveCall& call) const {
  const CallSummary other = summary_of(call);
  if (fits(own_summary_, other)) return;
  fail(ErrorCode::kInvalidArgument, name(), ": rank ", rank_, " issued ", describe(own_summary_),
       " but rank ", peer, " issued ", describe(other));
}

void ThreadOperation::await_transfer(ThreadGroupState::Channel& channel) {
  wait(channel.taken, sequence_ + 1, [&] { return list_ranks({call_.peer}); });
}

void ThreadOperation::send() {
  ThreadGroupState::Channel& channel = state_.channel(rank_, call_.peer);
  const auto missing = [&] { return list_ranks({call_.peer}); };
  wait(channel.taken, sequence_, missing);
  if (state_.family().aborted().load(std::memory_order_seq_cst)) fail_aborted();
  channel.call = call_;
  channel.posted.raise(sequence_ + 1);
  wait(channel.taken, sequence_ + 1, missing);
}

void ThreadOperation::recv() {
  ThreadGroupState::Channel& channel = state_.channel(call_.peer, rank_);
  const auto missing = [&] { return list_ranks({call_.peer}); };
  wait(channel.taken, sequence_, missing);
  wait(channel.posted, sequence_ + 1, missing);
  {
    const Reading reading(*this);
    const CollectiveCall& sent = channel.call;
    check_pair(call_.peer, sent);
    copy_bytes(call_.input.data, sent.input.data, static_cast<std::size_t>(call_.input.bytes()));
  }
  channel.taken.raise(sequence_ + 1);
}

void ThreadOperation::run(const std::function<void(ThreadOperation&)>& body) {
  try {
    body(*this);
    state_.family().note_move();
  } catch (const std::exception& error) {
    state_.family().abort(error.what());
    await_readers();
    throw;
  }
  if (!is_pairwise(call_.kind)) state_.member(rank_).finished.raise(sequence_ + 1);
}

void ThreadOperation::await_readers() const {
  for (int peer = 0; peer < size(); ++peer) {
    while (state_.member(peer).reading.load(std::memory_order_seq_cst) > 0) {
      std::this_thread::yield();
    }
  }
}

ThreadOperation::Reading::Reading(const ThreadOperation& operation)
    : readers_(operation.state_.member(operation.rank_).reading) {
  readers_.fetch_add(1, std::memory_order_seq_cst);
  if (operation.state_.family().aborted().load(std::memory_order_seq_cst)) {
    readers_.fetch_sub(1, std::memory_order_release);
    operation.fail_aborted();
  }
}

}  // namespace tessera
