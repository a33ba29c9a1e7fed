#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/step_plan.h"

// [Note: progress] Ranks that differ along other axes than the pipeline's have one schedule, so one
// of each pipeline rank stands for all. Two consecutive steps are one graph: an action follows the
// one before it on its lane and those that it waits for; a message is one node of two ranks, and a
// sum over all ranks one node of all. Every node can happen if and only if the graph has no circle.
// Groups may block the host until an operation is over (threads that share a GPU do, and checked
// ones), so the same is shown of a graph in which an action follows the one before it in the list.
namespace tessera {
namespace {

/// The stage of an action that is of a layer: a pass through it, or a message or a copy between its
/// stage and another; -1: it is of none.
int stage_named_by(const Schedule& schedule, const Action& action) {
  int layer = action.layer;
  for (const auto* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      const ScheduleBuffer& buffer = schedule.buffer(operand);
      if (layer < 0 && buffer.is_activation()) layer = buffer.layer;
    }
  }
  if (layer < 0) return -1;
  const bool is_own = schedule.is_here(layer) || schedule.is_last(layer);
  return schedule.pipeline.stage_of(is_own ? layer : layer + 1);
}

/// "pipeline rank 1, stage 1: ", without a stage where the action has none, or there is no action.
std::string place_text(const Schedule& schedule, std::size_t rank, int action) {
  const int stage =
      action < 0 ? -1
                 : stage_named_by(schedule, schedule.actions[static_cast<std::size_t>(action)]);
  return concat("pipeline rank ", rank, stage < 0 ? std::string() : concat(", stage ", stage),
                ": ");
}

/// A part of what ranks must agree on.
struct HeaderPart {
  std::string_view name;
  bool (*is_same)(const Schedule& a, const Schedule& b);
};

template <auto... kMembers>
bool same(const Schedule& a, const Schedule& b) {
  return ((a.*kMembers == b.*kMembers) && ...);
}

bool same_stages(const Schedule& a, const Schedule& b) {
  PipelineOptions of_a = a.pipeline;
  of_a.rank = b.pipeline.rank;
  return of_a == b.pipeline;
}

bool same_layers(const Schedule& a, const Schedule& b) {
  return a.first_backward_layer == b.first_backward_layer &&
         std::ranges::equal(a.layers, b.layers, [](const auto& x, const auto& y) {
           return x.name == y.name && x.gradients == y.gradients && x.reads_batch == y.reads_batch;
         });
}

constexpr HeaderPart kHeaderParts[] = {
    {"purpose", same<&Schedule::purpose>},
    {"mesh", same<&Schedule::mesh>},
    {"placement", same<&Schedule::placement>},
    {"stages", same_stages},
    {"micro-steps", same<&Schedule::micro_steps>},
    {"dtypes", same<&Schedule::parameter_dtype, &Schedule::reduce_dtype>},
    {"reduction order", same<&Schedule::reduction_order, &Schedule::accumulate_unsharded>},
    {"optimizer's tensors", same<&Schedule::optimizer_tensors>},
    {"units", same<&Schedule::units>},
    {"layers", same_layers}};

struct Node {
  int rank = 0;
  int action = 0;  ///< those of the second step are numbered on
  auto operator<=>(const Node&) const = default;
};

class StepPlanCheck {
 public:
  StepPlanCheck(const StepPlan& step, std::vector<Violation>& violations)
      : ranks_(step.ranks), violations_(violations), before_(violations.size()) {}

  void run() {
    check_headers();
    if (good()) check_messages();
    if (good()) check_sums();
    if (!good()) return;
    number_nodes();
    check_progress(false);
    if (good()) check_progress(true);
  }

 private:
  bool good() const { return violations_.size() == before_; }
  template <typename... Args>
  void add(Rule rule, int action, int rank, const Args&... what) {
    const std::string place = place_text(of(rank), static_cast<std::size_t>(rank), action);
    violations_.push_back({rule, action, concat(place, what...)});
  }
  const Schedule& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  int count(int rank) const { return static_cast<int>(of(rank).actions.size()); }
  const Action& action(const Node& node) const {
    return of(node.rank).actions[static_cast<std::size_t>(node.action % count(node.rank))];
  }
  /// An action's name with its rank, for actions of another rank than the violation's.
  std::string full_name_of(const Node& node) const {
    const int stage = stage_named_by(of(node.rank), action(node));
    return concat(name_of(node), " of pipeline rank ", node.rank,
                  stage < 0 ? std::string() : concat(", stage ", stage));
  }
  std::string name_of(const Node& node) const {
    return concat("action ", node.action % count(node.rank), " (",
                  describe(of(node.rank), action(node)), ')');
  }

  void check_headers();
  std::string content_of(int rank, const Action& message) const;
  void check_messages();
  void check_sums();
  void number_nodes();
  void check_progress(bool blocking);
  void report_circle(const std::vector<int>& open, bool blocking);
  int node_of(const Node& node) const {
    return nodes_[static_cast<std::size_t>(node.rank)][static_cast<std::size_t>(node.action)];
  }
  std::vector<Node> before(const Node& node, bool blocking) const;

  const std::vector<Schedule>& ranks_;
  std::vector<Violation>& violations_;
  const std::size_t before_;
  std::map<PipelinePair, std::pair<std::vector<Node>, std::vector<Node>>> messages_;
  std::vector<std::vector<int>> nodes_;     ///< by rank and action of two steps: its node
  std::vector<std::vector<Node>> members_;  ///< of nodes
};

/// The schedules are those of one step.
void StepPlanCheck::check_headers() {
  const Schedule& first = ranks_.front();
  if (static_cast<int>(ranks_.size()) != first.pipeline_ranks()) {
    return add(Rule::kMessages, -1, 0, "there are ", ranks_.size(), " schedules for ",
               first.pipeline_ranks(), " pipeline ranks");
  }
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const Schedule& schedule = of(rank);
    if (schedule.pipeline.rank != rank) {
      add(Rule::kMessages, -1, rank, "its place has the schedule of pipeline rank ",
          schedule.pipeline.rank);
    }
    std::string others;
    for (const HeaderPart& part : kHeaderParts) {
      if (!part.is_same(schedule, first)) others += concat(others.empty() ? "" : ", ", part.name);
    }
    if (!others.empty()) {
      add(Rule::kMessages, -1, rank, "its schedule has other ", others, " than pipeline rank 0's");
    }
  }
}

/// A message's content, as both sides must name it, and its size.
std::string StepPlanCheck::content_of(int rank, const Action& message) const {
  const Schedule& schedule = of(rank);
  const Operand& operand = message.writes.empty() ? message.reads.front() : message.writes.front();
  const std::string size = concat(", ", message_bytes(schedule, message), " bytes in ",
                                  to_string(schedule.buffer(operand).format));
  const Role role = schedule.role(operand.buffer);
  if (operand.unit < 0) {
    return concat(
        role == Role::kActivationGradient ? "the gradient of the output of " : "the output of ",
        schedule.layers[static_cast<std::size_t>(message.layer)].name, " in micro-step ",
        message.micro_step, size);
  }
  // A unit is sent as itself, and received as the mirror of it.
  const ScheduleUnit& unit = schedule.units[static_cast<std::size_t>(operand.unit)];
  const bool is_mirrored = role == Role::kParameter && unit.mirrors >= 0;
  const ScheduleUnit& home =
      is_mirrored ? schedule.units[static_cast<std::size_t>(unit.mirrors)] : unit;
  std::string flats;
  for (const int flat : flats_of(schedule, operand)) {
    flats += '.' + unit.flats[static_cast<std::size_t>(flat)].name;
  }
  return concat("the ", to_string(role), " of ", home.name, flats, size);
}

void StepPlanCheck::check_messages() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    for (int a = 0; a < count(rank); ++a) {
      const Action& message = action({rank, a});
      if (!message.operation->is_message) continue;
      auto& [sent, received] = messages_[PipelinePair::of(message.lane, rank, message.peer)];
      (message.writes.empty() ? sent : received).push_back({rank, a});
    }
  }
  for (const auto& [pair, both] : messages_) {
    const auto& [sent, received] = both;
    for (std::size_t k = 0; k < std::max(sent.size(), received.size()); ++k) {
      if (k >= sent.size() || k >= received.size()) {
        const Node alone = k < sent.size() ? sent[k] : received[k];
        add(Rule::kMessages, alone.action, alone.rank, name_of(alone), " is message ", k,
            " from pipeline rank ", pair.from, " to ", pair.to, " on lane ", to_string(pair.lane),
            ", which the other never ", k < sent.size() ? "receives" : "sends");
        break;
      }
      const std::string what = content_of(sent[k].rank, action(sent[k]));
      const std::string expected = content_of(received[k].rank, action(received[k]));
      if (what == expected) continue;
      add(Rule::kMessages, sent[k].action, sent[k].rank, name_of(sent[k]), " sends ", what,
          ", as message ", k, " to pipeline rank ", pair.to, " on lane ", to_string(pair.lane),
          ", where ", full_name_of(received[k]), " receives ", expected);
      break;
    }
  }
}

/// All ranks meet in the same operations on scalars, in the same order.
void StepPlanCheck::check_sums() {
  const auto meetings = [&](int rank) {
    std::vector<Node> nodes;
    for (int a = 0; a < count(rank); ++a) {
      if (action({rank, a}).operation->meeting == Meeting::kWorld) nodes.push_back({rank, a});
    }
    return nodes;
  };
  const std::vector<Node> first = meetings(0);
  for (int rank = 1; rank < static_cast<int>(ranks_.size()); ++rank) {
    const std::vector<Node> others = meetings(rank);
    const auto [own, other] =
        std::ranges::mismatch(others, first, [&](const Node& a, const Node& b) {
          return action(a).operation == action(b).operation && action(a).lane == action(b).lane;
        });
    if (own == others.end() && other == first.end()) continue;
    const auto text = [&](const auto& nodes, auto node) {
      return node == nodes.end() ? std::string("nothing") : name_of(*node);
    };
    add(Rule::kMessages, own == others.end() ? -1 : own->action, rank, "as sum ",
        own - others.begin(), " over all ranks it has ", text(others, own),
        ", where pipeline rank 0 has ", text(first, other));
  }
}

/// Actions that meet are one node, in each of the two steps.
void StepPlanCheck::number_nodes() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    nodes_.emplace_back(static_cast<std::size_t>(2 * count(rank)), -1);
  }
  const auto add_node = [&](const std::vector<Node>& members) {
    for (const Node& member : members) {
      nodes_[static_cast<std::size_t>(member.rank)][static_cast<std::size_t>(member.action)] =
          static_cast<int>(members_.size());
    }
    members_.push_back(members);
  };
  for (int step = 0; step < 2; ++step) {
    const auto of_step = [&](Node node) {
      node.action += step * count(node.rank);
      return node;
    };
    for (const auto& [pair, both] : messages_) {
      for (std::size_t k = 0; k < both.first.size(); ++k) {
        add_node({of_step(both.first[k]), of_step(both.second[k])});
      }
    }
    std::vector<std::vector<Node>> meetings;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      std::size_t number = 0;
      for (int a = 0; a < count(rank); ++a) {
        if (action({rank, a}).operation->meeting != Meeting::kWorld) continue;
        if (number == meetings.size()) meetings.emplace_back();
        meetings[number++].push_back(of_step({rank, a}));
      }
    }
    for (const std::vector<Node>& members : meetings) add_node(members);
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      for (int a = 0; a < count(rank); ++a) {
        const Node node = of_step({rank, a});
        if (node_of(node) < 0) add_node({node});
      }
    }
  }
}

/// The actions that one follows: where lists are blocking, the one before it alone, since waits and
/// lanes point back in the list.
std::vector<Node> StepPlanCheck::before(const Node& node, bool blocking) const {
  const int actions = count(node.rank);
  std::vector<Node> before;
  if (blocking) {
    if (node.action > 0) before.push_back({node.rank, node.action - 1});
    return before;
  }
  const Action& now = action(node);
  const int first = node.action < actions ? 0 : actions;
  for (const int wait : now.waits) before.push_back({node.rank, first + wait});
  for (const int wait : now.previous_waits) {
    if (first > 0) before.push_back({node.rank, wait});
  }
  for (int a = node.action - 1; a >= 0; --a) {
    if (action({node.rank, a}).lane != now.lane) continue;
    before.push_back({node.rank, a});
    break;
  }
  return before;
}

void StepPlanCheck::check_progress(bool blocking) {
  std::vector<int> open(members_.size(), 0);  // how many others a node waits for
  std::vector<std::vector<int>> behind(members_.size());
  for (std::size_t n = 0; n < members_.size(); ++n) {
    for (const Node& member : members_[n]) {
      for (const Node& other : before(member, blocking)) {
        behind[static_cast<std::size_t>(node_of(other))].push_back(static_cast<int>(n));
        ++open[n];
      }
    }
  }
  std::queue<int> ready;
  for (std::size_t n = 0; n < open.size(); ++n) {
    if (open[n] == 0) ready.push(static_cast<int>(n));
  }
  std::size_t done = 0;
  for (; !ready.empty(); ready.pop(), ++done) {
    for (const int next : behind[static_cast<std::size_t>(ready.front())]) {
      if (--open[static_cast<std::size_t>(next)] == 0) ready.push(next);
    }
  }
  if (done < members_.size()) report_circle(open, blocking);
}

/// From any node that cannot happen, back along one that it waits for, until one comes again.
void StepPlanCheck::report_circle(const std::vector<int>& open, bool blocking) {
  const auto start = std::ranges::find_if(open, [](int waits) { return waits > 0; });
  int node = static_cast<int>(start - open.begin());
  std::vector<int> path;
  while (std::ranges::find(path, node) == path.end()) {
    path.push_back(node);
    for (const Node& member : members_[static_cast<std::size_t>(node)]) {
      const std::vector<Node> others = before(member, blocking);
      const auto other = std::ranges::find_if(others, [&](const Node& candidate) {
        return open[static_cast<std::size_t>(node_of(candidate))] > 0;
      });
      if (other == others.end()) continue;
      node = node_of(*other);
      break;
    }
  }
  path.erase(path.begin(), std::ranges::find(path, node));
  const Node& first = members_[static_cast<std::size_t>(path.front())].front();
  std::string text = concat(name_of(first), " can never begin");
  if (blocking) text += " where each action blocks its rank until it is over";
  constexpr std::size_t kMost = 4;
  for (std::size_t p = 1; p <= std::min(path.size(), kMost); ++p) {
    const Node& next = members_[static_cast<std::size_t>(path[p % path.size()])].front();
    text += concat(p == 1 ? ": it waits for " : ", which waits for ", full_name_of(next));
  }
  if (path.size() > kMost) text += concat(", and so on in a circle of ", path.size());
  add(Rule::kProgress, first.action % count(first.rank), first.rank, text);
}

}  // namespace

std::vector<Violation> validate(const StepPlan& step) {
  std::vector<Violation> violations;
  require(!step.ranks.empty(), ErrorCode::kInvalidArgument, "a step has a schedule at least");
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    for (Violation& violation : validate(step.ranks[rank])) {
      if (step.ranks.size() > 1) {
        // An action without form has no field that need mean anything.
        const int action = violation.rule == Rule::kForm ? -1 : violation.action;
        violation.message = concat(place_text(step.ranks[rank], rank, action), violation.message);
      }
      violations.push_back(std::move(violation));
    }
  }
  const auto malformed = [](const Violation& violation) { return violation.rule == Rule::kForm; };
  if (std::ranges::any_of(violations, malformed)) return violations;
  StepPlanCheck(step, violations).run();
  return violations;
}

}  // namespace tessera
