#include "tokenizer/word_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include "tessera/core/error.h"
#include "tokenizer/regex.h"

namespace tessera::data {
namespace {

// Rust's numbers are those of Unicode 17, and its punctuation that of Unicode 8 and ASCII's.
constexpr std::string_view kDigit = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";
constexpr std::string_view kNoPunctuation =
    R"((?![\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b4e}-\x{1b4f}\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e4f})"
    R"(\x{2e52}-\x{2e5d}\x{10d6e}\x{10ead}\x{10f55}-\x{10f59}\x{10f86}-\x{10f89}\x{113d4})"
    R"(\x{113d5}\x{113d7}\x{113d8}\x{1144b}-\x{1144f}\x{1145a}\x{1145b}\x{1145d})"
    R"(\x{11660}-\x{1166c}\x{116b9}\x{1183b}\x{11944}-\x{11946}\x{119e2}\x{11a3f}-\x{11a46})"
    R"(\x{11a9a}-\x{11a9c}\x{11a9e}-\x{11aa2}\x{11b00}-\x{11b09}\x{11be1}\x{11c41}-\x{11c45})"
    R"(\x{11c70}\x{11c71}\x{11ef7}\x{11ef8}\x{11f43}-\x{11f4f}\x{11fff}\x{12ff1}\x{12ff2})"
    R"(\x{16d6d}-\x{16d6f}\x{16e97}-\x{16e9a}\x{16fe2}\x{1e5ff}\x{1e95e}\x{1e95f}]))";
constexpr std::string_view kPunctuation = R"([\p{P}$+<=>\^`|~\x{166d}\x{111c9}])";

// Tekken's of Mistral, o200k's of Phi-4-mini, and that of DeepSeek V3: letters go on with marks,
// and punctuation with a slash.
constexpr std::array<std::string_view, 3> kCutBeforeSpaces{
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

/// One class without white space, as often as it likes: "\p{N}", "[0-9]+", "\p{N}{1,3}".
bool is_run_of_a_class(std::string_view pattern) {
  std::size_t end = 0;
  if (pattern.starts_with("\\p{")) {
    end = pattern.find('}') + 1;
  } else if (pattern.starts_with('[') && !pattern.starts_with("[^")) {
    end = pattern.find(']') + 1;
  }
  if (end == 0) return false;
  const std::string_view of = pattern.substr(0, end), times = pattern.substr(end);
  if (of.find_first_of(" \r\n\t") != std::string_view::npos) return false;
  for (const char* space : {"\\s", "\\r", "\\n", "\\t", "\\x", "[["}) {
    if (of.find(space) != std::string_view::npos) return false;
  }
  if (of.find('[', 1) != std::string_view::npos) return false;
  return times.empty() || times == "+" || times == "{1,3}";
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

[[noreturn]] void fail_pcre2(int error, const char* doing, ErrorCode code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  fail(code, "PCRE2 cannot ", doing, ": ", reinterpret_cast<const char*>(text.data()));
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

std::optional<WordPatternKind> kind_of_pattern(std::string_view pattern) {
  for (const auto kind :
       {WordPatternKind::kGpt2, WordPatternKind::kLlama3, WordPatternKind::kQwen}) {
    if (pattern == pattern_text(kind)) return kind;
  }
  return std::nullopt;
}

std::string digits_pattern(bool runs) { return std::string(kDigit) + (runs ? "+" : ""); }

std::string punctuation_pattern(bool runs) {
  return concat("(?:", kNoPunctuation, kPunctuation, ")", runs ? "+" : "");
}

WordCuts cuts_of(std::string_view pattern) {
  if (kind_of_pattern(pattern)) return WordCuts::kSpacesAndNewlines;
  if (std::ranges::find(kCutBeforeSpaces, pattern) != kCutBeforeSpaces.end()) {
    return WordCuts::kSpaces;
  }
  for (const bool runs : {false, true}) {
    if (pattern == digits_pattern(runs) || pattern == punctuation_pattern(runs)) {
      return WordCuts::kOfOthers;
    }
  }
  return pattern.empty() || is_run_of_a_class(pattern) ? WordCuts::kOfOthers : WordCuts::kNone;
}

WordPattern::WordPattern(std::string_view text, bool removes_rest)
    : code_(nullptr, pcre2_code_free),
      removes_rest_(removes_rest),
      is_known_(kind_of_pattern(text).has_value()) {
  if (text.empty()) return;
  const std::string pattern = in_pcre2(text);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!code_) fail_pcre2(error, "compile the pattern of words", ErrorCode::kConfig);
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  require(may_be_empty == 0, ErrorCode::kConfig, "matches where there is nothing");
  // Where this processor or a policy allows no JIT, the same matches come slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

WordPattern::Words::Words(const WordPattern& pattern)
    : pattern_(pattern), match_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free) {
  if (!match_) throw std::bad_alloc();
}

void WordPattern::Words::begin(std::string_view text) {
  text_ = text;
  done_ = found_ = 0;
}

/// The next match; false if there is none.
bool WordPattern::Words::find(std::size_t& begin, std::size_t& end) {
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                       text_.size(), done_, PCRE2_NO_UTF_CHECK | options, match_.get(), nullptr);
  };
  int count = match(0);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) fail_pcre2(count, "split a text into words", ErrorCode::kInternal);
  begin = pcre2_get_ovector_pointer(match_.get())[0];
  end = pcre2_get_ovector_pointer(match_.get())[1];
  require(end > begin, ErrorCode::kInternal, "an empty word");
  return true;
}

std::string_view WordPattern::Words::next() {
  const auto take = [&](std::size_t begin, std::size_t end) {
    done_ = end;
    return text_.substr(begin, end - begin);
  };
  if (found_ > 0) return take(done_, std::exchange(found_, 0));
  if (done_ == text_.size()) return {};
  if (pattern_.is_known_) {
    const std::size_t length = ascii_word(text_.substr(done_));
    if (length > 0) return take(done_, done_ + length);
  }
  std::size_t begin = text_.size(), end = begin;
  const bool is_there = pattern_.code_ != nullptr && find(begin, end);
  if (!is_there) {
    const bool removed = pattern_.removes_rest_ && pattern_.code_ != nullptr;
    return take(removed ? text_.size() : done_, text_.size());
  }
  if (begin == done_ || pattern_.removes_rest_) return take(begin, end);
  found_ = end;
  return take(done_, begin);
}

}  // namespace tessera::data
