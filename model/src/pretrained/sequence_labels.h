#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pretrained/config_reader.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_family.h"

// Models that classify sequences: transformers' classes "...ForSequenceClassification".
namespace tessera::pretrained {

/// The class of transformers that a model of this configuration is.
std::string architecture_of(const GptConfig& config);
/// The family's class that classifies sequences.
std::string classifier_of(const FamilyRow& family);

/// The labels of a config.json whose architectures name such a class; none of another. Throws
/// Error{kConfig} that names the key: of a regression, of several labels at once, and of ids that
/// are not 0, 1, ...
std::vector<std::string> read_labels(const ConfigReader& reader, const FamilyRow& family);

/// Makes a config.json say that the model classifies sequences by config.labels, if it does.
void write_labels(nlohmann::ordered_json& file, const GptConfig& config);

}  // namespace tessera::pretrained
