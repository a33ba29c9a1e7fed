#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Methods of Python's str, for texts that its programs prepare. All text is valid UTF-8.
namespace tessera::data {

/// The text without white space at its end: str.rstrip().
std::string_view right_stripped(std::string_view text);
/// str.strip().
std::string_view stripped(std::string_view text);
/// Title case for the first character, lower case for the others, by Unicode's simple mappings:
/// str.capitalize(), but for the few characters that become several.
std::string capitalized(std::string_view text);
/// Code points: len().
std::int64_t character_count(std::string_view text);

}  // namespace tessera::data
