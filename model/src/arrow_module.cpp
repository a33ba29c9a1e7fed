#include "arrow_module.h"

#include <dlfcn.h>

#include "tessera/core/error.h"
#include "tessera/core/loaded_module.h"

namespace tessera::data {
namespace {

constexpr ModuleFile kModule{
    .name = "Arrow module",
    .file = "libtessera_arrow.so",
    .variable = "TESSERA_ARROW_MODULE",
    .flags = RTLD_NOW | RTLD_LOCAL,
    .if_missing =
        "install Arrow's C++ library with Parquet, or Python's package pyarrow, and "
        "build again (model/README.md), or write the table as .jsonl: python3 -c \"import "
        "pandas; pandas.read_parquet('x.parquet').to_json('x.jsonl', orient='records', "
        "lines=True)\"",
    .if_unusable = "install the Arrow that it was built with"};

/// Loading is tried once.
const LoadedModule& module() {
  static const LoadedModule loaded = load_module(kModule);
  return loaded;
}

}  // namespace

bool is_arrow_file(const std::string& path) {
  return path.ends_with(".parquet") || path.ends_with(".arrow") || path.ends_with(".feather");
}

std::unique_ptr<const RecordFile> open_arrow_records(const std::string& path) {
  require(module().handle != nullptr, ErrorCode::kUnavailable, "'", path,
          "' is a table: ", module().problem);
  auto* const open = reinterpret_cast<RecordFile* (*)(const std::string&)>(
      dlsym(module().handle, "tessera_open_arrow_records"));
  require(open != nullptr, ErrorCode::kUnavailable, module().path.string(),
          " is not tessera's Arrow module");
  return std::unique_ptr<const RecordFile>(open(path));
}

}  // namespace tessera::data
