#include "tokenizer/word_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>
#include <string>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

// The package `tokenizers` searches with Oniguruma and its tables of Unicode 16. Classes are spelt
// out so that PCRE2 sees the same: its \s has U+180E besides, which is no white space since
// Unicode 6.3, and Debian 12's \p{L} and \p{N} are those of Unicode 14, to which these ranges add
// the newer.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kLetters =
    R"(a-zA-Z\p{L}\x{1c89}\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3})"
    R"(\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
    R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff})"
    R"(\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb})"
    R"(\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view kNumbers =
    R"(0-9\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
    R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

/// The pattern with its classes spelt out.
std::string in_pcre2(std::string_view pattern) {
  std::string result;
  bool in_class = false;
  while (!pattern.empty()) {
    const auto class_of = [&](std::string_view shorthand, std::string_view ranges,
                              const char* open) {
      if (!pattern.starts_with(shorthand)) return false;
      result += in_class ? std::string(ranges) : open + std::string(ranges) + "]";
      pattern.remove_prefix(shorthand.size());
      return true;
    };
    if (class_of("\\s", kWhiteSpace, "[") || class_of("\\S", kWhiteSpace, "[^") ||
        class_of("\\p{L}", kLetters, "[") || class_of("\\p{N}", kNumbers, "[")) {
      continue;
    }
    const std::size_t length = pattern[0] == '\\' ? 2 : 1;
    if (pattern[0] == '[') in_class = true;
    if (pattern[0] == ']') in_class = false;
    result += pattern.substr(0, length);
    pattern.remove_prefix(length);
  }
  return result;
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Most words by far, without the search: in each of the patterns, ASCII letters with at most a
/// space before them are a word if no letter follows, as no other ASCII character is one. 0: no
/// such word.
std::size_t ascii_word(std::string_view text) {
  const std::size_t begin = text[0] == ' ' ? 1 : 0;
  std::size_t end = begin;
  while (end < text.size() && is_ascii_letter(text[end])) ++end;
  const bool ascii_follows = end == text.size() || static_cast<unsigned char>(text[end]) < 0x80;
  return end > begin && ascii_follows ? end : 0;
}

[[noreturn]] void fail_pcre2(int error, const char* doing) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  fail(ErrorCode::kInternal, "PCRE2 cannot ", doing, ": ",
       reinterpret_cast<const char*>(text.data()));
}

}  // namespace

std::string_view pattern_text(WordPatternKind kind) {
  switch (kind) {
    case WordPatternKind::kGpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case WordPatternKind::kLlama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case WordPatternKind::kQwen:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return "";
}

WordPattern::WordPattern(WordPatternKind kind) : code_(nullptr, pcre2_code_free) {
  const std::string pattern = in_pcre2(pattern_text(kind));
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr));
  if (!code_) fail_pcre2(error, "compile the pattern of words");
  // Where this processor or a policy allows no JIT, the same matches come slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

WordPattern::Words::Words(const WordPattern& pattern)
    : pattern_(pattern), match_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free) {
  if (!match_) throw std::bad_alloc();
}

void WordPattern::Words::begin(std::string_view text) {
  text_ = text;
  done_ = 0;
}

std::string_view WordPattern::Words::next() {
  if (done_ == text_.size()) return {};
  if (const std::size_t length = ascii_word(text_.substr(done_)); length > 0) {
    return text_.substr(std::exchange(done_, done_ + length), length);
  }
  const int count = pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                                text_.size(), done_, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
  if (count < 0) fail_pcre2(count, "split a text into words");
  const std::size_t begin = std::exchange(done_, pcre2_get_ovector_pointer(match_.get())[1]);
  require(done_ > begin, ErrorCode::kInternal, "an empty word");
  return text_.substr(begin, done_ - begin);
}

}  // namespace tessera::data
