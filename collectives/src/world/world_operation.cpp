#include "world/world_operation.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "copy_bytes.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// How often a sleeping rank looks whether the run was aborted.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

WorldOperation::WorldOperation(const WorldGroupState& state, std::uint64_t sequence,
                               const CollectiveCall& call)
    : state_(state),
      sequence_(sequence),
      call_(call),
      deadline_(Clock::now() + state.core().options().timeout),
      own_summary_(summary_of(call)) {
  for (int peer = 0; peer < size(); ++peer) {
    const bool involved = !pairwise() || peer == call_.peer;
    if (involved && !near(peer)) far_peers_.push_back(peer);
  }
}

WorldOperation::~WorldOperation() {
  transfers_.clear();  // these may still read what is staged
  far_.clear();
  if (staging_ == nullptr) return;
  state_.core().arena().deallocate(staging_, static_cast<std::size_t>(call_.input.bytes()));
}

std::string WorldOperation::name() const {
  return concat(to_string(call_.kind), " #", sequence_, " on rank ", rank(), " of ", size(),
                state_.label().empty() ? "" : " of ", state_.label());
}

// ---- Waiting ------------------------------------------------------------------------------------

void WorldOperation::fail_if_aborted() const {
  const WorldCore& core = state_.core();
  if (core.aborted()) fail(ErrorCode::kAborted, name(), ": ", core.reason());
}

Clock::time_point WorldOperation::deadline() const {
  return std::max(deadline_, state_.core().last_moved() + state_.core().options().timeout);
}

bool WorldOperation::is_there_after_all(const std::function<bool()>& there,
                                        const std::function<std::string()>& missing) const {
  // Before the last look: who failed in what came later has done its part of this operation first.
  const bool aborted = state_.core().aborted();
  const bool late = Clock::now() >= deadline();
  if (there()) return true;
  if (aborted) fail_if_aborted();
  if (!late) return false;
  fail(ErrorCode::kTimeout, name(), ": ", missing(), " did not arrive within ",
       state_.core().options().timeout.count(), " ms");
}

void WorldOperation::wait(SharedCounter& counter, std::uint64_t target,
                          const std::function<std::string()>& missing) {
  constexpr std::chrono::milliseconds kNone{0};
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline() - Clock::now());
    if (counter.wait(target, std::clamp(left, kNone, kLook))) return;
  } while (!is_there_after_all([&] { return counter.value() >= target; }, missing));
}

void WorldOperation::wait(const std::function<bool()>& done,
                          const std::function<std::string()>& missing) {
  constexpr int kYields = 200;
  for (int i = 0; !done(); ++i) {
    if (i < kYields) {
      std::this_thread::yield();
      continue;
    }
    if (is_there_after_all(done, missing)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void WorldOperation::arrive(Stage stage) {
  const bool may_have_read = static_cast<int>(far_peers_.size()) < size() - 1;
  if (stage == Stage::kDone && may_have_read) {
    fail_if_aborted();  // see [Note: a failing rank's buffers]
  }
  state_.member(rank()).progress.raise(target(stage));
}

void WorldOperation::await(int peer, Stage stage) {
  wait(state_.member(peer).progress, target(stage), [&] { return list_ranks({peer}); });
}

void WorldOperation::await_all(Stage stage) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < size(); ++peer) {
      if (near(peer) && state_.member(peer).progress.value() < target(stage)) ranks.push_back(peer);
    }
    return list_ranks(ranks);
  };
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    if (near(peer)) wait(state_.member(peer).progress, target(stage), missing);
  }
}

// ---- Buffers ------------------------------------------------------------------------------------

/// A buffer outside of the arena is seen by nobody else: it is copied in.
void WorldOperation::stage_input() {
  SharedArena& arena = state_.core().arena();
  const auto bytes = static_cast<std::size_t>(call_.input.bytes());
  offered_ = call_.input;
  const bool nothing = call_.input.data == nullptr || bytes == 0;  // of a barrier: no data at all
  if (nothing || arena.contains(call_.input.data, bytes)) return;
  const auto is_near = [&](int peer) { return peer != rank() && near(peer); };
  bool seen = false;
  for (int peer = 0; peer < size(); ++peer) seen = seen || is_near(peer);
  if (!seen) return;
  staging_ = arena.allocate(bytes);
  offered_.data = static_cast<std::byte*>(staging_);
  copy_bytes(offered_.data, call_.input.data, bytes);
  copied_bytes_ += call_.input.bytes();
}

/// Where near peers find `offered()`; nowhere, if it is empty or there are none.
SharedBuffer WorldOperation::offer() const {
  const SharedArena& arena = state_.core().arena();
  const bool visible = arena.contains(offered_.data, 1);
  return {.process = state_.core().process(),
          .offset = visible ? arena.offset_of(offered_.data) : 0};
}

void WorldOperation::unstage(const TensorView& staged, const TensorView& destination) {
  if (staged.data == destination.data) return;
  copy_bytes(destination.data, staged.data, static_cast<std::size_t>(destination.bytes()));
  copied_bytes_ += destination.bytes();
}

TensorView WorldOperation::offered_by(int peer) const {
  if (peer == rank()) return offered_;
  const SharedBuffer& buffer = state_.member(peer).buffer;
  TensorView view = call_.input.flat();  // the same dtype and size, or `meet` has thrown
  view.data = state_.core().at(buffer.process, buffer.offset);
  return view;
}

TensorView WorldOperation::landing(Shape shape, DType dtype) {
  TensorView view(static_cast<std::byte*>(nullptr), dtype, shape);
  landings_.emplace_back(static_cast<std::size_t>(view.bytes()) + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(landings_.back().data());
  view.data = landings_.back().data() + (64 - address % 64);
  copied_bytes_ += view.bytes();
  return view;
}

// ---- Meeting ------------------------------------------------------------------------------------

std::uint32_t WorldOperation::tag_to(int peer) const {
  const MessageUse use = !pairwise()                           ? MessageUse::kCollective
                         : call_.kind == CollectiveKind::kSend ? MessageUse::kSend
                                                               : MessageUse::kAnswer;
  return state_.tag(rank(), peer, use);
}

std::uint32_t WorldOperation::tag_from(int peer) const {
  const MessageUse use = !pairwise()                           ? MessageUse::kCollective
                         : call_.kind == CollectiveKind::kRecv ? MessageUse::kSend
                                                               : MessageUse::kAnswer;
  return state_.tag(peer, rank(), use);
}

void WorldOperation::ask_for_summaries() {
  far_.resize(far_peers_.size());
  for (std::size_t i = 0; i < far_peers_.size(); ++i) {
    const int peer = far_peers_[i];
    far_[i].received =
        state_.core().messenger().receive(state_.core().process_of(state_.world_rank(peer)),
                                          tag_from(peer), &far_[i].theirs, sizeof(CallSummary));
  }
}

void WorldOperation::send_summaries() {
  if (far_.empty()) ask_for_summaries();
  for (std::size_t i = 0; i < far_peers_.size(); ++i) {
    const int peer = far_peers_[i];
    far_[i].sent = state_.core().messenger().send(state_.core().process_of(state_.world_rank(peer)),
                                                  tag_to(peer), &own_summary_, sizeof(CallSummary));
  }
}

void WorldOperation::check_summaries() {
  for (std::size_t i = 0; i < far_peers_.size(); ++i) {
    wait([&] { return far_[i].received->done() && far_[i].sent->done(); },
         [&] { return list_ranks({far_peers_[i]}); });
    check_same(far_peers_[i], far_[i].theirs);
  }
}

void WorldOperation::expect(int peer, const TensorView& destination) {
  if (far_.empty()) ask_for_summaries();  // they come first
  if (destination.bytes() == 0) return;
  transfers_.emplace_back(
      peer, state_.core().messenger().receive(state_.core().process_of(state_.world_rank(peer)),
                                              tag_from(peer), destination.data,
                                              static_cast<std::size_t>(destination.bytes())));
}

void WorldOperation::check_same(int peer, const CallSummary& other) const {
  if (fits(own_summary_, other)) return;  // the usual case must not pay for the text
  fail(ErrorCode::kInvalidArgument, name(), ": rank ", rank(), " issued ", describe(own_summary_),
       " but rank ", peer, " issued ", describe(other),
       pairwise() ? "" : "; all ranks must issue the same operations in the same order");
}

void WorldOperation::meet() {
  stage_input();
  SharedMember& own = state_.member(rank());
  own.buffer = offer();
  own.call = own_summary_;
  arrive(Stage::kPublished);

  send_summaries();
  await_all(Stage::kPublished);
  check_summaries();
  for (int peer = 0; peer < size(); ++peer) {
    if (near(peer)) check_same(peer, state_.member(peer).call);
  }
}

void WorldOperation::send(int peer, const TensorView& data) {
  if (data.bytes() == 0) return;
  transfers_.emplace_back(peer, state_.core().messenger().send(
                                    state_.core().process_of(state_.world_rank(peer)), tag_to(peer),
                                    data.data, static_cast<std::size_t>(data.bytes())));
}

void WorldOperation::deliver() {
  for (auto& [peer, transfer] : transfers_) {
    wait([&t = transfer] { return t->done(); }, [&, p = peer] { return list_ranks({p}); });
  }
  transfers_.clear();
}

// ---- Pairs --------------------------------------------------------------------------------------

void WorldOperation::send_to_peer() {
  const int peer = call_.peer;
  SharedChannel& channel = state_.channel(rank(), peer);
  const auto missing = [&] { return list_ranks({peer}); };
  wait(channel.taken, sequence_, missing);
  fail_if_aborted();
  if (!near(peer)) {
    send_summaries();
    check_summaries();
    send(peer, call_.input);
    deliver();
    channel.taken.raise(sequence_ + 1);
    return;
  }
  stage_input();
  channel.buffer = offer();
  channel.call = own_summary_;
  channel.posted.raise(sequence_ + 1);
  wait(channel.taken, sequence_ + 1, missing);
}

void WorldOperation::receive_from_peer() {
  const int peer = call_.peer;
  SharedChannel& channel = state_.channel(peer, rank());
  const auto missing = [&] { return list_ranks({peer}); };
  wait(channel.taken, sequence_, missing);
  if (!near(peer)) {
    expect(peer, call_.input);
    send_summaries();
    check_summaries();
    deliver();
    channel.taken.raise(sequence_ + 1);
    return;
  }
  wait(channel.posted, sequence_ + 1, missing);
  check_same(peer, channel.call);
  if (call_.input.bytes() > 0) {
    copy_bytes(call_.input.data, state_.core().at(channel.buffer.process, channel.buffer.offset),
               static_cast<std::size_t>(call_.input.bytes()));
  }
  fail_if_aborted();  // see [Note: a failing rank's buffers]
  channel.taken.raise(sequence_ + 1);
}

// ---- Running ------------------------------------------------------------------------------------

void WorldOperation::run(const std::function<void(WorldOperation&)>& body) {
  try {
    if (pairwise()) {
      fail_if_aborted();
      body(*this);
      return state_.core().note_move();
    }
    SharedMember& own = state_.member(rank());
    wait(own.finished, sequence_, [&] { return concat("its own operation #", sequence_ - 1); });
    fail_if_aborted();
    body(*this);
    own.finished.raise(sequence_ + 1);
    state_.core().note_move();
  } catch (const std::exception& error) {
    state_.core().abort(error.what());
    throw;
  }
}

}  // namespace tessera
