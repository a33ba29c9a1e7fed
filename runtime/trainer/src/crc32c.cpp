#include "crc32c.h"

#include <array>

namespace tessera {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // bits reversed

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    }
    table[byte] = value;
  }
  return table;
}

constexpr auto kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : data) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace tessera
