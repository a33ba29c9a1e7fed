#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The word of `candidates` nearest to `word` by edit distance, or "" if none is near. For errors:
/// "unknown key 'widht'; did you mean 'width'?".
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
