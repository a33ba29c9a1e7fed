#pragma once

#include <string_view>

#include "tessera/model/gpt.h"

namespace tessera {

/// Throws Error{kConfig} if the sizes are not positive or do not fit together.
void check(const GptConfig& config);

/// The name of the token embedding.
std::string_view embedding_name(const GptConfig& config);

}  // namespace tessera
