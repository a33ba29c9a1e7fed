#pragma once

#include <cstdint>
#include <optional>

#include "foreign/document.h"
#include "foreign/known_settings.h"
#include "tessera/trainer/config_sources.h"

namespace tessera::foreign {

/// Adds what DeepSpeed's keys in `document` mean here. `accelerate_ranks`: the number of ranks if
/// Accelerate's file named this one; DeepSpeed's own does not say.
void translate_deepspeed(const Document& document, std::optional<std::int64_t> accelerate_ranks,
                         const KnownSettings& known, ConfigTranslation& translation);

/// Our strategy for a ZeRO stage from 0 to 3.
const char* strategy_of_stage(std::int64_t stage);

}  // namespace tessera::foreign
