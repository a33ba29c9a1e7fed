#pragma once

#include "tessera/sharding/contents.h"
#include "tessera/sharding/operation.h"

// Parts of other rules that concern the statistics of a factored optimizer; see FactoredTable.
namespace tessera::rules {

/// The rule of an all-reduce of statistics.
void join_statistics(ContentWalk& walk, const Action& action);

/// Requires that an optimizer step reads the statistics of its flat parameter, if it has some.
void require_statistics(ContentWalk& walk, const Action& step, const FlatId& id);

}  // namespace tessera::rules
