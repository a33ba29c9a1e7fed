#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/gpt.h"

namespace tessera::pretrained {

/// The model of a config.json. Throws Error{kConfig} that names the key where it asks for what a
/// GptConfig does not have.
GptConfig read_hugging_face_config(const std::string& path);

/// eos_token_id of a config.json or generation_config.json, one or several; none if it is absent or
/// null. Throws Error{kConfig}.
std::vector<std::int32_t> end_tokens_in(const std::string& path);

/// A config.json that versions 4 and 5 of transformers read.
std::string hugging_face_config(const GptConfig& config, WeightFormat format = WeightFormat::kNone);

/// The double with the fewest digits that rounds to `value`: 1e-6 for 1e-6F.
double with_fewest_digits(float value);

}  // namespace tessera::pretrained
