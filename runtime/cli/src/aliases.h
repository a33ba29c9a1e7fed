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

/// The flags that its --help shows.
std::vector<std::string> shown_flags(const CLI::App& command);

}  // namespace tessera::cli
