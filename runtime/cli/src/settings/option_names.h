#pragma once

#include <string>
#include <string_view>

namespace tessera::cli {

/// The flag of an option that the library names by its field, like "policy.recompute":
/// "--recompute". Empty if no flag sets it.
std::string flag_of_field(std::string_view field);

/// A message of the library, in which options are fields in backquotes, with their flags instead:
/// "use `policy.recompute` full" becomes "use --recompute full".
std::string with_flags(std::string_view message);

}  // namespace tessera::cli
