#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/sharding/schedule.h"

// Words that writing and reading a schedule's text share.
namespace tessera {

inline constexpr std::string_view kScheduleTitle = "schedule 5";  // the version of the format

/// A name as one word that is none of the format's own: blanks, control characters and '\\', '=',
/// '/' and '+' become '\\' and two hexadecimal digits, as does the first character of "-", "|",
/// "->", "after", "over" and names with '?' or '*' in front; the empty name is '\\'.
/// unquote_name is the inverse; throws Error{kConfig}.
std::string quote_name(std::string_view name);
std::string unquote_name(std::string_view word);

/// parse_schedule() of a part of a longer text, of which errors count the lines.
Schedule parse_schedule(std::string_view text, std::size_t lines_before);

}  // namespace tessera
