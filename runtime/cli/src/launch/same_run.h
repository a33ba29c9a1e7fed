#pragma once

#include <vector>

#include "tessera/collectives/world.h"
#include "tessera/compat/config.h"
#include "tessera/core/named_text.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// Throws Error{kConfig} in all processes unless all run the same file of the same version.
void require_same_program(World& world);

/// Throws Error{kConfig} in all processes unless all have the same settings, after writing back
/// into `config` what they have come to be. `options` are those of `config`, with the world joined;
/// the processes may be one. See may_differ. `more`: what must be the same besides.
void require_same_settings(Config& config, TrainerOptions options,
                           const std::vector<NamedText>& more = {});

/// Both, if the processes of a launcher share the run.
void require_same_run(Config& config, const TrainerOptions& options,
                      const std::vector<NamedText>& more);

}  // namespace tessera::cli
