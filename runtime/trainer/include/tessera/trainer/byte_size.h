#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// "512 B", "1.50 KiB", "12.3 MiB", "119 GiB": three digits, for people.
std::string format_bytes(std::int64_t bytes);

/// "1536", "1.5KiB", "4 GiB", "4G" (binary), "4GB" (decimal), in any case.
/// Throws Error{kConfig} that shows the accepted forms.
std::int64_t parse_bytes(std::string_view text);

}  // namespace tessera
