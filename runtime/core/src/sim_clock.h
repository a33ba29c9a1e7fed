#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"

namespace tessera::sim {

class Clock;

/// An event: over once streams have arrived at it as often as they are to.
class Moment : public Event::State {
 public:
  explicit Moment(std::weak_ptr<const Clock> of) : clock(std::move(of)) {}
  /// The clock runs when a stream is synchronized.
  void synchronize() override {}

  const std::weak_ptr<const Clock> clock;
  int to_submit = 1;  ///< arrivals that no stream has yet
  int to_come = 1;    ///< arrivals that have not run
  /// The error of a stream that waits for an announced event in vain.
  std::function<Error()> overdue{};
};

/// The next entry of a stream: a task, an event to wait for, or one to arrive at.
struct Item {
  enum class Kind : std::uint8_t { kTask, kWait, kArrive } kind = Kind::kTask;
  Work work{};
  std::string name{};  ///< of the work, which may run after its stream and Work::name are gone
  std::shared_ptr<Moment> moment{};
};

/// A stream's queue, which outlives it: work that was submitted runs.
struct Queue {
  StreamOptions options;
  bool has_stream = true;
  std::deque<Item> items{};
  bool runs = false;  ///< the task at the front does, since `begin`
  double begin = 0.0;
  double speed = 1.0;
  double end = 0.0;  ///< if its speed stays
};

/// A device as its clock sees it.
struct Timeline {
  SimSpeeds speeds;
  bool has_device = true;
  std::vector<std::shared_ptr<Queue>> queues{};
  std::vector<SimSpan> spans{};
  bool changed = false;  ///< which tasks run, since their speeds were set
};

/// Runs the queues of all devices side by side, from one begin or end of a task to the next.
class Clock {
 public:
  void add(std::shared_ptr<Timeline> timeline) { timelines_.push_back(std::move(timeline)); }

  /// Until no queue can go on.
  void run();
  /// Why a queue that run() left cannot go on.
  Error explain(const Queue& queue) const;

 private:
  bool settle();
  bool settle_first(Timeline& timeline, Queue& queue);
  void report(Timeline& timeline, Queue& queue) const;
  bool advance();
  void set_speeds(const Timeline& timeline) const;
  void drop_finished();
  const Queue& arriving_at(const Moment& moment) const;

  std::vector<std::shared_ptr<Timeline>> timelines_;
  double now_ = 0.0;
};

}  // namespace tessera::sim
