#include "tokenizer/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tessera::data {
namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

unsigned byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

/// Length of the ASCII at the start of `text`, a multiple of 8.
std::size_t ascii_words(std::string_view text) {
  std::size_t done = 0;
  for (std::uint64_t word = 0; done + sizeof(word) <= text.size(); done += sizeof(word)) {
    std::memcpy(&word, text.data() + done, sizeof(word));
    if ((word & 0x8080808080808080U) != 0) break;
  }
  return done;
}

}  // namespace

Utf8Step first_character(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  if (lead < 0x80) return {1, Utf8State::kValid};
  if (lead < 0xc2 || lead > 0xf4) return {1, Utf8State::kInvalid};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Utf8State::kIncomplete};
    // The second byte tells overlong forms, surrogates and what is above U+10FFFF.
    const bool second = i == 1;
    const unsigned smallest = second && lead == 0xe0 ? 0xa0 : second && lead == 0xf0 ? 0x90 : 0x80;
    const unsigned largest = second && lead == 0xed ? 0x9f : second && lead == 0xf4 ? 0x8f : 0xbf;
    const unsigned byte = byte_at(text, i);
    if (byte < smallest || byte > largest) return {i, Utf8State::kInvalid};
  }
  return {length, Utf8State::kValid};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (byte_at(text, at) < 0x80) {
      at += std::max<std::size_t>(1, ascii_words(text.substr(at)));
      continue;
    }
    const Utf8Step step = first_character(text.substr(at));
    if (step.state != Utf8State::kValid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

std::string take_characters(std::string& bytes) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Step step = first_character(rest);
    if (step.state == Utf8State::kIncomplete) break;
    text += step.state == Utf8State::kValid ? rest.substr(0, step.bytes) : kReplacementCharacter;
    rest.remove_prefix(step.bytes);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

char32_t code_point(std::string_view character) {
  const unsigned lead = byte_at(character, 0);
  if (character.size() == 1) return lead;
  char32_t code = lead & (0x7fU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) {
    code = (code << 6) | (byte_at(character, i) & 0x3fU);
  }
  return code;
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  const std::size_t first = text.size() - std::min<std::size_t>(text.size(), 4);
  while (begin > first && (byte_at(text, begin) & 0xc0U) == 0x80) --begin;
  return text.substr(begin);
}

}  // namespace tessera::data
