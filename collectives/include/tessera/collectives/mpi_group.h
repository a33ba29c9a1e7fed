#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/collectives/world.h"

namespace tessera {

/// The processes that an MPI launcher (mpirun, srun --mpi=pmix) started together. Nodes exchange
/// messages over MPI, so over whatever network it knows; sums are ours, in rank order, since an MPI
/// adds in an order of its own. Within a node no message is sent: make_device() hands out memory
/// of a shared window of MPI (half of what /dev/shm has free) and, when that is used up, of files
/// that the processes map, as other worlds do from the start; see World.
///
/// MPI lives in a module, libtessera_mpi.so, which is loaded here: a program that does not call
/// this needs no MPI and pays nothing for it. It is found by $TESSERA_MPI_MODULE, beside the
/// program, or in ../lib. Initialises MPI with MPI_THREAD_MULTIPLE; once in a process. Throws
/// Error{kUnavailable} with the remedy if there is no module or no such MPI.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options);

/// The module that make_mpi_world would load, if there is one.
std::optional<std::filesystem::path> find_mpi_module();

}  // namespace tessera
