#pragma once

#include <string>
#include <vector>

#include "tessera/compat/config.h"

namespace tessera::cli {

/// Refuses a run that would write over what it reads, or write two things to one file, before any
/// file is opened for writing: --log, --csv and --tensorboard against `data_files`, the files that
/// `config` was read from, and each other. A file is what it is on the disk, whatever path or link
/// leads to it. Throws Error{kConfig} that names the flags and the path.
void check_outputs(const Config& config, const std::vector<std::string>& data_files);

}  // namespace tessera::cli
