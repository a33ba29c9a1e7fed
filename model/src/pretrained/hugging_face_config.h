#pragma once

#include <string>

#include "tessera/model/gpt.h"

namespace tessera::pretrained {

/// The model of a config.json. Throws Error{kConfig} that names the key where it asks for what a
/// GptConfig does not have.
GptConfig read_hugging_face_config(const std::string& path);

/// A config.json that versions 4 and 5 of transformers read.
std::string hugging_face_config(const GptConfig& config);

}  // namespace tessera::pretrained
