#pragma once

#include <string>

namespace tessera {

/// As a shell would take it: in quotes if need be.
std::string shell_word(const std::string& word);

}  // namespace tessera
