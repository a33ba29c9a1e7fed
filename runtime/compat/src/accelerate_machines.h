#pragma once

#include <cstdint>
#include <string>

#include "key_table.h"
#include "tessera/compat/config_file.h"

namespace tessera::compat {

/// Says what becomes of the keys of `top` that are for a launcher: machines, where they meet, and
/// GPUs. Without a launcher they have no effect, and machine_rank above 0 is refused. Returns the
/// number of machines.
std::int64_t translate_machines(Section& top, const std::string& path, std::int64_t ranks,
                                const LaunchFacts& launch);

/// The launcher's keys of an Accelerate file, with the lines.
LauncherKeys read_launcher_keys(const Document& document);

}  // namespace tessera::compat
