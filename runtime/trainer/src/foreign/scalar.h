#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "foreign/document.h"

namespace tessera::foreign {

// What a scalar of a foreign file means. Python reads these files leniently, and people quote:
// "true", 'no', 1 and yes are booleans; 8, "8" and 1e8 are integers. Nothing if it is not one.
std::optional<bool> as_flag(const Node& node);
std::optional<std::int64_t> as_integer(const Node& node);
std::optional<double> as_number(const Node& node);

std::string lower(std::string_view text);
std::string upper(std::string_view text);

}  // namespace tessera::foreign
