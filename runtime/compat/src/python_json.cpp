#include <algorithm>
#include <cctype>

#include "document.h"

namespace tessera::compat {
namespace {

/// Copies a text and puts JSON in place of what is Python's alone.
class PythonText {
 public:
  explicit PythonText(const std::string& text) : text_(text) {}

  std::string rewritten() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        copy_string(c);
      } else if (c == '/' && text_.compare(at_, 2, "//") == 0) {
        copy_line();
      } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
        copy_word();
      } else {
        if (c == ',' && closes(at_ + 1)) {
          ++at_;
          continue;
        }
        out_ += c;
        ++at_;
      }
    }
    return out_;
  }

 private:
  /// Whether the next that is no blank ends a list or a map.
  bool closes(std::size_t at) const {
    const std::size_t next = text_.find_first_not_of(" \t\r\n", at);
    return next != std::string::npos && (text_[next] == ']' || text_[next] == '}');
  }
  void copy_line() {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    out_.append(text_, at_, end - at_);
    at_ = end;
  }
  void copy_word() {
    std::size_t end = at_;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '_')) {
      ++end;
    }
    const std::string word = text_.substr(at_, end - at_);
    out_ += word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word;
    at_ = end;
  }
  void copy_string(char quote) {
    out_ += '"';
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        if (text_[at_] != '\'') out_ += '\\';
        out_ += text_[at_];
      } else {
        if (text_[at_] == '"') out_ += '\\';
        out_ += text_[at_];
      }
    }
    if (at_ < text_.size()) out_ += '"';
    ++at_;
  }

  const std::string& text_;
  std::string out_{};
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::string> json_of_python(const std::string& text) {
  std::string json = PythonText(text).rewritten();
  return json == text ? std::nullopt : std::optional(std::move(json));
}

}  // namespace tessera::compat
