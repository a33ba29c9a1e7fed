#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// Seconds of the steady clock: the time of all records.
double recorder_seconds();

/// The host thread's part of a step.
enum class HostPhase : std::uint8_t {
  kOutside,  ///< the step is over: the caller has its results
  kReads,    ///< asks the batch source for samples
  kIssues,   ///< puts actions on the lanes
  kWaits,    ///< for the step's results
  kMeets,    ///< exchanges with the other processes whether this step is to follow
};
inline constexpr int kHostPhases = 5;
std::string_view to_string(HostPhase phase);

/// One action of a run, or one phase of the host.
struct ActionRecord {
  int program = 0;        ///< whose schedule: an index, as Executor counts
  int action = 0;         ///< index in the schedule; of the host's records: HostPhase
  std::int64_t step = 0;  ///< as Executor::begin_step counts
  double begin = 0.0;     ///< recorder_seconds()
  std::optional<double> end{};
};

/// The last records of one thread. That thread writes, without a lock and without waiting; any
/// other may read meanwhile.
class ActionRing {
 public:
  static constexpr std::size_t kRecords = 1000;  ///< how many are kept

  ActionRing();

  // The thread that writes calls these.
  /// `goes_on`: what follows without being begun may belong to it, see resume().
  void begin(int program, int action, std::int64_t step, double seconds, bool goes_on = false);
  /// The last one goes on, if it was begun so: it has not ended after all.
  void resume();
  void end(double seconds);
  /// All have ended, the last at `seconds`, and none goes on.
  void settle(double seconds);

  /// The oldest first. A record that is being overwritten is left out.
  std::vector<ActionRecord> records() const;

 private:
  // More than are read: the thread that writes goes on meanwhile.
  static constexpr std::size_t kSlots = 1024;
  static_assert((kSlots & (kSlots - 1)) == 0 && kSlots > kRecords);
  struct Slot {
    std::atomic<std::int64_t> step{0};
    std::atomic<int> program{0}, action{0};
    std::atomic<double> begin{0.0}, end{0.0};
  };
  Slot& slot(std::uint64_t number) { return slots_[number & (kSlots - 1)]; }

  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> count_{0};  ///< of records that were begun
  std::uint64_t settled_ = 0;            ///< of these, all before have ended
  bool goes_on_ = false;
};

/// Recent work of one rank: its lanes' actions and its host's phases. Written all the time,
/// at a cost of some nanoseconds per action; read when something has gone wrong.
///
/// On the CPU a record begins and ends when the action does. On a CUDA device it begins when the
/// host issues the action and ends when the host has waited for the whole lane; a step that is
/// replayed as a CUDA graph has no records but the host's.
class FlightRecorder {
 public:
  struct Failure {
    double seconds = 0.0;
    std::string what;
  };
  /// Told of the rank's first failure, on the failing thread; must not throw.
  using OnFailure = std::function<void(const Failure&)>;
  /// After a failure: who keeps the others waiting, as far as the process's recorders tell, or
  /// nothing. From any thread.
  using Explain = std::function<std::string()>;
  explicit FlightRecorder(OnFailure on_failure = {}, Explain explain = {})
      : on_failure_(std::move(on_failure)), explain_(std::move(explain)) {}

  /// The lane that has the stream writes; lanes that share it write to the same ring.
  ActionRing& ring(Lane lane) { return rings_[static_cast<std::size_t>(lane)]; }
  const ActionRing& ring(Lane lane) const { return rings_[static_cast<std::size_t>(lane)]; }
  ActionRing& host() { return host_; }
  const ActionRing& host() const { return host_; }
  void begin_phase(HostPhase phase, std::size_t program, std::int64_t step);

  /// Keeps the first failure. Safe from any thread.
  void fail(std::string_view what) noexcept;
  std::optional<Failure> failure() const;
  std::string explanation() const { return explain_ ? explain_() : ""; }

 private:
  std::array<ActionRing, kLanes> rings_;
  ActionRing host_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // guarded by mutex_
  const OnFailure on_failure_;
  const Explain explain_;
};

}  // namespace tessera
