#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "pretrained/config_reader.h"
#include "tessera/model/gpt.h"

namespace tessera::pretrained {

/// How a folder's matrices are quantised, by `quantization_config` of its config.json, as
/// transformers' BitsAndBytesConfig writes it; kNone if it has none. Keys of how layers compute
/// (bnb_4bit_compute_dtype, llm_int8_threshold) and of where they do are passed over. Throws
/// Error{kConfig} on another method.
WeightFormat read_quantization(const ConfigReader& config);
/// Reads the format from a file.
WeightFormat quantization_in(const std::string& config_file);

/// The object of such a key, with the modules that config.unquantized leaves out.
nlohmann::ordered_json quantization_json(WeightFormat format, const GptConfig& config);

}  // namespace tessera::pretrained
