#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model/gpt.h"

namespace tessera::pretrained {

/// The model of a config.json. Throws Error{kConfig} that names the key where it asks for what a
/// GptConfig does not have.
GptConfig read_hugging_face_config(const std::string& path);
/// Parses the file's text; `path` is for errors.
GptConfig parse_hugging_face_config(std::string_view text, const std::string& path);

/// eos_token_id of a config.json or generation_config.json, one or several; none if it is absent or
/// null. Throws Error{kConfig}.
std::vector<std::int32_t> end_tokens_in(const std::string& path);

/// A config.json that versions 4 and 5 of transformers read. `end_token` begins and ends a text of
/// the model; without one, a text does not end.
std::string hugging_face_config(const GptConfig& config, WeightFormat format,
                                std::optional<std::int32_t> end_token);

/// The config.json `source` for a model of `config` in `format`. All keys are kept but those that
/// say something else; if none does, all bytes are.
std::string adapted_config(const std::string& source, const GptConfig& config, WeightFormat format);

/// The double with the fewest digits that rounds to `value`: 1e-6 for 1e-6F.
double with_fewest_digits(float value);

}  // namespace tessera::pretrained
