#pragma once

#include <string>

#include "tessera/compat/config.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// The options of a session of forward passes, for an evaluation of `task` by what the model
/// returns. Throws Error{kConfig} if --trace is given, which shows steps.
TrainerOptions forward_options(const Config& config, const std::string& task);

}  // namespace tessera::cli
