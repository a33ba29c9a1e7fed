#pragma once

#include "pretrained/config_reader.h"
#include "tessera/model/gpt_family.h"

namespace tessera::pretrained {

/// The configuration of Gemma 2, or of Gemma 3's text model, in the spelling of transformers 4
/// or 5.
GptConfig read_gemma_config(const ConfigReader& reader, const FamilyRow& family);
/// A config.json that both versions read; only version 5 does if layers with a window have scaled
/// frequencies.
nlohmann::ordered_json gemma_config_json(const GptConfig& config);

}  // namespace tessera::pretrained
