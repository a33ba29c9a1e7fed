#pragma once

#include <optional>

#include "pretrained/config_reader.h"
#include "tessera/model/gpt_family.h"

namespace tessera::pretrained {

/// `rope_parameters` (5), or `rope_scaling` beside `rope_theta` (4). As in version 5,
/// `rope_scaling` counts where both are there, and what the object does not have is looked up
/// beside it.
RotaryConfig read_rotary(const ConfigReader& reader, const FamilyRow& family);

/// Gemma 3's: of layers that attend to all, and of those with a window. In `rope_parameters` (5)
/// each has an object; `rope_scaling` (4) is of the first.
struct RotaryPair {
  RotaryConfig full{}, windowed{};
};
RotaryPair read_rotary_pair(const ConfigReader& reader, const FamilyRow& family);

/// `rope_scaling` as both versions read it; null without scaling. longrope has a part of it outside
/// of the object.
nlohmann::ordered_json rope_scaling_json(const RotaryConfig& rotary);
/// Its JSON with the base, as an object of version 5's `rope_parameters`.
nlohmann::ordered_json rope_parameters_json(const RotaryConfig& rotary);

}  // namespace tessera::pretrained
