#include "schedule/schedule_words.h"

#include <array>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

bool needs_quoting(std::string_view name, std::size_t i) {
  const auto c = static_cast<unsigned char>(name[i]);
  if (c <= ' ' || c == 0x7f || c == '\\' || c == '=' || c == '/' || c == '+') return true;
  if (i > 0) return false;
  return c == '?' || c == '*' || name == "-" || name == "|" || name == "->" || name == "after" ||
         name == "over";
}

}  // namespace

std::string quote_name(std::string_view name) {
  if (name.empty()) return "\\";
  std::string word;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!needs_quoting(name, i)) {
      word += name[i];
      continue;
    }
    const auto c = static_cast<unsigned char>(name[i]);
    word += '\\';
    word += kHexDigits[c >> 4U];
    word += kHexDigits[c & 15U];
  }
  return word;
}

std::string unquote_name(std::string_view word) {
  if (word == "\\") return {};
  std::string name;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '\\') {
      name += word[i];
      continue;
    }
    const std::size_t high = i + 2 < word.size() ? kHexDigits.find(word[i + 1]) : word.npos;
    const std::size_t low = i + 2 < word.size() ? kHexDigits.find(word[i + 2]) : word.npos;
    require(high != word.npos && low != word.npos, ErrorCode::kConfig, "'\\' in the name '", word,
            "' must be followed by two of 0-9 and a-f");
    name += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return name;
}

}  // namespace tessera
