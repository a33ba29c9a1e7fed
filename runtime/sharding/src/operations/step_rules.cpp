#include <algorithm>

#include "gradient_sums.h"
#include "operations/factored_rules.h"
#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of what concerns a step as a whole: its scalars, and updates.
namespace tessera::rules {
namespace {

/// The operand that is a slot with what `buffer` has on disk; null: there is none.
const Operand* find_copy(ContentWalk& walk, const std::vector<Operand>& operands, int buffer) {
  const Schedule& schedule = walk.schedule();
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    return schedule.is_of_kind(operand, BufferKind::kStateSlot) && walk.at(operand.buffer).valid &&
           walk.at(operand.buffer).origin == buffer;
  });
  return found == operands.end() ? nullptr : &*found;
}

/// The scalars that the optimizer is given are those of the results, or those that the step begins
/// with, as the policy says. False: they are not named.
bool reads_scalars(ContentWalk& walk, const Action& action) {
  const bool waits = walk.schedule().updates_wait_for_norm;
  const Operand* const given =
      scalars(walk, action.reads, waits ? BufferKind::kResults : BufferKind::kTokens);
  if (given == nullptr) return false;
  const Content content = walk.read(*given);
  if (waits) {
    walk.require_that(content.kept, "'", to_string(BufferKind::kResults),
                      "' has no clip factor: the results were made without '",
                      to_string(BufferKind::kNorm), "'");
  } else {
    walk.require_that(find_scalars(walk.schedule(), action.reads, BufferKind::kResults) == nullptr,
                      "reads '", to_string(BufferKind::kResults),
                      "', but its policy says that updates do not wait for them");
  }
  return true;
}

}  // namespace

void count_tokens(ContentWalk& walk, const Action& action) {
  const Operand* const tokens = scalars(walk, action.writes, BufferKind::kTokens);
  const Operand* const loss = scalars(walk, action.writes, BufferKind::kLoss);
  const Operand* const norm = find_scalars(walk.schedule(), action.writes, BufferKind::kNorm);
  if (tokens == nullptr || loss == nullptr) return;
  if (!has_operands(walk, action, 0, norm == nullptr ? 2 : 3)) return;
  for (const Operand& operand : action.writes) {
    walk.require_that(!operand.adds, "adds to ", walk.name_of(operand.buffer));
    walk.write(operand, {.role = Role::kScalars});
  }
}

void norm_partial(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  const Content gradient = walk.read(action.reads.front());
  if (!walk.require_that(gradient.valid && gradient.role == Role::kGradient && gradient.unit >= 0,
                         walk.name_of(action.reads.front().buffer), " holds no gradient")) {
    return;
  }
  require_complete(walk, gradient);
  walk.require_that(
      gradient.sharded == walk.gradient_axes(), "ranks must read different parts of ",
      walk.unit_name(gradient.unit), ", sharded over ",
      [&] { return to_string(walk.gradient_axes()); },
      ", or elements count more than once in the norm");
  walk.require_mirrors_added(walk.id_of(gradient));
  bool& is_normed = walk.is_normed(walk.id_of(gradient));
  walk.require_that(!is_normed, "the norm of ", walk.unit_name(gradient.unit),
                    " has been taken already");
  is_normed = true;
  const Operand* const norm = scalars(walk, action.writes, BufferKind::kNorm);
  if (norm == nullptr) return;
  walk.require_that(norm->adds, "overwrites '", to_string(BufferKind::kNorm),
                    "'; squared norms are added");
  walk.write(*norm, {.role = Role::kScalars});
}

void results(ContentWalk& walk, const Action& action) {
  const Operand* const tokens = scalars(walk, action.reads, BufferKind::kTokens);
  const Operand* const loss = scalars(walk, action.reads, BufferKind::kLoss);
  const Operand* const to = scalars(walk, action.writes, BufferKind::kResults);
  if (tokens == nullptr || loss == nullptr || to == nullptr) return;
  const Operand* const norms = find_scalars(walk.schedule(), action.reads, BufferKind::kNorm);
  if (!has_operands(walk, action, norms == nullptr ? 2 : 3, 1)) return;
  walk.read(*tokens);
  const Content losses = walk.read(*loss);
  const bool has_losses =
      walk.schedule().is_here(static_cast<int>(walk.schedule().layers.size()) - 1);
  const int expected = has_losses ? walk.schedule().micro_steps : 0;
  walk.require_that(losses.begin == 0 && losses.end == expected, "'", to_string(BufferKind::kLoss),
                    "' holds the losses of ", losses.end, " of ", expected, " micro-steps");
  if (norms != nullptr) {
    walk.read(*norms);
    for (int u = 0; u < static_cast<int>(walk.schedule().units.size()); ++u) {
      const auto flats = walk.schedule().units[static_cast<std::size_t>(u)].flats.size();
      for (int f = 0; f < static_cast<int>(flats); ++f) {
        walk.require_that(
            !walk.is_trained({u, f}) || walk.is_normed({u, f}),
            walk.schedule().units[static_cast<std::size_t>(u)].mirrors < 0
                ? "the norm of "
                : "the gradient for another unit of ",
            [&] { return walk.flats_text(u, {f}); }, " has not been taken");
      }
    }
  }
  walk.write(*to, {.role = Role::kScalars, .kept = norms != nullptr});
  walk.at(loss->buffer).valid = false;  // sums become those of all ranks
  if (norms != nullptr) walk.at(norms->buffer).valid = false;
}

void optimizer_step(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const Operand* const gradient = find_role(schedule, action.reads, Role::kGradient);
  if (!reads_scalars(walk, action) ||
      !walk.require_that(gradient != nullptr, "must read a gradient")) {
    return;
  }
  const bool in_slot = schedule.is_of_kind(*gradient, BufferKind::kSumSlot);
  const Content sum = in_slot ? walk.take(*gradient) : walk.read(*gradient);
  if (!walk.require_that(sum.valid && sum.unit >= 0, "the unit has no gradient")) return;
  require_complete(walk, sum);
  const FlatId id = walk.id_of(sum);
  const bool has_master = std::ranges::any_of(
      walk.state_of(id), [&](int buffer) { return schedule.role(buffer) == Role::kMaster; });
  walk.require_that(schedule.buffer(*gradient).format == DType::kFloat32,
                    "the gradient is not in fp32");
  if (walk.sums() != nullptr) walk.sums()->use(*gradient);
  require_statistics(walk, action, id);
  const auto tier_of = [&](int buffer) {
    return schedule.buffers[static_cast<std::size_t>(buffer)].tier;
  };
  std::size_t before = 0;  // the handler takes the optimizer's tensors as they come
  for (const int buffer : walk.state_of(id)) {
    const Role role = schedule.role(buffer);
    const auto name = walk.name_of(buffer);
    if (schedule.buffers[static_cast<std::size_t>(buffer)].is_factored()) continue;
    const bool on_disk = tier_of(buffer) == Tier::kDisk;
    // State in other memory follows by copies.
    const bool is_here = on_disk || tier_of(buffer) == schedule.buffer(*gradient).tier;
    if (!is_here) continue;
    const Operand* const from =
        on_disk ? find_copy(walk, action.reads, buffer) : find_buffer(action.reads, buffer);
    if (on_disk && !walk.require_that(from != nullptr, "must read a copy of ", name)) return;
    const Operand* const to = find_buffer(action.writes, on_disk ? from->buffer : buffer);
    if (!walk.require_that(to != nullptr, "must write ", name)) return;
    const auto place = static_cast<std::size_t>(to - action.writes.data()) + 1;
    walk.require_that(place > before, "must write the state of ", walk.unit_name(sum.unit),
                      " in the order of the buffers");
    before = place;
    if (role != Role::kParameter || !has_master || on_disk) {
      if (!walk.require_that(from != nullptr, "must read ", name)) return;
      const Content state = on_disk ? walk.take(*from) : walk.read(*from);
      walk.require_that(state.unit == sum.unit && state.sharded == sum.sharded,
                        "reads other parts of ", name, " than of the gradient");
    }
    Content state = walk.at(on_disk ? from->buffer : buffer);
    state.valid = true;
    walk.require_that(state.version == 0, name, " was updated already");
    walk.require_that(cuts_further(walk.nesting(), state.sharded, sum.sharded),
                      "the gradient is not a part of what ", name, " holds");
    walk.require_that(role == Role::kParameter || state.sharded == sum.sharded,
                      "updates only a part of ", name);
    state.sharded = sum.sharded;
    state.version = 1;
    walk.write(*to, state);
  }
}

}  // namespace tessera::rules
