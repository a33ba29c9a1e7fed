#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "tessera/core/error.h"
#include "tokenizer/utf8.h"

namespace tessera::data {
namespace {

// [Note: Unicode 9] The package `tokenizers` normalises by Unicode 9, in which these code points
// were not assigned, so that nothing composes with them or moves past them. They are what
// utf8proc 2.8 and 2.9 (Unicode 15) know besides of combining marks, compositions and
// decompositions.
struct Range {
  char32_t first, last;
};
constexpr std::array kUnassigned = std::to_array<Range>(
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
     {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
     {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
     {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
     {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
     {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
     {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
     {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
     {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}});

bool is_unassigned(char32_t code) {
  const auto range = std::ranges::lower_bound(kUnassigned, code, {}, &Range::last);
  return range != kUnassigned.end() && code >= range->first;
}

void append_nfc(std::string_view text, std::string& result) {
  if (text.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  require(size >= 0, ErrorCode::kInternal, "a text cannot be normalised: ", utf8proc_errmsg(size));
  result.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Below U+0300, whose first byte is 0xcc, nothing composes or decomposes.
  if (std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xcc; })) {
    return std::string(text);
  }
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, first_character(text.substr(at)).bytes);
    if (is_unassigned(code_point(character))) {
      append_nfc(text.substr(done, at - done), result);
      result += character;
      done = at + character.size();
    }
    at += character.size();
  }
  append_nfc(text.substr(done), result);
  return result;
}

}  // namespace tessera::data
