#pragma once

#include "pretrained/config_reader.h"
#include "tessera/model/gpt_family.h"

namespace tessera::pretrained {

/// The configuration of a family other than GPT-2, in the spelling of transformers 4 or 5.
GptConfig read_llama_config(const ConfigReader& reader, const FamilyRow& family);
/// A config.json that both versions read.
nlohmann::ordered_json llama_config_json(const GptConfig& config);

/// `max_position_embeddings`: with dynamic frequencies the context that the model was trained with,
/// which they begin to change behind, whatever the longest sequence is here.
std::int64_t written_context(const GptConfig& config);

/// The names in `layer_types`: which layers have the window that config.window has already.
void read_layer_types(const ConfigReader& reader, GptConfig& config);
nlohmann::json layer_types_json(const GptConfig& config);

}  // namespace tessera::pretrained
