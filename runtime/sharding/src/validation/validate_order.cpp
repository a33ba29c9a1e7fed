#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "validation/validation.h"

namespace tessera {
namespace {

std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

// By lane, the last action that has finished before something else starts; -1: none.
struct Clock {
  Clock() { last.fill(-1); }
  void join(const Clock& other) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      last[lane] = std::max(last[lane], other.last[lane]);
    }
  }
  std::array<int, kLanes> last{};
};

// The actions that have touched a buffer.
struct Access {
  int writer = -1;  // the last one
  Clock readers;    // since then, the last one of each lane
};

// Two accesses to a buffer, one of them writing, in an order that nothing fixes.
struct Unordered {
  int other = 0;  // the earlier one, by number
  int buffer = 0;
  const char* does = "";  // "reads" or "writes"
  const char* did = "";   // "read" or "written": by the other one
};

// Walks the actions of two steps, which follow each other without a pause, with a vector clock per
// lane; those of the second are numbered on. Only the last writer and each lane's last reader of a
// buffer must be ordered before an access: earlier ones are ordered before those, or were reported
// when those were checked. Ranges of a buffer are not told apart.
class OrderWalk {
 public:
  OrderWalk(const Schedule& schedule, std::vector<Violation>& violations)
      : s_(schedule),
        violations_(violations),
        count_(static_cast<int>(schedule.actions.size())),
        buffers_(schedule.buffers.size()) {
    finished_.reserve(2 * s_.actions.size());
  }

  void run() {
    for (now_ = 0; now_ < 2 * count_; ++now_) {
      const Action& action = action_of(now_);
      const std::size_t lane = index_of(action.lane);
      before_ = lanes_[lane];
      const int first = now_ < count_ ? 0 : count_;
      for (const int wait : action.waits) wait_for(first + wait);
      if (first > 0) {
        for (const int wait : action.previous_waits) wait_for(wait);
      }
      for (const Operand& operand : action.reads) read(operand.buffer, lane);
      for (const Operand& operand : action.writes) write(operand.buffer);
      report();
      lanes_[lane] = before_;
      lanes_[lane].last[lane] = now_;
      finished_.push_back(lanes_[lane]);
    }
  }

 private:
  const Action& action_of(int number) const {
    return s_.actions[static_cast<std::size_t>(number % count_)];
  }
  void wait_for(int number) { before_.join(finished_[static_cast<std::size_t>(number)]); }

  void require_after(int other, const char* did, const char* does, int buffer) {
    if (other < 0 || other == now_) return;
    if (other >= count_) return;  // as in the first step
    if (before_.last[index_of(action_of(other).lane)] >= other) return;
    found_.push_back({.other = other, .buffer = buffer, .does = does, .did = did});
  }

  void read(int buffer, std::size_t lane) {
    Access& access = buffers_[static_cast<std::size_t>(buffer)];
    require_after(access.writer, "written", "reads", buffer);
    access.readers.last[lane] = now_;
  }

  void write(int buffer) {
    Access& access = buffers_[static_cast<std::size_t>(buffer)];
    require_after(access.writer, "written", "writes", buffer);
    for (const int reader : access.readers.last) require_after(reader, "read", "writes", buffer);
    access = {.writer = now_, .readers = {}};
  }

  std::string name_of(int number) const {
    return concat("action ", number % count_, " (", describe(s_, action_of(number)), ")");
  }

  void report() {
    std::ranges::stable_sort(found_, std::greater<>(), &Unordered::other);
    for (const Unordered& u : found_) {
      violations_.push_back(
          {Rule::kHappensBefore, now_ % count_,
           concat(name_of(now_), ": ", u.does, ' ', s_.name_of(u.buffer), " without waiting until ",
                  name_of(u.other), now_ >= count_ ? " of the previous step" : "", " has ", u.did,
                  " it")});
    }
    found_.clear();
  }

  const Schedule& s_;
  std::vector<Violation>& violations_;
  const int count_;
  std::vector<Access> buffers_;
  int now_ = 0;
  Clock before_;  // what has finished when action now_ starts
  std::array<Clock, kLanes> lanes_{};
  std::vector<Clock> finished_;  // by action: what has finished when it has
  std::vector<Unordered> found_;
};

}  // namespace

void check_happens_before(const Schedule& schedule, std::vector<Violation>& violations) {
  OrderWalk(schedule, violations).run();
}

}  // namespace tessera
