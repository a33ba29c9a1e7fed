#pragma once

#include <cstdint>
#include <string>

namespace tessera {

/// "512 B", "1.50 KiB", "12.3 MiB", "119 GiB": three digits, for people.
std::string format_bytes(std::int64_t bytes);

}  // namespace tessera
