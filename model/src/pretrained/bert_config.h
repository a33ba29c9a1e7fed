#pragma once

#include <nlohmann/json.hpp>

#include "pretrained/config_reader.h"
#include "tessera/model/gpt.h"

namespace tessera::pretrained {

/// The sizes of a BERT's config.json, without labels.
GptConfig read_bert_config(const ConfigReader& reader);
/// Its config.json, for versions 4 and 5 of transformers.
nlohmann::ordered_json bert_config_json(const GptConfig& config);

}  // namespace tessera::pretrained
