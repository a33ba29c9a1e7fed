#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

/// The program's arguments with flags as this program spells them: '-' for '_' in their names, and
/// --config for --config-file but in `tessera config`, which writes that file. Values stay.
std::vector<std::string> spelt_as_ours(std::vector<std::string> arguments);

/// Says that `word` is no flag of the command, whose flags are `names`, and which is meant: the one
/// for what another program calls so (--lr), else the nearest. Throws Error{kConfig}.
[[noreturn]] void refuse_flag(std::string_view word, const std::vector<std::string>& names);

}  // namespace tessera::cli
