#include "tessera/collectives/mpi_group.h"

#include <dlfcn.h>

#include <filesystem>

#include "tessera/core/error.h"
#include "tessera/core/loaded_module.h"
#include "world/messenger.h"
#include "world/world_core.h"

namespace tessera {
namespace {

constexpr ModuleFile kModule{
    .name = "MPI module",
    .file = "libtessera_mpi.so",
    .variable = "TESSERA_MPI_MODULE",
    .flags = RTLD_NOW | RTLD_GLOBAL,  // Open MPI's plug-ins look for its symbols among all
    .if_missing =
        "install an MPI (Debian: libopenmpi-dev openmpi-bin) and build again, or start "
        "the processes with 'tessera launch', which needs none",
    .if_unusable = "install the MPI that it was built with (Debian: openmpi-bin)"};

Messenger* make_messenger() {
  const LoadedModule module = load_module(kModule);
  require(module.handle != nullptr, ErrorCode::kUnavailable, module.problem);
  auto* const make =
      reinterpret_cast<Messenger* (*)()>(dlsym(module.handle, "tessera_make_mpi_messenger"));
  require(make != nullptr, ErrorCode::kUnavailable, module.path.string(),
          " is not tessera's MPI module");
  return make();
}

}  // namespace

std::optional<std::filesystem::path> find_mpi_module() { return find_module(kModule); }

std::unique_ptr<World> make_mpi_world(const WorldOptions& options) {
  return make_world(std::unique_ptr<Messenger>(make_messenger()), options);
}

}  // namespace tessera
