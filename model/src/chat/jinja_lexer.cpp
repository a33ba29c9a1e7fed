#include "chat/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "tessera/core/error.h"
#include "tokenizer/utf8.h"

namespace tessera::jinja {
namespace lexer {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name) {
    const std::size_t invalid = data::find_invalid_utf8(source);
    require(invalid == std::string_view::npos, ErrorCode::kConfig, "'", name,
            "' is no UTF-8 at byte ", invalid);
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    // Jinja2 does so with keep_trailing_newline = false.
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) add_text_and_tag();
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    fail(ErrorCode::kConfig, "line ", line_, " of '", name_, "': ", what...);
  }
  bool is_at(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void add(Token::Kind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text)});
  }
  void skip(std::size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }
  void skip_blanks() {
    while (at_ < source_.size() && is_blank(source_[at_])) skip(1);
  }

  /// Where the next tag begins; the end if there is none.
  std::size_t next_tag() const {
    for (std::size_t i = source_.find('{', at_); i != std::string::npos;
         i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return source_.size();
  }

  void add_text_and_tag() {
    const std::size_t begin = at_, tag = next_tag();
    std::string text = source_.substr(begin, tag - begin);
    const char type = tag < source_.size() ? source_[tag + 1] : ' ';
    const char control = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (control == '-' && type != ' ') {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (control != '+' && (type == '%' || type == '#')) {
      strip_line_begin(text, begin);
    }
    if (!text.empty()) add(Token::Kind::kText, std::move(text));
    skip(tag - begin);
    if (tag == source_.size()) return;
    skip(control == '-' || control == '+' ? 3 : 2);
    if (type == '#') return skip_comment();
    add(type == '%' ? Token::Kind::kBlock : Token::Kind::kOutput);
    add_tag(type == '%' ? "%}" : "}}");
  }

  /// lstrip_blocks: blanks between the line's begin and a block's tag.
  void strip_line_begin(std::string& text, std::size_t begin) const {
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string::npos ? 0 : newline + 1;
    const bool is_line = newline != std::string::npos || begin == 0 || source_[begin - 1] == '\n';
    if (is_line &&
        std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), is_blank)) {
      text.resize(line);
    }
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment {# has no end #}");
    skip(end - at_);
    end_tag("#}", source_[at_ - 1]);
  }

  /// The end of a tag, at `at_`, with what it takes of the text behind it.
  void end_tag(std::string_view end, char control) {
    skip(end.size());
    if (control == '-') return skip_blanks();
    if (end != "}}" && control != '+' && is_at("\n")) skip(1);  // trim_blocks
  }

  void add_tag(std::string_view end) {
    std::vector<char> open;
    while (true) {
      skip_blanks();
      if (at_ >= source_.size()) refuse("a tag has no end ", end);
      const char sign = source_[at_];
      const bool controlled = (sign == '-' || (sign == '+' && end == "%}")) &&
                              std::string_view(source_).substr(at_ + 1).starts_with(end);
      if (open.empty() && (controlled || is_at(end))) {
        add(end == "%}" ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd);
        if (controlled) skip(1);
        return end_tag(end, controlled ? sign : ' ');
      }
      add_token(open);
    }
  }

  void add_token(std::vector<char>& open) {
    const char c = source_[at_];
    if (is_letter(c))
      return add_while(Token::Kind::kName, [](char k) { return is_letter(k) || is_digit(k); });
    if (is_digit(c)) return add_number();
    if (c == '\'' || c == '"') return add_string(c);
    constexpr std::array<std::string_view, 24> kOperators{
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~",
        "<",  ">",  "=",  "|",  ".",  ",",  ":", "(", ")", "[", "]", "{"};
    const auto* found = std::ranges::find_if(kOperators, [&](auto text) { return is_at(text); });
    if (found == kOperators.end() && c != '}')
      refuse("unexpected character '", std::string(1, c), "'");
    const std::string text = c == '}' ? "}" : std::string(*found);
    if (text == "(" || text == "[" || text == "{") open.push_back(text[0]);
    if ((text == ")" || text == "]" || text == "}")) {
      const char wanted = text == ")" ? '(' : text == "]" ? '[' : '{';
      if (open.empty() || open.back() != wanted) refuse("'", text, "' closes nothing");
      open.pop_back();
    }
    add(Token::Kind::kOperator, text);
    skip(text.size());
  }

  template <typename Is>
  void add_while(Token::Kind kind, const Is& is) {
    std::size_t end = at_;
    while (end < source_.size() && is(source_[end])) ++end;
    add(kind, source_.substr(at_, end - at_));
    skip(end - at_);
  }

  void add_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    digits();
    bool real = false;
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool has_sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (digit_at(end + (has_sign ? 2U : 1U))) {
        real = true;
        end += has_sign ? 2 : 1;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(real ? Token::Kind::kReal : Token::Kind::kInteger, std::move(text));
    skip(end - at_);
  }

  /// The character of "x41" or "u00e9", which begins at `i`, in UTF-8. Moves `i` to its last digit.
  std::string code_escape(std::size_t& i, std::size_t digits) {
    unsigned code = 0;
    const char* const begin = source_.data() + i + 1;
    const char* const end = begin + std::min(digits, source_.size() - i - 1);
    const auto [at, error] = std::from_chars(begin, end, code, 16);
    if (error != std::errc() || at != begin + digits || (code >= 0xd800 && code < 0xe000)) {
      refuse("a string has a \\", std::string(1, source_[i]), " that is no character");
    }
    i += digits;
    const auto byte = [](unsigned bits) { return static_cast<char>(bits); };
    if (code < 0x80) return {byte(code)};
    if (code < 0x800) return {byte(0xc0 | code >> 6), byte(0x80 | (code & 0x3f))};
    return {byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f))};
  }

  void add_string(char quote) {
    std::string text;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        text += source_[i];
        continue;
      }
      ++i;
      constexpr std::string_view kEscapes = "nrtbfav0\\'\"";
      constexpr std::string_view kMeant{"\n\r\t\b\f\a\v\0\\'\"", 11};
      const std::size_t known = kEscapes.find(source_[i]);
      if (source_[i] == '\n') continue;
      if (source_[i] == 'x' || source_[i] == 'u') {
        text += code_escape(i, source_[i] == 'x' ? 2 : 4);
        continue;
      }
      if (source_[i] == 'U' || source_[i] == 'N') {
        refuse("the escape \\", std::string(1, source_[i]),
               " of a string is not supported; write the character");
      }
      if (known == std::string_view::npos) text += '\\';  // as Python
      text += known == std::string_view::npos ? source_[i] : kMeant[known];
    }
    if (i >= source_.size()) refuse("a string has no end ", std::string(1, quote));
    add(Token::Kind::kString, std::move(text));
    skip(i + 1 - at_);
  }

  const std::string& name_;
  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace lexer

std::string shown(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "end of the template";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kOutputEnd:
      return "'}}'";
    default:
      return concat("'", token.text, "'");
  }
}

std::vector<Token> tokens_of(std::string_view source, const std::string& name) {
  return lexer::Lexer(source, name).run();
}

}  // namespace tessera::jinja
