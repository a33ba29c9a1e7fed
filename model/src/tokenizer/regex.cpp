#include "tokenizer/regex.h"

#include <array>
#include <cctype>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::data {
namespace {

// PCRE2's \s has U+180E besides, which is no white space since Unicode 6.3, and Debian 12's tables
// are those of Unicode 14, to which the ranges of the other classes add the newer.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kDecimals =
    R"(0-9\p{Nd}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1e4f0}-\x{1e4f9})"
    R"(\x{1e5f1}-\x{1e5fa})";

/// The class in brackets for \p{name}.
constexpr std::array kClasses = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"L",
      R"(a-zA-Z\p{L}\x{1c89}\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3})"
      R"(\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}\x{11240})"
      R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
      R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
      R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff})"
      R"(\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb})"
      R"(\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"},
     {"N", R"(0-9\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
           R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
           R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})"},
     {"M", R"(\p{M}\x{897}\x{cf3}\x{ece}\x{10d69}-\x{10d6d}\x{10efc}-\x{10eff}\x{11241})"
           R"(\x{113b8}-\x{113c0}\x{113c2}\x{113c5}\x{113c7}-\x{113ca}\x{113cc}-\x{113d0}\x{113d2})"
           R"(\x{113e1}\x{113e2}\x{11f00}\x{11f01}\x{11f03}\x{11f34}-\x{11f3a}\x{11f3e}-\x{11f42})"
           R"(\x{11f5a}\x{13440}\x{13447}-\x{13455}\x{1611e}-\x{1612f}\x{1e08f}\x{1e4ec}-\x{1e4ef})"
           R"(\x{1e5ee}\x{1e5ef})"},
     {"P", R"(\p{P}\x{1b4e}\x{1b4f}\x{1b7f}\x{10d6e}\x{113d4}\x{113d5}\x{113d7}\x{113d8})"
           R"(\x{11b00}-\x{11b09}\x{11be1}\x{11f43}-\x{11f4f}\x{16d6d}-\x{16d6f}\x{1e5ff})"},
     {"S", R"(\p{S}\x{2427}-\x{2429}\x{2ffc}-\x{2fff}\x{31e4}\x{31e5}\x{31ef}\x{10d8e}\x{10d8f})"
           R"(\x{1cc00}-\x{1ccef}\x{1cd00}-\x{1ceb3}\x{1f6dc}\x{1f774}-\x{1f776})"
           R"(\x{1f77b}-\x{1f77f}\x{1f7d9}\x{1f8b2}-\x{1f8bb}\x{1f8c0}\x{1f8c1}\x{1fa75}-\x{1fa77})"
           R"(\x{1fa87}-\x{1fa89}\x{1fa8f}\x{1faad}-\x{1faaf}\x{1fabb}-\x{1fabf}\x{1fac6}\x{1face})"
           R"(\x{1facf}\x{1fada}-\x{1fadc}\x{1fadf}\x{1fae8}\x{1fae9}\x{1faf7}\x{1faf8})"
           R"(\x{1fbcb}-\x{1fbef})"},
     {"Lu", R"(\p{Lu}\x{1c89}\x{a7cb}\x{a7cc}\x{a7da}\x{a7dc}\x{10d50}-\x{10d65})"},
     {"Ll", R"(\p{Ll}\x{1c8a}\x{a7cd}\x{a7db}\x{10d70}-\x{10d85}\x{1df25}-\x{1df2a})"},
     {"Lt", R"(\p{Lt})"},
     {"Lm",
      R"(\p{Lm}\x{10d4e}\x{10d6f}\x{16d40}-\x{16d42}\x{16d6b}\x{16d6c}\x{1e030}-\x{1e06d}\x{1e4eb})"},
     {"Lo",
      R"(\p{Lo}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d4d}\x{10d4f}\x{10ec2}-\x{10ec4}\x{1123f})"
      R"(\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1})"
      R"(\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
      R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d43}-\x{16d6a}\x{18cff})"
      R"(\x{1b132}\x{1b155}\x{1e4d0}-\x{1e4ea}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739})"
      R"(\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"},
     {"Nd", kDecimals}});

/// Goes through a pattern from left to right.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  std::string translate() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else if (rest_[0] == '[' || rest_[0] == ']') {
        bracket();
      } else if (depth_ > 0) {
        refuse_if(rest_.starts_with("&&"), "an intersection of classes");
        take(1);
      } else {
        outside();
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] static void refuse(std::string_view what) {
    fail(ErrorCode::kConfig, "uses ", what, ", which is not known here");
  }
  static void refuse_if(bool is_there, std::string_view what) {
    if (is_there) refuse(what);
  }
  void take(std::size_t bytes) {
    result_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }
  /// A class's ranges instead of the next bytes.
  void put(std::size_t bytes, std::string_view ranges, const char* open = "[") {
    result_ += depth_ > 0 ? std::string(ranges) : open + std::string(ranges) + "]";
    rest_.remove_prefix(bytes);
  }

  void escape() {
    const char next = rest_.size() > 1 ? rest_[1] : '\0';
    const std::string text(rest_.substr(0, 2));
    if (next == 's') return put(2, kWhiteSpace);
    if (next == 'd') return put(2, kDecimals);
    if (next == 'S' && depth_ == 0) return put(2, kWhiteSpace, "[^");
    if (next == 'p') {
      const std::size_t end = rest_.find('}');
      refuse_if(!rest_.starts_with("\\p{") || end == std::string_view::npos, "'\\p'");
      const std::string_view name = rest_.substr(3, end - 3);
      for (const auto& [known, ranges] : kClasses) {
        if (name == known) return put(end + 1, ranges);
      }
      refuse("the class '" + std::string(name) + "'");
    }
    if (next == 'x' && rest_.starts_with("\\x{")) return take(3);
    const bool is_control = next == 'r' || next == 'n' || next == 't';
    refuse_if(!is_control && std::ispunct(static_cast<unsigned char>(next)) == 0, "'" + text + "'");
    take(2);
  }

  /// Oniguruma's classes may be in classes, and add to them.
  void bracket() {
    if (rest_[0] == ']') {
      refuse_if(depth_ == 0, "']' outside of a class");
      if (--depth_ == 0) return take(1);
      return rest_.remove_prefix(1);
    }
    const char next = rest_.size() > 1 ? rest_[1] : '\0';
    refuse_if(depth_ > 0 && (next == '^' || next == ':'), "'[" + std::string(1, next) + "'");
    if (depth_++ > 0) return rest_.remove_prefix(1);
    take(next == '^' ? 2 : 1);
    refuse_if(rest_.starts_with("]"), "an empty class");
  }

  void outside() {
    const char next = rest_.size() > 1 ? rest_[1] : '\0';
    switch (rest_[0]) {
      case '$':  // of each line
        result_ += "(?=\\n|\\z)";
        return rest_.remove_prefix(1);
      case '.':
        result_ += "[^\\n]";
        return rest_.remove_prefix(1);
      case '^':
        refuse("'^'");
      case '{':
        refuse_if(std::isdigit(static_cast<unsigned char>(next)) == 0, "'{'");
        break;
      case '}':
        refuse_if(next == '+', "'}+'");
        break;
      case '(': {
        bool known = next != '?' && next != '*';
        for (const char* group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"}) {
          known = known || rest_.starts_with(group);
        }
        refuse_if(!known, "'" + std::string(rest_.substr(0, 4)) + "'");
        break;
      }
      default:
        break;
    }
    take(1);
  }

  std::string_view rest_;
  std::string result_;
  int depth_ = 0;  ///< of classes
};

}  // namespace

std::string in_pcre2(std::string_view pattern) { return Translator(pattern).translate(); }

}  // namespace tessera::data
