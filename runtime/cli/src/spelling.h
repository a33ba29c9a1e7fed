#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

/// The program's arguments with flags as this program spells them: '-' for '_' in their names, and
/// --config for --config-file but in `tessera config`, which writes that file. Values stay.
std::vector<std::string> spelt_as_ours(std::vector<std::string> arguments);

/// A command that may follow, and its flags: what `launch` launches.
struct FollowingCommand {
  std::string_view name{};
  std::vector<std::string> flags{};
};

/// Says that `word` is no flag of the command, whose flags are `names`, and what helps: that it
/// belongs behind `following`, why nothing here is like it, else the nearest. Flags of other
/// programs that the command has under another name are no errors; see accept_aliases.
/// Throws Error{kConfig}.
[[noreturn]] void refuse_flag(std::string_view word, const std::vector<std::string>& names,
                              const FollowingCommand& following = {});

}  // namespace tessera::cli
