#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/sharding/passes.h"

// [Note: prefetch]
//
// 1. A *residency* is a stretch of passes during which a unit's parameters stay in a buffer. Uses
//    of a unit are joined into one residency where releasing it in between would be pointless: the
//    next use is (nearly) the next pass, it would be brought again before the release anyway, or
//    the policy keeps parameters until backward.
// 2. Residencies are numbered by first use; those that begin with the same pass share a number.
//    Number i is brought by actions just before the pass with which number i - depth begins. So
//    `depth` of them are in flight ahead of use, and all-gather i + 1 is issued before the reshard
//    or the reduction of i.
// 3. Decoded parameters are in a buffer around each use.
// 4. A layer's input on the host comes back as many passes ahead of its backward as its memory is
//    given back after its forward, so that both copies are hidden. Where that leaves no pass in
//    between, the input stays.
namespace tessera {
namespace {

/// Contents of one format, or decoded ones: each is joined and issued for itself.
struct Ring {
  Role role = Role::kParameter;
  DType format = DType::kFloat32;
  bool operator==(const Ring&) const = default;

  bool is_decoded() const { return role == Role::kDecoded; }
};

Ring ring_of(const ScheduleBuffer& buffer) { return {buffer.role, buffer.format}; }

/// A unit's contents in a ring: they come and go together.
struct Piece {
  int unit = 0;
  FlatSet flats{};
  auto operator<=>(const Piece&) const = default;
};

/// A stretch of passes [first, last] during which a unit's parameters are in a buffer.
struct Residency {
  Piece piece{};
  int buffer = 0;
  bool is_cut = false;  ///< it is gathered, not only copied
  int first = 0;
  int last = 0;
  int issue = 0;                  ///< the pass before which `actions` are issued
  std::vector<Action> actions{};  ///< that bring it
  std::vector<int> joined{};      ///< buffers of later uses, which it stands for
};

/// A layer's input that waits on the host, from its forward to its backward.
struct WaitingInput {
  int forward = 0;
  int backward = 0;
  Action leave{};  ///< the copy to the host
  std::vector<Action> release{};
  std::vector<Action> come_back{};
};

/// By pass, the number of its burst: of passes between which some micro-step has passed forward and
/// not yet backward. Without a pipeline a micro-step is one.
std::vector<int> bursts_of(const std::vector<Action>& passes) {
  std::map<int, int> last;  // by micro-step: its last pass
  for (int p = 0; p < static_cast<int>(passes.size()); ++p) {
    last[passes[static_cast<std::size_t>(p)].micro_step] = p;
  }
  std::vector<int> bursts;
  int end = -1;  // of the burst at hand
  int number = -1;
  for (int p = 0; p < static_cast<int>(passes.size()); ++p) {
    const int micro_step = passes[static_cast<std::size_t>(p)].micro_step;
    if (p > end) ++number;
    end = std::max(end, last[micro_step]);
    bursts.push_back(number);
  }
  return bursts;
}

class Residencies {
 public:
  Residencies(const Schedule& schedule, Ring ring, const std::vector<Action>& passes)
      : passes_(passes),
        keeps_(!schedule.reshard_after_forward && !ring.is_decoded()),
        bursts_(bursts_of(passes)),
        forward_(ring.is_decoded() ? 0 : schedule.policy.prefetch_forward),
        backward_(ring.is_decoded() ? 0 : schedule.policy.prefetch_backward) {}

  void add(Residency use);
  void issue();
  const std::vector<Residency>& all() const { return all_; }

 private:
  bool is_kept(const Residency& residency, int next) const;
  int micro_step(int pass) const { return passes_[static_cast<std::size_t>(pass)].micro_step; }
  static void join(Residency& residency, Residency next) {
    residency.last = next.last;
    residency.joined.push_back(next.buffer);
    std::ranges::move(next.joined, std::back_inserter(residency.joined));
  }

  const std::vector<Action>& passes_;
  const bool keeps_;
  const std::vector<int> bursts_;  ///< by pass
  const int forward_, backward_;
  std::vector<Residency> all_;         ///< by first use
  std::map<Piece, std::size_t> open_;  ///< the one of its last use
};

/// Contents that nothing cuts come from the host: they are not kept, to save memory.
bool Residencies::is_kept(const Residency& residency, int next) const {
  if (next - residency.last <= 2) return true;  // at most one pass in between: as good as kept
  return keeps_ && residency.is_cut &&
         bursts_[static_cast<std::size_t>(residency.last)] ==
             bursts_[static_cast<std::size_t>(next)];
}

void Residencies::add(Residency use) {
  const auto known = open_.find(use.piece);
  if (known != open_.end() && is_kept(all_[known->second], use.first)) {
    return join(all_[known->second], std::move(use));
  }
  open_[use.piece] = all_.size();
  all_.push_back(std::move(use));
}

/// Sets the issue points; joins a residency to the unit's previous one of the same micro-step where
/// it would be issued before that one ends. Joining renumbers, so it repeats until nothing changes.
void Residencies::issue() {
  for (bool joined = true; joined;) {
    joined = false;
    std::vector<Residency> kept;
    std::map<Piece, std::size_t> previous;
    std::vector<int> firsts;  // by number: the pass that it begins with
    int last_issue = 0;
    for (Residency& r : all_) {
      if (firsts.empty() || firsts.back() != r.first) firsts.push_back(r.first);
      const std::size_t number = firsts.size() - 1;
      const Action& pass = passes_[static_cast<std::size_t>(r.first)];
      const auto depth =
          static_cast<std::size_t>(pass.operation->parts.forward ? forward_ : backward_);
      r.issue = std::max(last_issue, number < depth ? 0 : firsts[number - depth]);
      const auto earlier = previous.find(r.piece);
      if (earlier != previous.end() && r.issue <= kept[earlier->second].last) {
        Residency& last = kept[earlier->second];
        if (micro_step(last.last) == micro_step(r.first)) {
          join(last, std::move(r));
          joined = true;
          continue;
        }
        r.issue = last.last + 1;  // micro-steps gather anew: their bytes do not depend on depth
      }
      last_issue = r.issue;
      previous[r.piece] = kept.size();
      kept.push_back(std::move(r));
    }
    all_ = std::move(kept);
  }
}

class Prefetch {
 public:
  explicit Prefetch(Schedule& schedule) : schedule_(schedule) {}

  void run();

 private:
  /// Actions around one pass, in the order in which they are issued.
  struct Surroundings {
    std::vector<Action> releases, returns, brought, decoded;  // before it
    std::vector<Action> leaves, reshards, rest;               // after it
  };

  void take_apart();
  void move_inputs();
  void move_parameters();
  void put_together();
  void bring(std::vector<Action> actions, int pass);
  Surroundings& around(int pass) { return around_[static_cast<std::size_t>(pass)]; }

  Schedule& schedule_;
  std::vector<Action> before_;  ///< the first pass
  std::vector<Action> passes_;
  std::vector<Surroundings> around_;
  std::vector<std::pair<Ring, Residency>> uses_;
  std::map<int, WaitingInput> inputs_;  ///< by activation
  std::map<int, int> buffers_;          ///< of uses that are joined: where these are instead
};

/// A use begins with the actions that bring it, before its pass.
void Prefetch::bring(std::vector<Action> actions, int pass) {
  const Operand& whole = actions.back().writes.front();
  const Ring ring = ring_of(schedule_.buffer(whole));
  uses_.emplace_back(ring, Residency{.piece = {whole.unit, schedule_.flats(whole)},
                                     .buffer = whole.buffer,
                                     .is_cut = !actions.back().axes.empty(),
                                     .first = pass,
                                     .last = pass,
                                     .actions = std::move(actions)});
}

void Prefetch::take_apart() {
  std::vector<Action> pending;  // on its way to a buffer for layers
  for (Action& action : schedule_.actions) {
    const Operation* const operation = action.operation;
    const int next = static_cast<int>(passes_.size());
    if (operation->is_pass) {
      passes_.push_back(std::move(action));
      around_.emplace_back();
      continue;
    }
    const bool is_packed = operation == &operations::kPack || operation == &operations::kUnpack;
    if (operation->is_message || is_packed) {
      (passes_.empty() ? before_ : around_.back().rest).push_back(std::move(action));
      continue;
    }
    const ScheduleBuffer& target = schedule_.buffer(action.writes.front());
    const int activation = action.writes.front().buffer;
    if (operation == &operations::kReshard) {
      continue;  // follows from the residencies
    }
    if (target.holds_for_layers() || target.role == Role::kDecoded) {
      pending.push_back(std::move(action));
      if (target.kind == BufferKind::kWholeSlot) bring(std::exchange(pending, {}), next);
    } else if (target.kind == BufferKind::kInput) {
      const int left = action.reads.front().buffer;
      inputs_[left] = {.forward = next - 1, .leave = std::move(action)};
    } else if (operation == &operations::kRelease) {
      inputs_.at(activation).release.push_back(std::move(action));
    } else if (operation == &operations::kReserve ||
               (operation == &operations::kCopy && target.is_activation())) {
      inputs_.at(activation).backward = next;
      inputs_.at(activation).come_back.push_back(std::move(action));
    } else {
      (passes_.empty() ? before_ : around_.back().rest).push_back(std::move(action));
    }
  }
}

void append(std::vector<Action>& to, std::vector<Action> actions) {
  std::ranges::move(actions, std::back_inserter(to));
}

void Prefetch::move_inputs() {
  const int ahead = schedule_.policy.prefetch_host;
  std::vector<WaitingInput*> by_backward;
  for (auto& [activation, input] : inputs_) by_backward.push_back(&input);
  std::ranges::sort(by_backward, {}, &WaitingInput::backward);
  for (WaitingInput* const input : by_backward) {
    const int release = input->forward + 1 + ahead, reserve = input->backward - ahead;
    if (release > reserve) continue;
    around(input->forward).leaves.push_back(std::move(input->leave));
    append(around(release).releases, std::move(input->release));
    append(around(reserve).returns, std::move(input->come_back));
  }
}

void Prefetch::move_parameters() {
  std::vector<Ring> rings;
  for (const auto& [ring, use] : uses_) {
    if (std::ranges::find(rings, ring) == rings.end()) rings.push_back(ring);
  }
  std::ranges::sort(rings, {}, [](const Ring& ring) {  // quantised ones after others
    return std::tuple(ring.is_decoded(), ring.format == DType::kUInt8, ring.format);
  });
  for (const Ring& ring : rings) {
    Residencies residencies(schedule_, ring, passes_);
    for (auto& [of, use] : uses_) {
      if (of == ring) residencies.add(std::move(use));
    }
    residencies.issue();
    for (const Residency& r : residencies.all()) {
      Surroundings& first = around(r.issue);
      append(ring.is_decoded() ? first.decoded : first.brought, r.actions);
      around(r.last).reshards.push_back(
          {.operation = &operations::kReshard, .writes = {r.actions.back().writes.front()}});
      for (const int buffer : r.joined) buffers_[buffer] = r.buffer;
    }
  }
}

void Prefetch::put_together() {
  std::vector<Action>& actions = schedule_.actions;
  actions = std::move(before_);
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    Surroundings& here = around_[p];
    for (std::vector<Action>* const before :
         {&here.releases, &here.returns, &here.brought, &here.decoded}) {
      append(actions, std::move(*before));
    }
    actions.push_back(std::move(passes_[p]));
    for (std::vector<Action>* const after : {&here.leaves, &here.reshards, &here.rest}) {
      append(actions, std::move(*after));
    }
  }
  for (Action& action : actions) {
    for (Operand& operand : action.reads) {
      const auto joined = buffers_.find(operand.buffer);
      if (joined != buffers_.end()) operand.buffer = joined->second;
    }
  }
}

void Prefetch::run() {
  take_apart();
  move_inputs();
  move_parameters();
  put_together();
}

}  // namespace

Schedule prefetch(Schedule schedule) {
  Prefetch(schedule).run();
  return schedule;
}

}  // namespace tessera
