#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

/// Normalisation form C of valid UTF-8, as of Unicode 9: see [Note: Unicode 9].
std::string to_nfc(std::string_view text);

}  // namespace tessera::data
