#include "tessera/collectives/mpi_group.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "world/messenger.h"
#include "world/world_core.h"

namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_mpi.so";

/// The folder of the file that holds this function: the program, or a shared library around us.
std::filesystem::path own_folder() {
  std::error_code ignored;
  Dl_info info{};
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0) {
    file = std::filesystem::canonical(info.dli_fname, ignored);
  }
  // The program itself may be known by the name it was called with, which is no path.
  if (file.empty()) file = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return file.parent_path();
}

std::vector<std::filesystem::path> places() {
  const char* const given = std::getenv("TESSERA_MPI_MODULE");
  if (given != nullptr && *given != '\0') return {given};
  const std::filesystem::path folder = own_folder();
  return {folder / kFile, folder / ".." / "lib" / kFile, folder / ".." / "lib" / "tessera" / kFile,
          std::filesystem::path(TESSERA_MODULE_FOLDER) / kFile};
}

Messenger* make_messenger() {
  std::string tried;
  for (const std::filesystem::path& place : places()) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) {
      tried += (tried.empty() ? "" : ", ") + place.lexically_normal().string();
      continue;
    }
    // Open MPI's plug-ins look for its symbols among those of the program.
    void* const module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    require(module != nullptr, ErrorCode::kUnavailable, "the MPI module ", place.string(),
            " cannot be loaded: ", module == nullptr ? dlerror() : "",
            "; install the MPI that it was built with (Debian: openmpi-bin)");
    auto* const make =
        reinterpret_cast<Messenger* (*)()>(dlsym(module, "tessera_make_mpi_messenger"));
    require(make != nullptr, ErrorCode::kUnavailable, place.string(),
            " is not tessera's MPI module");
    return make();
  }
  fail(ErrorCode::kUnavailable, "this build has no MPI (", kFile, "; looked for ", tried,
       "); install one (Debian: libopenmpi-dev openmpi-bin) and build again, or start the "
       "processes with 'tessera launch', which needs none");
}

}  // namespace

std::optional<std::filesystem::path> find_mpi_module() {
  for (const std::filesystem::path& place : places()) {
    std::error_code ignored;
    if (std::filesystem::exists(place, ignored)) return place.lexically_normal();
  }
  return std::nullopt;
}

std::unique_ptr<World> make_mpi_world(const WorldOptions& options) {
  return make_world(std::unique_ptr<Messenger>(make_messenger()), options);
}

}  // namespace tessera
