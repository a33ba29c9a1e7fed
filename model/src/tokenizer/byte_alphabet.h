#pragma once

#include <optional>
#include <string>
#include <string_view>

// Byte-level vocabularies spell bytes as printable characters.
namespace tessera::data {

/// The character that stands for a byte (0 to 255): itself where Latin-1 prints it (33 to 126, 161
/// to 172, 174 to 255); the others, in order, are U+0100 onwards. A space is U+0120.
std::string_view byte_spelling(int byte);

/// The bytes that a token's spelling stands for; nothing if a character of it stands for none.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace tessera::data
