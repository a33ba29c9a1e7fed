#include <algorithm>
#include <array>

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

// Something that actions read and write. Ranges of a buffer are not told apart.
struct Resource {
  std::string name;
  int writer = -1;            // the last one
  Clock readers{-1, -1, -1};  // since then, the last one of each lane
};

// Walks the actions with a vector clock per lane. Only the last writer and each lane's last reader
// of a resource must be ordered before an access: earlier ones are ordered before those, or were
// reported when those were checked.
class OrderWalk {
 public:
  OrderWalk(const Schedule& schedule, Findings& findings)
      : s_(schedule),
        findings_(findings),
        targets_(gradient_slots_by_unit(schedule)),
        slot_of_(schedule.units.size(), -1) {
    for (const ScheduleUnit& unit : s_.units) {
      parameters_.push_back({.name = "the parameters of " + unit.name});
      gradients_.push_back({.name = "the gradient buffer of " + unit.name});
      norms_.push_back({.name = "the norm of " + unit.name});
      optimizer_.push_back({.name = "the optimizer state of " + unit.name});
    }
    for (std::size_t i = 0; i < s_.parameter_slots.size(); ++i) {
      parameter_slots_.push_back({.name = concat("slot p", i)});
    }
    for (std::size_t i = 0; i < s_.gradient_slots.size(); ++i) {
      gradient_slots_.push_back({.name = concat("slot g", i)});
    }
    finished_.reserve(s_.actions.size());
  }

  void run() {
    for (std::size_t i = 0; i < s_.actions.size(); ++i) {
      now_ = static_cast<int>(i);
      const Action& action = s_.actions[i];
      const std::size_t lane = index_of(action.lane());
      before_ = lanes_[lane];
      for (int wait : action.waits) join(before_, finished_[static_cast<std::size_t>(wait)]);
      access(action);
      lanes_[lane] = before_;
      lanes_[lane][lane] = now_;
      finished_.push_back(lanes_[lane]);
    }
  }

 private:
  using Resources = std::vector<Resource>;
  static Resource& at(Resources& resources, int index) {
    return resources[static_cast<std::size_t>(index)];
  }

  void require_after(int other, const char* did, const char* does, const Resource& resource) {
    if (other < 0) return;
    if (before_[index_of(s_.actions[static_cast<std::size_t>(other)].lane())] >= other) return;
    findings_.add_at(now_, Rule::kHappensBefore, does, ' ', resource.name,
                     " without waiting until ", findings_.name(other), " has ", did, " it");
  }

  void read(Resource& resource) {
    require_after(resource.writer, "written", "reads", resource);
    const std::size_t lane = index_of(s_.actions[static_cast<std::size_t>(now_)].lane());
    resource.readers[lane] = now_;
  }

  void write(Resource& resource) {
    require_after(resource.writer, "written", "writes", resource);
    for (int reader : resource.readers) require_after(reader, "read", "writes", resource);
    resource.writer = now_;
    resource.readers = {-1, -1, -1};
  }

  void compute(const Action& action) {
    for (int unit : parameter_reads(s_, action)) {
      if (s_.placement.parameter.empty()) {
        read(at(parameters_, unit));
      } else if (const int slot = slot_of_[static_cast<std::size_t>(unit)]; slot >= 0) {
        read(at(parameter_slots_, slot));
      }
    }
    if (action.kind == ActionKind::kForward) return;
    if (action.kind == ActionKind::kLoss) {
      if (items_.writer < 0) {
        findings_.add_at(now_, Rule::kHappensBefore, "needs the number of items before ",
                         to_string(ActionKind::kCountItems), " has run");
      }
      read(items_);
      write(losses_);
    }
    for (int unit : s_.layers[static_cast<std::size_t>(action.layer)].gradients) {
      const int slot =
          targets_[static_cast<std::size_t>(unit * s_.micro_steps + action.micro_step)];
      write(slot < 0 ? at(gradients_, unit) : at(gradient_slots_, slot));
    }
  }

  void access(const Action& action) {
    switch (action.kind) {
      case ActionKind::kCountItems:
        return write(items_);
      case ActionKind::kUnshard:
        read(at(parameters_, action.unit));
        write(at(parameter_slots_, action.slot));
        slot_of_[static_cast<std::size_t>(action.unit)] = action.slot;
        return;
      case ActionKind::kForward:
      case ActionKind::kLoss:
      case ActionKind::kBackward:
        return compute(action);
      case ActionKind::kReshard:
        // From here on the slot's contents are void, which is as good as a write.
        write(at(parameter_slots_, action.slot));
        slot_of_[static_cast<std::size_t>(action.unit)] = -1;
        return;
      case ActionKind::kAccumulate:
      case ActionKind::kReduceScatter:
        if (action.slot >= 0) read(at(gradient_slots_, action.slot));
        return write(at(gradients_, action.unit));
      case ActionKind::kRound:
        read(at(gradients_, action.unit));
        return write(at(gradient_slots_, action.slot));
      case ActionKind::kAllReduce:
      case ActionKind::kGatherGradient:
        return write(at(gradients_, action.unit));
      case ActionKind::kSquares:
        read(at(gradients_, action.unit));
        return write(at(norms_, action.unit));
      case ActionKind::kExchange:
        read(losses_);
        for (Resource& norm : norms_) read(norm);
        return write(clip_factor_);
      case ActionKind::kUpdate:
        read(clip_factor_);
        read(at(gradients_, action.unit));
        write(at(optimizer_, action.unit));
        return write(at(parameters_, action.unit));
      case ActionKind::kGatherParameter:
        return write(at(parameters_, action.unit));
    }
  }

  const Schedule& s_;
  Findings& findings_;
  const std::vector<int> targets_;
  std::vector<int> slot_of_;  // of parameters, by unit

  Resources parameters_, gradients_, norms_, optimizer_;  // by unit
  Resources parameter_slots_, gradient_slots_;
  Resource items_{.name = "the number of items"};
  Resource losses_{.name = "the losses"};
  Resource clip_factor_{.name = "the clip factor"};

  int now_ = 0;
  Clock before_{-1, -1, -1};  // what has finished when action now_ starts
  std::array<Clock, kLanes> lanes_{Clock{-1, -1, -1}, Clock{-1, -1, -1}, Clock{-1, -1, -1}};
  std::vector<Clock> finished_;  // by action: what has finished when it has
};

}  // namespace

void check_happens_before(const Schedule& schedule, Findings& findings) {
  OrderWalk(schedule, findings).run();
}

}  // namespace tessera
