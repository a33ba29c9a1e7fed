#include <algorithm>
#include <array>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "validation.h"

namespace tessera {
namespace {

std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

// Of each lane, the last action that has finished before something else starts; -1: none.
using Clock = std::array<int, kLanes>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    clock[lane] = std::max(clock[lane], other[lane]);
  }
}

// Who has touched a buffer.
struct Access {
  int writer = -1;            // the last one
  Clock readers{-1, -1, -1};  // since then, the last one of each lane
};

// Walks the actions with a vector clock per lane. Only the last writer and each lane's last reader
// of a buffer must be ordered before an access: earlier ones are ordered before those, or were
// reported when those were checked. Ranges of a buffer are not told apart.
class OrderWalk {
 public:
  OrderWalk(const Schedule& schedule, std::vector<Violation>& violations)
      : s_(schedule),
        violations_(violations),
        buffers_(static_cast<std::size_t>(schedule.buffer_count())) {
    finished_.reserve(s_.actions.size());
  }

  void run() {
    for (std::size_t i = 0; i < s_.actions.size(); ++i) {
      now_ = static_cast<int>(i);
      const Action& action = s_.actions[i];
      const std::size_t lane = index_of(action.lane);
      before_ = lanes_[lane];
      for (const int wait : action.waits) join(before_, finished_[static_cast<std::size_t>(wait)]);
      for (const Operand& operand : action.reads) read(operand.buffer, lane);
      for (const Operand& operand : action.writes) write(operand.buffer);
      lanes_[lane] = before_;
      lanes_[lane][lane] = now_;
      finished_.push_back(lanes_[lane]);
    }
  }

 private:
  void require_after(int other, const char* did, const char* does, int buffer) {
    if (other < 0 || other == now_) return;
    const Action& earlier = s_.actions[static_cast<std::size_t>(other)];
    if (before_[index_of(earlier.lane)] >= other) return;
    const Action& action = s_.actions[static_cast<std::size_t>(now_)];
    violations_.push_back({Rule::kHappensBefore, now_,
                           concat("action ", now_, " (", describe(s_, action), "): ", does, ' ',
                                  s_.name_of(buffer), " without waiting until action ", other, " (",
                                  describe(s_, earlier), ") has ", did, " it")});
  }

  void read(int buffer, std::size_t lane) {
    Access& access = buffers_[static_cast<std::size_t>(buffer)];
    require_after(access.writer, "written", "reads", buffer);
    access.readers[lane] = now_;
  }

  void write(int buffer) {
    Access& access = buffers_[static_cast<std::size_t>(buffer)];
    require_after(access.writer, "written", "writes", buffer);
    for (const int reader : access.readers) require_after(reader, "read", "writes", buffer);
    access = {.writer = now_};
  }

  const Schedule& s_;
  std::vector<Violation>& violations_;
  std::vector<Access> buffers_;
  int now_ = 0;
  Clock before_{-1, -1, -1};  // what has finished when action now_ starts
  std::array<Clock, kLanes> lanes_{Clock{-1, -1, -1}, Clock{-1, -1, -1}, Clock{-1, -1, -1}};
  std::vector<Clock> finished_;  // by action: what has finished when it has
};

}  // namespace

void check_happens_before(const Schedule& schedule, std::vector<Violation>& violations) {
  OrderWalk(schedule, violations).run();
}

}  // namespace tessera
