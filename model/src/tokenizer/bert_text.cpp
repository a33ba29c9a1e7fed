#include "tokenizer/bert_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/utf8.h"

namespace tessera::data {
namespace {

// [Note: characters of BERT] The package `tokenizers` knows categories of characters by a Unicode
// older than utf8proc's. These were not assigned in it: they are neither marks nor control
// characters nor punctuation there, and do not decompose. They were found by comparing all code
// points with the package.
struct CodeRange {
  char32_t first, last;
};
constexpr std::array kNewer = std::to_array<CodeRange>(
    {{0x61d, 0x61d},     {0x7fd, 0x7fd},     {0x890, 0x891},     {0x898, 0x89f},
     {0x8ca, 0x8e2},     {0x9fd, 0x9fe},     {0xa76, 0xa76},     {0xafa, 0xaff},
     {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},     {0xc77, 0xc77},
     {0xc84, 0xc84},     {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},
     {0xeba, 0xeba},     {0xece, 0xece},     {0x180f, 0x180f},   {0x1885, 0x1886},
     {0x1abf, 0x1ace},   {0x1b7d, 0x1b7e},   {0x1df6, 0x1dfb},   {0x2e43, 0x2e4f},
     {0x2e52, 0x2e5d},   {0xa82c, 0xa82c},   {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},
     {0xa9bd, 0xa9bd},   {0x10d24, 0x10d27}, {0x10eab, 0x10ead}, {0x10efd, 0x10eff},
     {0x10f46, 0x10f50}, {0x10f55, 0x10f59}, {0x10f82, 0x10f89}, {0x11070, 0x11070},
     {0x11073, 0x11074}, {0x110c2, 0x110c2}, {0x110cd, 0x110cd}, {0x111cf, 0x111cf},
     {0x1123e, 0x1123e}, {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x11438, 0x1143f},
     {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1144b, 0x1144f}, {0x1145a, 0x1145b},
     {0x1145d, 0x1145e}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1182f, 0x11837},
     {0x11839, 0x1183b}, {0x11938, 0x11938}, {0x1193b, 0x1193c}, {0x1193e, 0x1193e},
     {0x11943, 0x11946}, {0x119d4, 0x119d7}, {0x119da, 0x119db}, {0x119e0, 0x119e0},
     {0x119e2, 0x119e2}, {0x11a01, 0x11a0a}, {0x11a33, 0x11a38}, {0x11a3b, 0x11a47},
     {0x11a51, 0x11a56}, {0x11a59, 0x11a5b}, {0x11a8a, 0x11a96}, {0x11a98, 0x11a9c},
     {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11c30, 0x11c36}, {0x11c38, 0x11c3d},
     {0x11c3f, 0x11c3f}, {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11c92, 0x11ca7},
     {0x11caa, 0x11cb0}, {0x11cb2, 0x11cb3}, {0x11cb5, 0x11cb6}, {0x11d31, 0x11d36},
     {0x11d3a, 0x11d3a}, {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47},
     {0x11d90, 0x11d91}, {0x11d95, 0x11d95}, {0x11d97, 0x11d97}, {0x11ef3, 0x11ef4},
     {0x11ef7, 0x11ef8}, {0x11f00, 0x11f01}, {0x11f36, 0x11f3a}, {0x11f40, 0x11f40},
     {0x11f42, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x13430, 0x13440},
     {0x13447, 0x13455}, {0x16e97, 0x16e9a}, {0x16f4f, 0x16f4f}, {0x16fe2, 0x16fe2},
     {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf2d}, {0x1cf30, 0x1cf46}, {0x1e000, 0x1e006},
     {0x1e008, 0x1e018}, {0x1e01b, 0x1e021}, {0x1e023, 0x1e024}, {0x1e026, 0x1e02a},
     {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
     {0x1e4ec, 0x1e4ef}, {0x1e944, 0x1e94a}, {0x1e95e, 0x1e95f}});
// These have another category by now: they were punctuation, and a mark.
constexpr std::array<char32_t, 2> kOldPunctuation{0x166d, 0x111c9};
constexpr char32_t kOldMark = 0x1734;
// These became lower case after utf8proc's Unicode, by so much.
struct Lowering {
  char32_t first, last;
  int by;
};
constexpr std::array kLowerings = std::to_array<Lowering>({{0x1c89, 0x1c89, 1},
                                                           {0xa7cb, 0xa7cb, -42343},
                                                           {0xa7cc, 0xa7cc, 1},
                                                           {0xa7ce, 0xa7ce, 1},
                                                           {0xa7d2, 0xa7d2, 1},
                                                           {0xa7d4, 0xa7d4, 1},
                                                           {0xa7da, 0xa7da, 1},
                                                           {0xa7dc, 0xa7dc, -42561},
                                                           {0x10d50, 0x10d65, 32},
                                                           {0x16ea0, 0x16eb8, 27}});
constexpr char32_t kDottedI = 0x130;  // two characters in lower case

template <typename Ranges>
auto range_of(const Ranges& ranges, char32_t code) {
  const auto range = std::ranges::lower_bound(ranges, code, {},
                                              [](const auto& candidate) { return candidate.last; });
  return range != ranges.end() && code >= range->first ? range : ranges.end();
}

bool is_newer(char32_t code) { return range_of(kNewer, code) != kNewer.end(); }

utf8proc_category_t category(char32_t code) {
  return is_newer(code) ? UTF8PROC_CATEGORY_CN
                        : utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_control_code(char32_t code) {
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

bool is_chinese(char32_t code) {
  // The package has 0x2b920, where BERT has 0x2b820.
  constexpr std::array kChinese = std::to_array<CodeRange>({{0x3400, 0x4dbf},
                                                            {0x4e00, 0x9fff},
                                                            {0xf900, 0xfaff},
                                                            {0x20000, 0x2a6df},
                                                            {0x2a700, 0x2b73f},
                                                            {0x2b740, 0x2b81f},
                                                            {0x2b920, 0x2ceaf},
                                                            {0x2f800, 0x2fa1f}});
  return range_of(kChinese, code) != kChinese.end();
}

void append_code(std::string& text, char32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
}

void append_lower(std::string& text, char32_t code) {
  if (code == kDottedI) {
    append_code(text, 'i');
    append_code(text, 0x307);
    return;
  }
  const auto lowering = range_of(kLowerings, code);
  if (lowering != kLowerings.end()) {
    const std::int64_t lower = static_cast<std::int64_t>(code) + lowering->by;
    return append_code(text, static_cast<char32_t>(lower));
  }
  append_code(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

/// Appends a character that is not cleaned away.
void append_normal(std::string& text, char32_t code, const BertText& rules) {
  const auto lowered = [&](char32_t part) {
    rules.lowercase ? append_lower(text, part) : append_code(text, part);
  };
  if (!rules.strips_accents || is_newer(code)) return lowered(code);
  constexpr std::size_t kMost = 16;  // no character decomposes into more
  std::array<utf8proc_int32_t, kMost> parts{};
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                                             kMost, UTF8PROC_DECOMPOSE, &boundary);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
    if (category(part) != UTF8PROC_CATEGORY_MN && part != kOldMark) lowered(part);
  }
}

}  // namespace

std::string BertText::normal(std::string_view text) const {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = first_character(text).bytes;
    const char32_t code = code_point(text.substr(0, bytes));
    text.remove_prefix(bytes);
    const bool ends_line = code == '\t' || code == '\n' || code == '\r';
    constexpr char32_t kReplacement = 0xfffd;
    const bool is_noise =
        code == 0 || code == kReplacement || (!ends_line && is_control_code(code));
    if (cleans && is_noise) continue;
    if (cleans && (ends_line || is_white_space(code))) {
      result += ' ';
      continue;
    }
    const bool is_apart = splits_chinese && is_chinese(code);
    if (is_apart) result += ' ';
    append_normal(result, code, *this);
    if (is_apart) result += ' ';
  }
  return result;
}

bool is_bert_punctuation(char32_t code) {
  const bool is_ascii = code > 0x20 && code < 0x7f;
  const bool is_alphanumeric =
      (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') || (code >= 'a' && code <= 'z');
  if (is_ascii) return !is_alphanumeric;
  if (std::ranges::find(kOldPunctuation, code) != kOldPunctuation.end()) return true;
  const utf8proc_category_t kind = category(code);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

}  // namespace tessera::data
