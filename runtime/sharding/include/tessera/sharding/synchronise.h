#pragma once

#include "tessera/sharding/schedule.h"

namespace tessera {

/// The schedule with waits that its actions' operands demand, whatever waits it had: two accesses
/// to a buffer of which one writes follow one another as they stand in the list, and as the list
/// follows itself. Waits are the fewest that fix this order and no more; see [Note: waits].
Schedule synchronise(Schedule schedule);

}  // namespace tessera
