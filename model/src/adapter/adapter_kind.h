#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "adapter/adapter_json.h"
#include "adapter/adapter_modules.h"
#include "tessera/model/gpt_family.h"

// A kind of adapter is a row: a file of this folder for each.
namespace tessera::adapter {

struct Kind {
  AdapterKind shown;
  /// The value of its setting. Lists may be in any order.
  AdapterConfig (*parse)(std::string_view text, const GptConfig& config);
  /// Its keys of adapter_config.json, and back. Those that all kinds have are not among them.
  nlohmann::json (*write)(const AdapterConfig& adapter, const GptConfig& config);
  void (*read)(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter);
  /// Keys that it has no use for, and those of which any value but "not used" is refused.
  std::span<const std::string_view> ignored, refused;
  /// Throws Error{kConfig} if a number is out of its range, or targets do not fit.
  void (*check)(const AdapterConfig& adapter, const GptConfig& config);
  std::string (*described)(const AdapterConfig& adapter);  ///< "adapters of rank 4"
  /// At a module that is a target, or not after all; null: at none.
  std::optional<ModuleAdapter> (*at)(const AdapterConfig& adapter, const Module& module);
};

extern const Kind kLora, kIa3, kPromptTuning, kPTuning, kPrefixTuning;
const Kind& row_of(const AdapterConfig& adapter);

/// The targets that PEFT takes for a family, where none are given.
void fill_targets(AdapterConfig& adapter, std::span<const std::string_view> of_family);
/// target_modules, exclude_modules and what else kinds with targets have, and back.
nlohmann::json targets_json(const AdapterConfig& adapter, const GptConfig& config);
void read_targets(const JsonReader& reader, AdapterConfig& adapter);
/// Throws Error{kConfig} if there are no targets, or among them embeddings or the head that the
/// kind does not adapt.
void check_targets(const AdapterConfig& adapter, const GptConfig& config);

}  // namespace tessera::adapter
