#pragma once

#include <filesystem>
#include <optional>
#include <string>

/// Which build this is of: the version and hashes of the sources of modules, and of the compiler
/// and its flags ("0.1.0-3f2a91c07b5e-9d4401aa"). The program and every module have their own.
extern "C" __attribute__((visibility("default"))) const char* tessera_build_identity();

namespace tessera {

/// A part of Tessera that is a file of its own, loaded when it is first needed, since the libraries
/// below it are not on every machine or cost every process that has them.
struct ModuleFile {
  const char* name;      ///< for errors: "CUDA backend"
  const char* file;      ///< "libtessera_cuda.so"
  const char* variable;  ///< of the environment; names the file itself, and nowhere else is looked
  int flags;             ///< of dlopen
  const char* if_missing;   ///< for the error: what to do where no file was found
  const char* if_unusable;  ///< for the error: what to do where the file cannot be loaded
};

/// Where the module is: as the variable says, else beside this program (or the shared library that
/// holds this), in lib or lib/tessera beside its folder, or where it was installed.
std::optional<std::filesystem::path> find_module(const ModuleFile& module);

struct LoadedModule {
  void* handle = nullptr;  ///< for dlsym, if there is no problem
  std::filesystem::path path{};
  std::string problem{};  ///< why it is not loaded, where it was looked for, and what to do; or ""
};

/// Never throws for a module that is missing, cannot be loaded or is of another build. A loaded
/// module stays loaded.
LoadedModule load_module(const ModuleFile& module);

}  // namespace tessera
