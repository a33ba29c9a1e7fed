#pragma once

#include <cstdint>
#include <functional>

#include "thread/thread_group_state.h"

namespace tessera {

/// One rank's run through one operation of a thread group, on its lane.
///
/// [Note: reading peers] Ranks read each other's buffers where they lie, and write sums there. In
/// the good case a rank leaves an operation when every rank is kDone, so nobody touches its buffers
/// any more. A rank that fails leaves early, and its buffers may be freed right after. It therefore
/// first aborts the family and then waits until no peer is inside a Reading; a Reading does not
/// start in an aborted family, and lasts no longer than a copy.
class ThreadOperation {
 public:
  ThreadOperation(ThreadGroupState& state, int rank, std::uint64_t sequence,
                  const CollectiveCall& call);

  int rank() const { return rank_; }
  int size() const { return state_.size(); }
  const CollectiveCall& call() const { return call_; }
  /// The input of a peer that has published the same operation (see check_same).
  TensorView input_of(int peer) const {
    TensorView input = call_.input;
    input.data = state_.member(peer).published.input;
    return input;
  }
  /// Whose memory that input is: a GPU's ordinal, or -1.
  int gpu_of(int peer) const { return state_.member(peer).published.gpu; }

  /// Waits for this rank's previous operation, then lets peers see `call` (and `ready`, on GPUs).
  void publish(Event ready = {});
  void arrive(Stage stage);
  void await_all(Stage stage);
  /// On GPUs: how far this rank's stream is at `stage`, set before arriving; and how far a peer's.
  void set_passed(Stage stage, Event event) const;
  const Event& passed(int peer, Stage stage) const;

  /// Throws Error{kInvalidArgument} unless `peer` has published the same operation.
  void check_same(int peer) const;

  /// Throws Error{kInvalidArgument} unless a send and its recv, this and the peer's, fit.
  void check_pair(int peer, const CollectiveCall& call) const;
  /// Until transfer `sequence` of the channel to or from `call.peer` has been enqueued.
  void await_transfer(ThreadGroupState::Channel& channel);

  /// The two ends of a channel: `sequence` counts the calls on it.
  void send();
  void recv();

  /// Runs `body`; if it throws, takes the family down before the exception goes on.
  void run(const std::function<void(ThreadOperation&)>& body);

  /// While it lives, buffers of peers may be touched.
  class Reading {
   public:
    explicit Reading(const ThreadOperation& operation);
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    ~Reading() { readers_.fetch_sub(1, std::memory_order_release); }

   private:
    std::atomic<int>& readers_;
  };

 private:
  std::uint64_t target(Stage stage) const { return progress_at(sequence_, stage); }
  std::string name() const;
  void wait(Counter& counter, std::uint64_t target, const std::function<std::string()>& missing);
  void await_readers() const;
  [[noreturn]] void fail_aborted() const;

  ThreadGroupState& state_;
  const int rank_;
  const std::uint64_t sequence_;
  const CollectiveCall& call_;
  SteadyTime deadline_;
  const CallSummary own_summary_;
};

}  // namespace tessera
