#pragma once

#include <string>

#include "key_table.h"
#include "known_settings.h"

namespace tessera::compat {

/// Translates the keys of an Accelerate file's fp8_config, which its mixed_precision may leave
/// unread.
void translate_fp8_section(Section& section, const std::string& mixed_precision,
                           const KnownSettings& known);

}  // namespace tessera::compat
