#pragma once

#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule.h"

// What an all-gather or a cast is for, as its operands tell.
namespace tessera::test {

/// The unit whose parameters, state or gradient an action names first; -1: none.
inline int unit_of(const Action& action) {
  for (const auto* operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (operand.unit >= 0) return operand.unit;
    }
  }
  return -1;
}

/// The slot among what an action reads, or else writes: its buffer; -1: none.
inline int slot_of(const Schedule& s, const Action& action) {
  for (const auto* operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (s.buffer(operand).is_slot()) return operand.buffer;
    }
  }
  return -1;
}

/// Gathers a unit's parameters into a slot.
inline bool unshards(const Schedule& s, const Action& action) {
  return action.operation == &operations::kAllGather && slot_of(s, action) >= 0;
}

/// Gathers updated parameters, in place.
inline bool gathers_updated(const Schedule& s, const Action& action) {
  return action.operation == &operations::kAllGather && slot_of(s, action) < 0 &&
         s.role(action.reads.front().buffer) == Role::kParameter;
}

/// Gathers a gradient, in place.
inline bool gathers_gradient(const Schedule& s, const Action& action) {
  return action.operation == &operations::kAllGather &&
         s.role(action.reads.front().buffer) == Role::kGradient;
}

/// Puts a gradient from a slot into the unit's own buffer, or adds it to what is there.
inline bool accumulates(const Schedule& s, const Action& action) {
  return action.operation == &operations::kCast && s.buffer(action.reads.front()).is_slot();
}

/// Rounds a sum of gradients into a slot, to be sent.
inline bool rounds(const Schedule& s, const Action& action) {
  return action.operation == &operations::kCast && s.buffer(action.writes.front()).is_slot();
}

}  // namespace tessera::test
