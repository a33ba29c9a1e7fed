#pragma once

#include "tessera/collectives/process_group.h"
#include "tessera/lab/dump_writer.h"

namespace tessera {

/// The origin of a run that begins now. `leaders`: one rank of each process, this one's too; null
/// if there is one process.
RunOrigin meet(ProcessGroup* leaders);

}  // namespace tessera
