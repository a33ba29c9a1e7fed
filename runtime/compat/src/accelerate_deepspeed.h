#pragma once

#include "key_table.h"
#include "known_settings.h"

namespace tessera::compat {

/// Translates the keys of an Accelerate file's deepspeed_config that names no file of DeepSpeed's.
void translate_deepspeed_section(Section& section, const KnownSettings& known);

}  // namespace tessera::compat
