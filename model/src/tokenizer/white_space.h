#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer_file.h"

namespace tessera::data {

/// `text` with another text for each `from`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// A section between added tokens as pieces are spelt. `first`: it begins the text.
std::string with_space_marks(std::string_view section, SpacePrefix prefix, bool first);

/// How many bytes of white space the text begins with, and ends with.
std::size_t leading_space(std::string_view text);
std::size_t trailing_space(std::string_view text);

}  // namespace tessera::data
