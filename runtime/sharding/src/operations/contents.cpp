#include "tessera/sharding/contents.h"

#include <algorithm>

#include "gradient_sums.h"
#include "operations/operation_rules.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

constexpr std::size_t kMostViolations = 16;  // what follows is mostly a consequence

bool is_parameter(Role role) {
  return role == Role::kParameter || role == Role::kDecoded || role == Role::kCode;
}

}  // namespace

bool cuts_further(const ShardNesting& nesting, AxisSet outer, AxisSet all) {
  if (outer == all || outer.empty()) return true;
  const std::vector<Axis> first = nesting.order(outer);
  const std::vector<Axis> both = nesting.order(all);
  return first.size() <= both.size() && std::equal(first.begin(), first.end(), both.begin());
}

ContentWalk::ContentWalk(const Schedule& schedule, std::vector<Violation>& violations,
                         GradientSums* sums)
    : schedule_(schedule),
      nesting_(schedule.mesh, schedule.placement),
      scales_(schedule),
      histories_(schedule),
      factored_(schedule),
      violations_(violations),
      sums_(sums),
      contents_(schedule.buffers.size()) {
  for (const ScheduleUnit& unit : schedule.units) flats_.emplace_back(unit.flats.size());
  for (int layer = static_cast<int>(schedule.layers.size()) - 1; layer >= 0; --layer) {
    if (!schedule.is_here(layer)) continue;
    for (const FlatId& id : schedule.layers[static_cast<std::size_t>(layer)].gradients) {
      at(id).writers.push_back(layer);
    }
  }
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
    const ScheduleBuffer& buffer = schedule.buffers[b];
    if (buffer.kind == BufferKind::kBatch) contents_[b] = {.valid = true, .role = buffer.role};
    if (buffer.kind == BufferKind::kHistory) contents_[b] = {.valid = true, .role = buffer.role};
    if (buffer.kind == BufferKind::kMaxima) {
      contents_[b] = {.valid = true, .role = buffer.role, .partial = histories_.axes()};
    }
    if (!buffer.persistent) continue;
    contents_[b] = {.valid = true,
                    .role = buffer.role,
                    .unit = buffer.unit,
                    .flats = {buffer.flat},
                    .sharded = buffer.sharded};
    at({buffer.unit, buffer.flat}).state.push_back(static_cast<int>(b));
  }
  if (histories_.empty()) return;
  observations_ = static_cast<int>(scales_.entries().size());
  for (const Action& action : schedule.actions) {
    const bool observes = action.operation->is_pass && takes_maxima(action) &&
                          histories_.first_tensor(action.layer) >= 0;
    observations_ += observes ? 1 : 0;
  }
}

void ContentWalk::run() {
  const std::size_t before = violations_.size();
  for (std::size_t i = 0; i < schedule_.actions.size(); ++i) {
    action_ = static_cast<int>(i);
    const Action& action = schedule_.actions[i];
    touched_.clear();
    action.operation->rule(*this, action);
    require_all_touched();
    if (violations_.size() >= before + kMostViolations) return;
  }
  action_ = -1;
  if (violations_.size() == before) finish();
}

void ContentWalk::report(std::string what) {
  if (action_ < 0) {
    violations_.push_back({Rule::kEnd, -1, std::move(what)});
    return;
  }
  const bool again = !violations_.empty() && violations_.back().rule == Rule::kContents &&
                     violations_.back().action == action_;
  if (again) return;  // the first will do
  const Action& action = schedule_.actions[static_cast<std::size_t>(action_)];
  violations_.push_back(
      {Rule::kContents, action_,
       concat("action ", action_, " (", describe(schedule_, action), "): ", what)});
}

void ContentWalk::touch(const Operand& operand) { touched_.push_back(&operand); }

void ContentWalk::require_all_touched() {
  const Action& action = schedule_.actions[static_cast<std::size_t>(action_)];
  for (const auto* operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      require_that(std::ranges::find(touched_, &operand) != touched_.end(), "does nothing with ",
                   name_of(operand.buffer), ", which it names");
    }
  }
}

const std::string& ContentWalk::unit_name(int unit) const {
  static const std::string kNothing = "nothing";
  if (unit < 0 || static_cast<std::size_t>(unit) >= schedule_.units.size()) return kNothing;
  return schedule_.units[static_cast<std::size_t>(unit)].name;
}

std::string ContentWalk::flats_text(int unit, FlatSet flats) const {
  const std::string& name = unit_name(unit);
  if (unit < 0 || static_cast<std::size_t>(unit) >= schedule_.units.size()) return name;
  const std::vector<ScheduleFlat>& all = schedule_.units[static_cast<std::size_t>(unit)].flats;
  if (all.size() == 1) return name;
  std::string list;
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (flats.contains(static_cast<int>(f))) list += (list.empty() ? "" : " ") + all[f].name;
  }
  return concat(name, " (", list, ")");
}

std::string ContentWalk::sharding_text(AxisSet axes) const {
  return axes.empty() ? "unsharded" : "sharded over " + to_string(axes);
}

Content ContentWalk::read(const Operand& operand) {
  touch(operand);
  Content content = at(operand.buffer);
  if (!require_that(content.valid, "reads ", name_of(operand.buffer),
                    ", which holds nothing at this point")) {
    return content;
  }
  require_that(content.unit == operand.unit, name_of(operand.buffer), " holds ",
               unit_name(content.unit), ", not ", unit_name(operand.unit));
  if (operand.unit >= 0 && content.unit == operand.unit) {
    const FlatSet flats = schedule_.flats(operand);
    require_that(
        content.flats == flats, name_of(operand.buffer), " holds ",
        [&] { return flats_text(content.unit, content.flats); }, ", not ",
        [&] { return flats_text(operand.unit, flats); });
  }
  const ScheduleBuffer& buffer = schedule_.buffer(operand);
  const bool slot = buffer.is_slot() && !buffer.keeps_places();
  require_that(
      slot ? content.sharded == operand.sharded
           : cuts_further(nesting_, content.sharded, operand.sharded),
      name_of(operand.buffer), " is ", [&] { return sharding_text(content.sharded); }, ", not ",
      [&] { return sharding_text(operand.sharded); });
  content.sharded = operand.sharded;
  return content;
}

Content& ContentWalk::change(const Operand& operand) {
  read(operand);
  return at(operand.buffer);
}

Content ContentWalk::take(const Operand& operand) {
  const Content content = read(operand);
  if (schedule_.buffer(operand).is_slot()) at(operand.buffer).valid = false;
  return content;
}

void ContentWalk::carry(const Operand& from, const Operand& to) {
  if (sums_ != nullptr) sums_->move(from, to);
}

void ContentWalk::write(const Operand& operand, const Content& content) {
  touch(operand);
  Content& there = at(operand.buffer);
  const auto name = name_of(operand.buffer);
  require_that(content.role == schedule_.role(operand.buffer), name, " is for a ",
               to_string(schedule_.role(operand.buffer)), ", not a ", to_string(content.role));
  require_that(content.unit == operand.unit, "the result is of ", unit_name(content.unit),
               ", not of ", unit_name(operand.unit));
  if (operand.unit >= 0 && content.unit == operand.unit) {
    const FlatSet flats = schedule_.flats(operand);
    require_that(
        content.flats == flats, "the result is of ",
        [&] { return flats_text(content.unit, content.flats); }, ", not of ",
        [&] { return flats_text(operand.unit, flats); });
  }
  require_that(
      content.sharded == operand.sharded, "the result is ",
      [&] { return sharding_text(content.sharded); }, ", not ",
      [&] { return sharding_text(operand.sharded); });
  const ScheduleBuffer& buffer = schedule_.buffer(operand);
  const bool once = buffer.is_slot() || buffer.is_activation() || buffer.role == Role::kScalars ||
                    buffer.role == Role::kScales || buffer.role == Role::kStatistics;
  require_that(buffer.unit < 0 || buffer.unit == content.unit, name, " is not for ",
               unit_name(content.unit));
  require_that(
      cuts_further(nesting_, buffer.sharded, content.sharded), name, " has room for what is ",
      [&] { return sharding_text(buffer.sharded); }, " only");
  if (!operand.adds) {
    require_that(!once || !there.valid, "overwrites ", name, ", which still holds ",
                 [&] { return there.unit >= 0 ? unit_name(there.unit) : "what is needed"; });
    there = content;
    there.valid = true;
    return;
  }
  if (!require_that(there.valid, "adds to ", name, ", which holds nothing at this point")) return;
  require_that(
      there.unit == content.unit && there.sharded == content.sharded &&
          there.partial == content.partial,
      "adds to ", name, ", which holds ", [&] { return sum_text(there); }, ", not ",
      [&] { return sum_text(content); });
  require_that(
      there.end == content.begin, "adds ", [&] { return contributions_text(content); }, " to ",
      name, ", which holds ", [&] { return contributions_text(there); },
      ": each is added once, in order");
  there.end = content.end;
  there.open = there.open && content.open;
}

std::string ContentWalk::contributions_text(const Content& content) const {
  const bool losses = content.role == Role::kScalars;
  const char* const what = losses ? "losses of micro-step" : "contribution";
  if (content.end == content.begin) return concat("no ", losses ? "losses" : "contributions");
  if (content.end == content.begin + 1) return concat(what, ' ', content.begin);
  return concat(what, "s ", content.begin, " to ", content.end - 1);
}

std::string ContentWalk::sum_text(const Content& content) const {
  return concat(unit_name(content.unit), ' ', sharding_text(content.sharded),
                content.partial.empty()
                    ? std::string(" and summed over all ranks")
                    : " and still to be summed over " + to_string(content.partial));
}

std::size_t ContentWalk::read_parameters(const Action& action, const std::vector<int>& units) {
  std::size_t found = 0, present = 0;
  std::set<int> scales;  // buffers
  for (const Operand& operand : action.reads) {
    const Role role = schedule_.role(operand.buffer);
    if (is_parameter(role) || role == Role::kScales) ++present;
  }
  for (const int unit : units) {
    const std::vector<ScheduleFlat>& all = schedule_.units[static_cast<std::size_t>(unit)].flats;
    FlatSet flats;
    for (const Operand& operand : action.reads) {
      const Role role = schedule_.role(operand.buffer);
      if (operand.unit != unit || !is_parameter(role)) continue;
      ++found;
      const Content content = read(operand);
      require_that(content.sharded.empty(), "reads a part of ", unit_name(unit),
                   " only: ", name_of(operand.buffer), " is ",
                   [&] { return sharding_text(content.sharded); });
      require_that(content.version == 0, "reads ", unit_name(unit),
                   ", which this step has updated already");
      for (const int flat : flats_of(schedule_, operand)) {
        const bool is_decoded = role == Role::kDecoded;
        if (role == Role::kCode) found += require_scales_of(action, content, scales);
        if (all[static_cast<std::size_t>(flat)].is_quantized() == is_decoded) flats.insert(flat);
      }
    }
    require_that(flats.size() == static_cast<int>(all.size()), "must read the parameters of ",
                 unit_name(unit));
  }
  require_that(found == present, "reads parameters of units that layer ",
               schedule_.layers[static_cast<std::size_t>(action.layer)].name, " does not read");
  return present;
}

/// Requires that a pass reads the scales of the codes that it reads. How many operands are new to
/// `known`.
std::size_t ContentWalk::require_scales_of(const Action& action, const Content& codes,
                                           std::set<int>& known) {
  const int entry = codes.valid && codes.unit >= 0 ? scales_.find(id_of(codes)) : -1;
  if (!histories_.empty()) {  // the rule of the pass sees to these
    require_that(entry >= 0, unit_name(codes.unit), " has no scales");
    return 0;
  }
  const auto found = std::ranges::find_if(action.reads, [&](const Operand& operand) {
    return schedule_.role(operand.buffer) == Role::kScales && entry >= 0 &&
           scales_.group_in(schedule_, operand.buffer) ==
               scales_.entries()[static_cast<std::size_t>(entry)].group;
  });
  if (!require_that(found != action.reads.end(), "must read the scales of ",
                    unit_name(codes.unit))) {
    return 0;
  }
  rules::require_scales(*this, *found, codes);
  return known.insert(found->buffer).second ? 1 : 0;
}

void ContentWalk::require_mirrors_added(const FlatId& id) {
  for (int u = 0; u < static_cast<int>(schedule_.units.size()); ++u) {
    const ScheduleUnit& mirror = schedule_.units[static_cast<std::size_t>(u)];
    if (mirror.mirrors != id.unit) continue;
    for (int f = 0; f < static_cast<int>(mirror.flats.size()); ++f) {
      const ScheduleFlat& flat = mirror.flats[static_cast<std::size_t>(f)];
      if (!flat.trainable || flat.name != schedule_.flat(id).name) continue;
      require_that(is_normed({u, f}), "the gradient of ", mirror.name,
                   " is still to be added to that of ", unit_name(id.unit));
    }
  }
}

std::string ContentWalk::message_text(const Content& message) const {
  const bool known =
      message.begin >= 0 && message.begin < static_cast<int>(schedule_.layers.size());
  return concat(message.role == Role::kActivationGradient ? "the gradient of the output of "
                                                          : "the output of ",
                known ? schedule_.layers[static_cast<std::size_t>(message.begin)].name : "nothing",
                " in micro-step ", message.end);
}

int ContentWalk::contribution(const FlatId& id, int layer, int micro_step) const {
  const std::vector<int>& writers = at(id).writers;
  const auto place = std::ranges::find(writers, layer);
  if (place == writers.end()) return -1;
  return micro_step * contributions(id) + static_cast<int>(place - writers.begin());
}

/// The end of the step: state one version on (or as it was), nothing left behind.
void ContentWalk::finish() {
  const bool trains = schedule_.purpose == Purpose::kTrain;
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
    const Content& content = at(b);
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
    if (buffer.is_activation()) {
      require_that(!content.valid, buffer.name, " is never used up");
      continue;
    }
    if (buffer.is_slot()) {
      require_that(!content.valid, buffer.name, " still holds ", unit_name(content.unit),
                   " at the end");
    }
    if (buffer.role == Role::kActivation) {
      require_that(!content.valid, buffer.name, " is never copied back");
      continue;
    }
    if (buffer.tier == Tier::kHost && !buffer.is_slot()) {
      require_that(content.valid, buffer.name, " is never filled");
    }
    if (buffer.kind == BufferKind::kHistory) {
      require_that(content.version == 1, buffer.name, " is never moved on");
    }
    if (!buffer.persistent) continue;
    const int version = trains && is_trained({buffer.unit, buffer.flat}) ? 1 : 0;
    require_that(content.version == version, buffer.name,
                 version == 1 ? " is never updated" : " must stay as it is");
    require_that(
        content.sharded == buffer.sharded, buffer.name, " ends ",
        [&] { return sharding_text(content.sharded); }, ", not ",
        [&] { return sharding_text(buffer.sharded); }, ": the updated parts are never gathered");
  }
  const int results = schedule_.find(BufferKind::kResults);
  require_that(results >= 0 && at(results).valid, "the loss is never computed");
}

}  // namespace tessera
