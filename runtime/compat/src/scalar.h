#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "document.h"
#include "tessera/trainer/setting.h"

namespace tessera::compat {

// The meaning of a scalar of a foreign file. Python reads these files leniently, and people quote:
// "true", 'no', 1 and yes are booleans; 8, "8" and 1e8 are integers. Nothing if it is not one.
std::optional<bool> as_flag(const Node& node);
std::optional<std::int64_t> as_integer(const Node& node);
std::optional<double> as_number(const Node& node);

/// The remedy for a text that is no number, or no integer, to follow the message that says so.
std::string number_remedy(const Node& node);

/// The product of sizes of at least 1; the largest number there is if they make more.
std::int64_t product(std::initializer_list<std::int64_t> sizes);

std::string upper(std::string_view text);

}  // namespace tessera::compat
