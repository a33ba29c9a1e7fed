#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

enum class Utf8State { kValid, kInvalid, kIncomplete };

/// The start of `text`, which is not empty: a character, the longest part of one that can be no
/// other's beginning (what one U+FFFD replaces, as WHATWG, Python and Rust have it), or the
/// beginning of one that the text's end cuts off.
struct Utf8Step {
  std::size_t bytes;
  Utf8State state;
};
Utf8Step first_character(std::string_view text);

/// The offset of the first byte that is not UTF-8; npos if all is.
std::size_t find_invalid_utf8(std::string_view text);

/// Moves whole characters from the front of `bytes` to the result, U+FFFD for invalid ones; the
/// beginning of a character at the end stays.
std::string take_characters(std::string& bytes);

/// Whether the code point has the Unicode property White_Space.
bool is_white_space(char32_t code);
/// Code point of a valid character.
char32_t code_point(std::string_view character);
/// The character that ends at the end of valid `text`, which is not empty.
std::string_view last_character(std::string_view text);

}  // namespace tessera::data
