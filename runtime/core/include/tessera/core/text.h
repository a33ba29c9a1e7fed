#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The parts of a text between separators, empty ones included; one of a text without any.
std::vector<std::string> split_text(std::string_view text, char separator);
/// A text without the blanks around it.
std::string trimmed(std::string_view text);
/// A text with its capital letters of ASCII made small.
std::string lowercase(std::string_view text);

}  // namespace tessera
