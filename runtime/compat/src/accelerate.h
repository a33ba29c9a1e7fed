#pragma once

#include "deepspeed.h"
#include "document.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// Where the keys are from: a file says how many ranks there are, a launcher's environment does
/// not.
enum class AccelerateSource : std::uint8_t { kFile, kEnvironment };

/// Adds what Accelerate's keys in `document` mean here. Follows `deepspeed_config_file`, where
/// `autos` stands for "auto".
void translate_accelerate(const Document& document, AccelerateSource source,
                          const AutoValues& autos, const TranslationContext& context,
                          ConfigTranslation& translation);

}  // namespace tessera::compat
