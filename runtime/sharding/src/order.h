#pragma once

#include <functional>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// Two accesses to a buffer, one of them writing, in an order that nothing fixes.
struct Unordered {
  int action = 0;
  int other = 0;                  ///< issued before it
  bool of_previous_step = false;  ///< the other one
  int buffer = 0;
  const char* does = "";  ///< "reads" or "writes"
  const char* did = "";   ///< "read" or "written": by the other one
};

/// Told of each; true: from here on, the action is taken to wait for the other one.
using OnUnordered = std::function<bool(const Unordered&)>;

/// Looks at a step and the next, which follow each other without a pause: lanes and waits alone
/// order them. Of one action, the later ones of the others come first. The schedule's form must be
/// right.
void find_unordered(const Schedule& schedule, const OnUnordered& on_unordered);

}  // namespace tessera
