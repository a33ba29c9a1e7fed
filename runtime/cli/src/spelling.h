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

/// Says that `word` is no flag of the command, whose flags are `names`, and which is meant: the one
/// for what another program calls so (--lr), here or in the command that follows, else why there is
/// none, else the nearest. Throws Error{kConfig}.
[[noreturn]] void refuse_flag(std::string_view word, const std::vector<std::string>& names,
                              const FollowingCommand& following = {});

}  // namespace tessera::cli
