#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The word of `candidates` nearest to `word` by edit distance, or "" if none is near. For errors:
/// "unknown key 'widht'; did you mean 'width'?".
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

/// The `count` nearest of `candidates`, the nearest first, however far they are.
std::vector<std::string> nearest_names(std::string_view word, std::vector<std::string> candidates,
                                       std::size_t count);

}  // namespace tessera
