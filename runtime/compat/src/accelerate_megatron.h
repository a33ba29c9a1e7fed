#pragma once

#include <cstdint>

#include "key_table.h"
#include "known_settings.h"

namespace tessera::compat {

/// Translates the keys of an Accelerate file's megatron_lm_config for that many ranks.
void translate_megatron_section(Section& section, std::int64_t ranks, const KnownSettings& known);

}  // namespace tessera::compat
