#pragma once

#include <string>

namespace tessera {

/// A word of a command as a shell takes it: in quotes where it needs them.
std::string shell_word(const std::string& word);

}  // namespace tessera
