#pragma once

#include "tessera/cli/given_settings.h"
#include "tessera/compat/config.h"
#include "tessera/compat/config_sources.h"

namespace tessera::cli {

/// The settings of a program, with what was given; `others` are keys of the file that the program
/// has no use for. Throws Error{kConfig} that names the nearest if a name is unknown.
Config config_of(SettingsOf program, const GivenSettings& given, const LaunchFacts& launch,
                 const std::vector<Setting>& others = {});

}  // namespace tessera::cli
