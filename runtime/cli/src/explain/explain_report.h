#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/compat/config.h"

namespace tessera::cli {

/// "a.yaml, settings of Accelerate: 11 kept, 12 without effect, 1 to change: fsdp_offload_params".
void print_verdict(std::ostream& out, const ConfigTranslation& translation);

/// Every key and what it means, then what Accelerate or DeepSpeed does otherwise.
void print_keys(std::ostream& out, const ConfigTranslation& translation);

/// Prints the keys that need a change, or are otherwise than under Accelerate or DeepSpeed.
void print_findings(std::ostream& out, const ConfigTranslation& translation);

/// The settings that are given and are not our defaults.
void print_given_settings(std::ostream& out, const Config& config);

/// `text` wrapped, the first line behind `indent` blanks, the others behind two more.
void print_wrapped(std::ostream& out, const std::string& text, int indent);

/// All that is known of a file's keys.
nlohmann::ordered_json json_of(const ConfigTranslation& translation);
/// The files that were read, and each setting with its value and its source: `tessera explain
/// --json`.
nlohmann::ordered_json explanation_of(const Config& config);

}  // namespace tessera::cli
