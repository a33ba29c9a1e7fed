#include "tessera/core/loaded_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

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

std::vector<std::filesystem::path> places(const ModuleFile& module) {
  const char* const given = std::getenv(module.variable);
  if (given != nullptr && *given != '\0') return {std::filesystem::absolute(given)};
  const std::filesystem::path folder = own_folder();
  std::vector<std::filesystem::path> result;
  for (const std::filesystem::path& place :
       {folder, folder / ".." / "lib", folder / ".." / "lib" / "tessera",
        std::filesystem::path(TESSERA_MODULE_FOLDER)}) {
    result.push_back((place / module.file).lexically_normal());
  }
  return result;
}

}  // namespace

std::optional<std::filesystem::path> find_module(const ModuleFile& module) {
  for (const std::filesystem::path& place : places(module)) {
    std::error_code ignored;
    if (std::filesystem::exists(place, ignored)) return place;
  }
  return std::nullopt;
}

namespace {

/// Classes are passed over this seam, so both sides must have been compiled from the same sources
/// in the same way. "" if they have.
std::string problem_of_identity(const ModuleFile& module, const LoadedModule& loaded) {
  constexpr const char* kIdentity = "tessera_build_identity";
  auto* const get =
      reinterpret_cast<decltype(&tessera_build_identity)>(dlsym(loaded.handle, kIdentity));
  const std::string theirs = get != nullptr ? get() : "unknown";
  const std::string ours = tessera_build_identity();
  if (theirs == ours) return "";
  return concat("the ", module.name, " ", loaded.path.string(), " is of build ", theirs,
                ", and what loads it of build ", ours,
                "; build both together ('./run build'), or name another file in ", module.variable);
}

}  // namespace

LoadedModule load_module(const ModuleFile& module) {
  LoadedModule result;
  const auto path = find_module(module);
  if (!path) {
    std::string tried;
    for (const std::filesystem::path& place : places(module)) {
      tried += (tried.empty() ? "" : ", ") + place.string();
    }
    result.problem = concat("this build has no ", module.name, " (", module.file, "; looked for ",
                            tried, "); ", module.if_missing);
    return result;
  }
  result.path = *path;
  result.handle = dlopen(path->c_str(), module.flags);
  if (result.handle == nullptr) {
    const char* const why = dlerror();
    result.problem = concat("the ", module.name, " ", path->string(),
                            " cannot be loaded: ", why != nullptr ? why : "no reason given", "; ",
                            module.if_unusable);
    return result;
  }
  result.problem = problem_of_identity(module, result);
  if (!result.problem.empty()) result.handle = nullptr;
  return result;
}

}  // namespace tessera
