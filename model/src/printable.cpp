#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/model/generate.h"

namespace tessera {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// A code point and how many bytes it took; no bytes if they are not UTF-8.
struct Decoded {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

/// Decodes the start of `bytes` (values of 0 to 255; anything else ends it) as RFC 3629 has it: no
/// overlong forms, no surrogates, nothing above U+10FFFF.
Decoded decode(std::span<const std::int32_t> bytes) {
  struct Lead {
    std::int32_t first, last;
    std::size_t length;
    std::uint32_t smallest;  // what a shorter form could not have said
  };
  static constexpr std::array<Lead, 4> kLeads{{{0x00, 0x7f, 1, 0},
                                               {0xc2, 0xdf, 2, 0x80},
                                               {0xe0, 0xef, 3, 0x800},
                                               {0xf0, 0xf4, 4, 0x10000}}};
  for (const Lead& lead : kLeads) {
    if (bytes[0] < lead.first || bytes[0] > lead.last) continue;
    if (bytes.size() < lead.length) return {};
    const std::uint32_t payload_mask = lead.length == 1 ? 0x7fU : 0xffU >> (lead.length + 1);
    std::uint32_t code = static_cast<std::uint32_t>(bytes[0]) & payload_mask;
    for (std::size_t i = 1; i < lead.length; ++i) {
      if (bytes[i] < 0x80 || bytes[i] > 0xbf) return {};
      code = (code << 6) | (static_cast<std::uint32_t>(bytes[i]) & 0x3fU);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < lead.smallest || surrogate || code > 0x10ffff) return {};
    return {code, lead.length};
  }
  return {};
}

std::string formatted(const char* format, std::uint32_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

bool is_control(std::uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
}

/// Marks that make text appear in another order than it is in.
bool is_reordering(std::uint32_t code) {
  return code == 0x200e || code == 0x200f || code == 0x061c || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::vector<std::int32_t> to_byte_tokens(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string printable(std::span<const std::int32_t> tokens) {
  std::string text;
  while (!tokens.empty()) {
    const Decoded decoded = decode(tokens);
    if (tokens[0] < 0 || tokens[0] > 255) {
      text += '<' + std::to_string(tokens[0]) + '>';
    } else if (decoded.bytes == 0) {
      text += kReplacement;
    } else if (is_control(decoded.code)) {
      text += formatted("\\x%02x", decoded.code);
    } else if (is_reordering(decoded.code)) {
      text += formatted("\\u{%04x}", decoded.code);
    } else {
      for (std::size_t i = 0; i < decoded.bytes; ++i) text += static_cast<char>(tokens[i]);
    }
    tokens = tokens.subspan(decoded.bytes == 0 ? 1 : decoded.bytes);
  }
  return text;
}

}  // namespace tessera
