#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace tessera::data {
namespace {

constexpr char32_t kFirstBeyond = 0x100;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<std::string, 256> spellings;
  std::array<int, kFirstBeyond + 68> bytes;  // by code point; -1: stands for none
};

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet result;
    result.bytes.fill(-1);
    char32_t next = kFirstBeyond;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t code = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      result.bytes[code] = byte;
      std::string& spelling = result.spellings[static_cast<std::size_t>(byte)];
      if (code < 0x80) {
        spelling = {static_cast<char>(code)};
      } else {
        spelling = {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
      }
    }
    return result;
  }();
  return made;
}

}  // namespace

std::string_view byte_spelling(int byte) {
  return alphabet().spellings[static_cast<std::size_t>(byte)];
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const std::string_view character = spelling.substr(0, first_character(spelling).bytes);
    const char32_t code = code_point(character);
    if (code >= alphabet().bytes.size() || alphabet().bytes[code] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().bytes[code]);
    spelling.remove_prefix(character.size());
  }
  return bytes;
}

}  // namespace tessera::data
