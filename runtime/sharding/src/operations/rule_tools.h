#pragma once

#include <cstddef>
#include <vector>

#include "tessera/sharding/contents.h"
#include "tessera/sharding/operation.h"

// Tools of the rules of operations: they find operands among those of an action.
namespace tessera::rules {

/// The first operand whose buffer has this role; null: there is none.
const Operand* find_role(const Schedule& schedule, const std::vector<Operand>& operands, Role role);
/// The first operand that is this buffer, by index; null: there is none.
const Operand* find_buffer(const std::vector<Operand>& operands, int buffer);
/// The first operand of this kind; null: there is none.
const Operand* find_scalars(const Schedule& schedule, const std::vector<Operand>& operands,
                            BufferKind kind);
/// The operand with scalars of this kind; a violation if it is not there.
const Operand* scalars(ContentWalk& walk, const std::vector<Operand>& operands, BufferKind kind);
/// Requires that an operation touches so many operands, and no others.
bool has_operands(ContentWalk& walk, const Action& action, std::size_t reads, std::size_t writes);

}  // namespace tessera::rules
