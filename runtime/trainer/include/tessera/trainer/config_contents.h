#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/trainer/config_sources.h"
#include "tessera/trainer/setting.h"

namespace tessera {

/// A file as it stands, without a word on whether a run can use it: that is ConfigFile's.
struct ConfigContents {
  ConfigDialect dialect = ConfigDialect::kTessera;
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
};

/// Reads a file of any dialect, YAML or JSON. `table`: all settings, to tell the dialect.
/// Throws Error{kConfig} that names the file and the line if it is neither, or of two dialects.
ConfigContents read_config(const std::string& path, const std::vector<Setting>& table);

}  // namespace tessera
