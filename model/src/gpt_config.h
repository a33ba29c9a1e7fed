#pragma once

#include <string_view>

#include "tessera/model/gpt.h"

namespace tessera {

/// Throws Error{kConfig} if the sizes are not positive or do not fit together.
void check(const GptConfig& config);

/// The name of the token embedding.
std::string_view embedding_name(const GptConfig& config);

/// The head's matrix of a model with labels.
inline constexpr std::string_view kScoreParameter = "score.weight";

/// Throws Error{kConfig} if the model has labels and so no next token.
void require_writes_text(const GptConfig& config);

}  // namespace tessera
