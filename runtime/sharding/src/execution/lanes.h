#pragma once

#include <array>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/groups.h"

namespace tessera {

/// True of Error{kAborted}: something else has failed first.
bool is_consequence(const std::exception_ptr& failure);

/// The streams of a rank, one per lane, and when their tasks ran.
class Lanes {
 public:
  /// Lanes that none of the schedules uses share the compute lane's stream, and so does one that
  /// only snapshots use, before open(). A failing task aborts `groups`, so that no peer waits for
  /// this rank.
  Lanes(Device& device, RankGroups& groups, const ExecutorOptions& options,
        std::span<const Schedule* const> schedules);

  /// Gives a lane a stream of its own, unless it has one. Nothing may be on the lanes.
  void open(Lane lane);
  Stream& of(Lane lane) { return *lanes_[static_cast<std::size_t>(lane)]; }

  /// Blocks until all lanes are idle. Rethrows a failure: the cause rather than its consequences
  /// (Error{kAborted}) on other lanes.
  void synchronize();
  /// True if a lane has failed, as far as is known.
  bool failed() const;

  /// "pipeline rank 1, stage 1: ", for the reason of a failure; nothing without a pipeline.
  std::string place_of_rank() const;

  /// Work that is issued on a lane from here to its next action belongs to none.
  void end_action(Lane lane);
  /// Spans of actions, one of each, since the last call, in order of lane and time.
  std::vector<ActionSpan> take_spans();

 private:
  StreamOptions stream_options(Lane lane);
  std::string failure_in_words(Lane lane, std::string_view what) const;

  Device& device_;
  RankGroups& groups_;
  const ExecutorOptions& options_;
  const std::vector<const Schedule*> schedules_;
  std::array<Work, kLanes> running_{};  ///< of a pipeline: the last action that a lane has begun
  std::array<std::vector<ActionSpan>, kLanes> spans_;  ///< written by each lane's worker
  std::array<Work, kLanes> current_{};                 ///< action that a lane is working on
  std::array<Stream*, kLanes> lanes_{};
  std::vector<std::unique_ptr<Stream>> streams_;  ///< last: their workers use the others
};

}  // namespace tessera
