#include "operations/rule_tools.h"

#include <algorithm>

#include "operations/operation_rules.h"

namespace tessera::rules {

const Operand* find_role(const Schedule& schedule, const std::vector<Operand>& operands,
                         Role role) {
  const auto found = std::ranges::find_if(
      operands, [&](const Operand& operand) { return schedule.role(operand.buffer) == role; });
  return found == operands.end() ? nullptr : &*found;
}

const Operand* find_buffer(const std::vector<Operand>& operands, int buffer) {
  const auto found = std::ranges::find(operands, buffer, &Operand::buffer);
  return found == operands.end() ? nullptr : &*found;
}

const Operand* find_scalars(const Schedule& schedule, const std::vector<Operand>& operands,
                            BufferKind kind) {
  const auto found = std::ranges::find_if(
      operands, [&](const Operand& operand) { return schedule.is_of_kind(operand, kind); });
  return found == operands.end() ? nullptr : &*found;
}

const Operand* scalars(ContentWalk& walk, const std::vector<Operand>& operands, BufferKind kind) {
  const Operand* const found = find_scalars(walk.schedule(), operands, kind);
  walk.require_that(found != nullptr, "must name the buffer '", to_string(kind), "'");
  return found;
}

bool has_operands(ContentWalk& walk, const Action& action, std::size_t reads, std::size_t writes) {
  return walk.require_that(action.reads.size() == reads && action.writes.size() == writes,
                           "must read ", reads, " buffers and write ", writes, ", but names ",
                           action.reads.size(), " and ", action.writes.size());
}

void require_complete(ContentWalk& walk, const Content& gradient) {
  walk.require_that(gradient.partial.empty(), "the gradient of ", walk.unit_name(gradient.unit),
                    " is still to be summed over ", [&] { return to_string(gradient.partial); });
  const int all = walk.all_contributions(walk.id_of(gradient));
  walk.require_that(
      gradient.begin == 0 && gradient.end == all, "the gradient of ", walk.unit_name(gradient.unit),
      " is incomplete: it holds ", [&] { return walk.contributions_text(gradient); }, " of ", all);
}

}  // namespace tessera::rules
