#pragma once

#include <string>

namespace tessera::cli {

/// What to say to somebody who types a command of `accelerate` that is not one here; "" for every
/// other word.
std::string about_foreign_command(const std::string& word);

}  // namespace tessera::cli
