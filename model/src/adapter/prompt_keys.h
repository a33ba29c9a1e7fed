#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "adapter/adapter_json.h"
#include "tessera/model/gpt.h"

// Keys of adapter_config.json and checks that kinds of prompts share.
namespace tessera::adapter {

/// `width` of a token's trained row, and `heads` that it is divided into.
nlohmann::json prompt_json(std::int64_t tokens, const GptConfig& config, std::int64_t heads,
                           std::int64_t width);
/// num_virtual_tokens; checks the keys that must be the model's.
std::int64_t read_prompt_tokens(const JsonReader& reader, std::int64_t width);
/// Throws Error{kConfig} if it fills the context, or modules are trained besides.
void check_prompt(const AdapterConfig& adapter, const GptConfig& config);

}  // namespace tessera::adapter
