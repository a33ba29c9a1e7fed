#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/core/format_bytes.h"

namespace tessera {

/// "1536", "1.5KiB", "4 GiB", "4G" (binary), "4GB" (decimal), in any case.
/// Throws Error{kConfig} that shows the accepted forms.
std::int64_t parse_bytes(std::string_view text);

}  // namespace tessera
