#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <sstream>

#include "document.h"
#include "tessera/core/error.h"

namespace tessera::compat {
namespace {

bool any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

template <typename T>
bool parse_whole(const std::string& text, T& number) {
  const char* begin = text.data() + (text.size() > 1 && text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(begin, end, number);
  return result.ec == std::errc() && result.ptr == end;
}

/// The meaning of a plain scalar: YAML 1.1 as PyYAML reads it, in which no and off are booleans,
/// but 1e-5 is a number here, which PyYAML takes for a text.
nlohmann::json plain_value(const std::string& text) {
  if (any_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (any_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (any_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    return false;
  }
  const char first = text[text[0] == '-' || text[0] == '+' || text[0] == '.' ? text.size() > 1 : 0];
  if (first < '0' || first > '9' || has_leading_zero(text)) return text;
  if (std::int64_t integer = 0; parse_whole(text, integer)) return integer;
  if (double number = 0; parse_whole(text, number) && std::isfinite(number)) return number;
  return text;
}

/// `line`: from 1.
bool is_indented_with_tab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string found;
  for (int i = 0; i < line && std::getline(lines, found); ++i) {
  }
  return found.substr(0, found.find_first_not_of(" \t")).find('\t') != std::string::npos;
}

class YamlEvents : public YAML::EventHandler {
 public:
  YamlEvents(const std::string& path, const std::string& text)
      : builder_(path), path_(path), text_(text) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!builder_.wants_key()) check_colon();
    value(mark, nullptr, "", anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    require(!builder_.wants_key(), ErrorCode::kConfig, at_line(path_, line(mark)),
            "a key must be a word, not an alias");
    builder_.alias(anchor, line(mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    check_tag(tag, mark);
    // "?" is a plain scalar, "!" a quoted one; "!!str" and the like are read as quoted.
    if (builder_.wants_key()) key_ = {mark, text};
    value(mark, tag == "?" ? plain_value(text) : nlohmann::json(text), text, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(tag, mark);
    begin(Node::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { builder_.end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(tag, mark);
    begin(Node::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override { builder_.end(); }

  Node take() { return builder_.take(); }

 private:
  static int line(const YAML::Mark& mark) { return mark.line + 1; }
  /// YAML's own tags only; others would make objects of some program.
  void check_tag(const std::string& tag, const YAML::Mark& mark) const {
    constexpr std::string_view kYaml = "tag:yaml.org,2002:";
    const bool is_own =
        any_of(tag, {"", "?", "!"}) ||
        (tag.starts_with(kYaml) && any_of(std::string_view(tag).substr(kYaml.size()),
                                          {"str", "int", "float", "bool", "null", "seq", "map"}));
    require(is_own, ErrorCode::kConfig, at_line(path_, line(mark)), "the tag '", tag,
            "' means nothing here; write the plain value");
  }
  /// The parser lets the last key of a text go without its colon, which YAML does not.
  void check_colon() const {
    if (key_.mark.is_null()) return;
    const auto at = static_cast<std::size_t>(key_.mark.pos);
    const std::size_t line_begin = text_.rfind('\n', at) + 1;
    const std::size_t first = text_.find_first_not_of(" \t", line_begin);
    const bool quoted = at < text_.size() && (text_[at] == '"' || text_[at] == '\'');
    const std::size_t begin = at + (quoted ? 1 : 0);
    const std::size_t end = begin + key_.text.size() + (quoted ? 1 : 0);
    const bool alone = first == at && text_.compare(begin, key_.text.size(), key_.text) == 0 &&
                       text_.find_first_not_of(" \t\r\n", end) == std::string::npos;
    require(!alone, ErrorCode::kConfig, at_line(path_, line(key_.mark)), "'", key_.text,
            "' has no colon; write '", key_.text, ": ' and a value, or take it out");
  }
  void value(const YAML::Mark& mark, nlohmann::json value, const std::string& text,
             YAML::anchor_t anchor) {
    if (builder_.wants_key()) {
      builder_.key(text, line(mark));
    } else {
      builder_.scalar(std::move(value), text, line(mark), anchor);
    }
  }
  void begin(Node::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    require(!builder_.wants_key(), ErrorCode::kConfig, at_line(path_, line(mark)),
            "a key must be a word");
    builder_.begin(kind, line(mark), anchor);
  }

  struct Key {
    YAML::Mark mark = YAML::Mark::null_mark();
    std::string text{};
  };

  TreeBuilder builder_;
  const std::string& path_;
  const std::string& text_;
  Key key_;  // the last
};

/// After a last line that ends, the parser takes the end of the text for the end of a quote, but
/// not a mark of the document's end: there it throws DOC_IN_SCALAR.
void check_last_quote(const std::string& path, const std::string& text) {
  YamlEvents ignored(path, text);
  std::istringstream stream(text + (text.ends_with('\n') ? "..." : "\n..."));
  YAML::Parser(stream).HandleNextDocument(ignored);
}

}  // namespace

Node parse_yaml(const std::string& path, const std::string& text) {
  YamlEvents events(path, text);
  std::istringstream stream(text);
  try {
    YAML::Parser parser(stream);
    const bool any = parser.HandleNextDocument(events);
    Node root = any ? events.take() : Node{};
    YamlEvents ignored(path, text);
    require(!any || !parser.HandleNextDocument(ignored), ErrorCode::kConfig, path,
            ": holds more than one YAML document; keep one");
    require(!root.is_null(), ErrorCode::kConfig, path,
            ": is empty; write settings into it, or run 'tessera config'");
    check_last_quote(path, text);
    return root;
  } catch (const YAML::Exception& error) {
    const int line = error.mark.is_null() ? 0 : error.mark.line + 1;
    const bool open_quote =
        error.msg == YAML::ErrorMsg::DOC_IN_SCALAR || error.msg == YAML::ErrorMsg::EOF_IN_SCALAR;
    require(!open_quote, ErrorCode::kConfig, at_line(path, line),
            "not valid YAML: a quote that was opened is not closed by here; close it");
    fail(ErrorCode::kConfig, at_line(path, line), "not valid YAML: ", error.msg,
         is_indented_with_tab(text, line) ? "; indent with spaces, YAML allows no tabs there" : "");
  }
}

}  // namespace tessera::compat
