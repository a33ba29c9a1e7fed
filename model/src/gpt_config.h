#pragma once

#include <string_view>

#include "tessera/model/gpt.h"

namespace tessera {

/// Throws Error{kConfig} if the sizes are not positive or do not fit together.
void check(const GptConfig& config);

/// The name of the token embedding.
std::string_view embedding_name(const GptConfig& config);

/// The head's matrix of a decoder with labels.
inline constexpr std::string_view kScoreParameter = "score.weight";
/// The parameters of an encoder's head that gives labels, beside the pooler's.
inline constexpr std::string_view kClassifier = "classifier.";
inline constexpr std::string_view kPooler = "pooler.";

/// Whether tokens attend to all of their sequence.
bool is_encoder(const GptConfig& config);

/// Throws Error{kConfig} if the model has labels, or is an encoder, and so no next token.
void require_writes_text(const GptConfig& config);

}  // namespace tessera
