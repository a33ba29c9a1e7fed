#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/compat/questionnaire.h"

namespace tessera::questionnaire {

// Answers that do not stand in the file as they are.
inline constexpr const char* kMachineType = "ask.machine_type";  ///< NO, MULTI_CPU or MULTI_GPU
inline constexpr const char* kUseDeepSpeed = "ask.deepspeed";
inline constexpr const char* kUseFsdp = "ask.fsdp";

/// An answer, or `otherwise` if it was not asked for.
nlohmann::json answer_or(const Answers& answers, std::string_view key, nlohmann::json otherwise);

/// The answers as a file of Accelerate, keys sorted.
nlohmann::json config_document(const Answers& answers);

/// Adds the top-level keys that are absent and that a new file would have.
void fill_defaults(nlohmann::json& document);

/// The text that `accelerate config` writes: JSON if the path ends in .json, else YAML.
std::string config_text(const nlohmann::ordered_json& document, const std::string& path);

/// A file's text with more top-level keys after its own, so that comments and order stay. Nothing
/// if they cannot stand there: in JSON, or in YAML that is not a plain list of keys.
std::optional<std::string> text_with(const std::string& text, const nlohmann::json& more);

}  // namespace tessera::questionnaire
