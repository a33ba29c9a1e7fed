#pragma once

#include "pretrained/config_reader.h"
#include "tessera/model/gpt_family.h"

namespace tessera::pretrained {

/// The configuration of a family other than GPT-2, in the spelling of transformers 4 or 5.
GptConfig read_llama_config(const ConfigReader& reader, const FamilyRow& family);
/// A config.json that both versions read.
nlohmann::ordered_json llama_config_json(const GptConfig& config);

}  // namespace tessera::pretrained
