#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// CRC-32C (Castagnoli), as RFC 3720 defines it: 0xe3069283 of "123456789".
std::uint32_t crc32c(std::string_view data);

}  // namespace tessera
