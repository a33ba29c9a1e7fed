#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_lexer.h"
#include "tessera/core/error.h"

namespace tessera::jinja {

/// A place in the tokens of a template, which is called `name` in errors.
class TokenCursor {
 public:
  TokenCursor(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

 protected:
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    fail(ErrorCode::kConfig, "line ", now().line, " of '", name_, "': ", what...);
  }
  const Token& now() const { return tokens_[at_]; }
  const Token& next(std::size_t ahead = 1) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(Token::Kind kind, std::string_view text) const {
    return now().kind == kind && now().text == text;
  }
  bool is_operator(std::string_view text) const { return is(Token::Kind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::kName, text); }
  bool take_operator(std::string_view text) { return is_operator(text) && (++at_, true); }
  bool take_name(std::string_view text) { return is_name(text) && (++at_, true); }
  void expect_operator(std::string_view text) {
    if (!take_operator(text)) refuse("expected '", text, "', not ", shown(now()));
  }
  void expect(Token::Kind kind, std::string_view what) {
    if (now().kind != kind) refuse("expected ", what, ", not ", shown(now()));
    ++at_;
  }
  std::string expect_name() {
    if (now().kind != Token::Kind::kName) refuse("expected a name, not ", shown(now()));
    return tokens_[at_++].text;
  }
  void end_block() { expect(Token::Kind::kBlockEnd, "'%}'"); }

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
};

}  // namespace tessera::jinja
