#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/lab/hardware_profile.h"

// The part of a profile that is of whole steps, as JSON.
namespace tessera {

/// Both throw Error{kConfig} that names the place and the key.
StepTimes step_times_of(const nlohmann::ordered_json& json, const std::string& place);
Residual residual_of(const nlohmann::ordered_json& json, const std::string& place);

// The exact inverses.
nlohmann::ordered_json json_of(const StepTimes& steps);
nlohmann::ordered_json json_of(const Residual& residual);

}  // namespace tessera
