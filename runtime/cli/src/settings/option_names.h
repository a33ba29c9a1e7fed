#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera::cli {

/// The flag of an option that the library names by its field, like "policy.recompute":
/// "--recompute". Empty if no flag sets it.
std::string flag_of_field(std::string_view field);

/// A message of the library, in which options are fields in backquotes, with their flags instead:
/// "use `policy.recompute` full" becomes "use --recompute full".
std::string with_flags(std::string_view message);

/// The names of a table's settings.
std::set<std::string, std::less<>> names_in(const std::vector<Setting>& table);

}  // namespace tessera::cli
