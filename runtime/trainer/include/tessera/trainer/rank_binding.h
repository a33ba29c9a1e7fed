#pragma once

#include <string>
#include <vector>

#include "tessera/core/core_binding.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Which cores the ranks of this machine get, as options.bind and options.bind_core_list ask for
/// it, for options whose device is decided. All processes of a run must call it: they tell each
/// other where they may run. Nobody is bound where hwloc describes another machine.
/// Throws Error{kConfig} as divide_cores does.
CoreBinding decide_binding(const TrainerOptions& options);

/// The request for `ranks` ranks of this machine, whose GPUs have those PCI bus ids.
BindRequest bind_request(const TrainerOptions& options, int ranks, std::vector<std::string> gpus);

/// Binds the calling thread, and so all that it starts and all memory that they touch first, to the
/// cores of options.binding for a rank of this process. A rank's thread calls it before all else.
void bind_rank(const TrainerOptions& options, int rank);

/// Says that ranks are bound otherwise than `asked`.bind has it, or that ranks of the run, whose
/// options are `planned`, have more threads than CPUs; "" if there is nothing to say.
std::string binding_note(const TrainerOptions& asked, const TrainerOptions& planned);

}  // namespace tessera
