#include "python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

/// The code points of str.isspace().
bool is_space(utf8proc_int32_t c) {
  constexpr std::array kOthers{0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || (c >= 0x2000 && c <= 0x200a) ||
         std::ranges::find(kOthers, c) != kOthers.end();
}

struct Character {
  utf8proc_int32_t code = 0;
  std::size_t bytes = 0;
};

Character first_of(std::string_view text) {
  Character first;
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &first.code);
  require(bytes > 0, ErrorCode::kConfig, "is not UTF-8; write it anew as UTF-8");
  first.bytes = static_cast<std::size_t>(bytes);
  return first;
}

Character last_of(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0U) == 0x80U) --begin;
  return first_of(text.substr(begin));
}

}  // namespace

std::string_view right_stripped(std::string_view text) {
  while (!text.empty() && is_space(last_of(text).code)) text.remove_suffix(last_of(text).bytes);
  return text;
}

std::string_view stripped(std::string_view text) {
  text = right_stripped(text);
  while (!text.empty() && is_space(first_of(text).code)) text.remove_prefix(first_of(text).bytes);
  return text;
}

std::string capitalized(std::string_view text) {
  std::string result;
  for (bool is_first = true; !text.empty(); is_first = false) {
    const Character c = first_of(text);
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto code = is_first ? utf8proc_totitle(c.code) : utf8proc_tolower(c.code);
    const utf8proc_ssize_t count = utf8proc_encode_char(code, bytes.data());
    result.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
    text.remove_prefix(c.bytes);
  }
  return result;
}

std::int64_t character_count(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
}

}  // namespace tessera::data
