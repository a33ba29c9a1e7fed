#pragma once

#include <string>
#include <vector>

#include "tessera/compat/aliases.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// Lets a command take the aliases of the flags that it has, unseen in its --help. To be called
/// when it has all its flags.
void accept_aliases(CLI::App& command);

/// Hands flags on that stand before the command that is launched, as `accelerate launch` takes
/// them: from `words`, which are `launch` and its arguments, behind the first of `launched`. Those
/// without effect are taken out, with a note.
void hand_on_flags(const CLI::App& launch, std::vector<std::string>& words,
                   std::vector<std::string>& launched);

/// The flags that its --help shows.
std::vector<std::string> shown_flags(const CLI::App& command);

}  // namespace tessera::cli
