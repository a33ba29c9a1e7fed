#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "world/messenger.h"
#include "world/world_group_state.h"

namespace tessera {

/// One rank's run through one operation of a group, on its lane.
///
/// Peers are near or far. A near one's buffer is read where it lies. Far ones get and send
/// messages: first each end's CallSummary, then the data. A rank asks for the data before it sends
/// its summary, so that data always finds its place.
///
/// [Note: a failing rank's buffers] A rank that fails leaves early and frees its buffers. Near
/// peers may still read them, since an arena stays mapped for good, and what they read may be
/// nonsense. But the rank tells of its failure before it leaves: a reader looks for that after its
/// last read, and only then says that it is done. What a rank tells after all have said so belongs
/// to what came later, and fails this operation nowhere.
class WorldOperation {
 public:
  WorldOperation(const WorldGroupState& state, std::uint64_t sequence, const CollectiveCall& call);
  WorldOperation(const WorldOperation&) = delete;
  WorldOperation& operator=(const WorldOperation&) = delete;
  ~WorldOperation();

  int rank() const { return state_.rank(); }
  int size() const { return state_.size(); }
  bool near(int peer) const { return state_.near(peer); }
  const CollectiveCall& call() const { return call_; }
  const std::vector<int>& far_peers() const { return far_peers_; }

  /// The buffer that peers read: call().input, or a staged copy of it.
  TensorView offered() const { return offered_; }
  /// The buffer that near `peer` offers.
  TensorView offered_by(int peer) const;
  /// Bytes that were copied into and out of staging so far.
  std::int64_t copied_bytes() const { return copied_bytes_; }
  /// Copies from `offered()` back to where the caller wants it, if that is elsewhere.
  void unstage(const TensorView& staged, const TensorView& destination);

  /// Asks for a message of far `peer`; it is there after `deliver`. Before `meet`.
  void expect(int peer, const TensorView& destination);
  /// Memory for a message that has no other place; lives as long as the operation.
  TensorView landing(Shape shape, DType dtype);
  /// Waits for this rank's previous operation, offers the buffer, waits for all ranks and compares
  /// their calls. Throws Error{kInvalidArgument} if they differ.
  void meet();
  /// Sends to far `peer`. After `meet`.
  void send(int peer, const TensorView& data);
  /// Waits until everything that was sent and expected is through.
  void deliver();

  void arrive(Stage stage);
  void await(int peer, Stage stage);
  void await_all(Stage stage);

  /// The two ends of a pair: `sequence` counts the calls on it.
  void send_to_peer();
  void receive_from_peer();

  /// Runs `body`; if it throws, aborts the run before the exception goes on.
  void run(const std::function<void(WorldOperation&)>& body);

 private:
  bool pairwise() const { return is_pairwise(call_.kind); }
  std::uint32_t tag_to(int peer) const;
  std::uint32_t tag_from(int peer) const;
  std::string name() const;
  std::uint64_t target(Stage stage) const { return progress_at(sequence_, stage); }
  void stage_input();
  SharedBuffer offer() const;
  void check_same(int peer, const CallSummary& other) const;
  void wait(SharedCounter& counter, std::uint64_t target,
            const std::function<std::string()>& missing);
  void wait(const std::function<bool()>& done, const std::function<std::string()>& missing);
  /// The last look of a wait: whether what it waits for is there. Throws if it is not, and the run
  /// was aborted or the deadline has passed before the look.
  bool is_there_after_all(const std::function<bool()>& there,
                          const std::function<std::string()>& missing) const;
  /// Later while other operations of the run end.
  std::chrono::steady_clock::time_point deadline() const;
  void fail_if_aborted() const;

  struct FarSummary {
    CallSummary theirs{};
    std::shared_ptr<Messenger::Transfer> received{};
    std::shared_ptr<Messenger::Transfer> sent{};
  };
  void ask_for_summaries();
  void send_summaries();
  /// Waits for those of far peers, and compares them.
  void check_summaries();

  const WorldGroupState& state_;
  const std::uint64_t sequence_;
  const CollectiveCall& call_;
  const std::chrono::steady_clock::time_point deadline_;
  CallSummary own_summary_;
  TensorView offered_{};
  void* staging_ = nullptr;
  std::vector<int> far_peers_;
  std::vector<FarSummary> far_;  // as far_peers_
  std::vector<std::vector<std::byte>> landings_;
  std::vector<std::pair<int, std::shared_ptr<Messenger::Transfer>>> transfers_;  // with their peer
  std::int64_t copied_bytes_ = 0;
};

}  // namespace tessera
