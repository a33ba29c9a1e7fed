#pragma once

#include "tessera/model/gpt.h"

namespace tessera {

/// Throws Error{kConfig} if the sizes are not positive or do not fit together.
void check(const GptConfig& config);

}  // namespace tessera
