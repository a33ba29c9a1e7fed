#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/trainer/config.h"

namespace tessera {

/// `value` as its setting keeps it. Throws Error{kConfig} with the value and what is allowed.
nlohmann::json checked_value(const Setting& setting, const nlohmann::json& value);

/// The value that a text on the command line stands for, not yet checked.
/// Throws Error{kConfig} if it cannot be of the setting's type.
nlohmann::json parse_value(const Setting& setting, const std::string& text);

}  // namespace tessera
