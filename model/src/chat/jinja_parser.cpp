#include "chat/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "chat/jinja_cursor.h"
#include "chat/jinja_lexer.h"
#include "tessera/core/error.h"

namespace tessera::jinja {
namespace parser {

using Kind = Expression::Kind;

/// Parses statements and, in order of precedence, expressions.
class Parser : TokenCursor {
 public:
  using TokenCursor::TokenCursor;

  Block run() {
    Block block = parse_block({});
    if (now().kind != Token::Kind::kEnd) refuse("unexpected ", shown(now()));
    return block;
  }

 private:
  static constexpr int kDeepest = 200;

  /// Statements up to a tag that begins with one of `ends`, whose name is then the next token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kDeepest) refuse("blocks are nested deeper than ", kDeepest, " levels");
    Block block;
    while (now().kind != Token::Kind::kEnd) {
      const int line = now().line;
      if (now().kind == Token::Kind::kText) {
        block.push_back({.kind = Statement::Kind::kText, .line = line, .text = now().text});
        ++at_;
      } else if (now().kind == Token::Kind::kOutput) {
        ++at_;
        block.push_back(
            {.kind = Statement::Kind::kOutput, .line = line, .expression = parse_tuple()});
        expect(Token::Kind::kOutputEnd, "'}}'");
      } else {
        ++at_;
        if (std::ranges::find(ends, now().text) != ends.end()) {
          --depth_;
          return block;
        }
        block.push_back(parse_statement());
      }
    }
    if (ends.size() > 0) refuse("the template ends without {% ", *(ends.end() - 1), " %}");
    --depth_;
    return block;
  }

  void end_of(std::string_view name) {
    if (!take_name(name)) refuse("expected {% ", name, " %}, not ", shown(now()));
    end_block();
  }

  Statement parse_statement() {
    const int line = now().line;
    const std::string name = expect_name();
    if (name == "if") return parse_if(line);
    if (name == "for") return parse_for(line);
    if (name == "set") return parse_set(line);
    if (name == "macro") return parse_macro(line);
    if (name == "generation") {
      end_block();
      Statement all{.kind = Statement::Kind::kGeneration, .line = line};
      all.body = parse_block({"endgeneration"});
      end_of("endgeneration");
      return all;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse("{% ", name, " %} is outside of a loop");
      end_block();
      return {.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue,
              .line = line};
    }
    refuse("{% ", name,
           " %} is not supported; chat templates may have if, for, set, macro, "
           "generation, break and continue");
  }

  Statement parse_if(int line) {
    Statement all{.kind = Statement::Kind::kIf, .line = line, .expression = parse_tuple()};
    end_block();
    all.body = parse_block({"elif", "else", "endif"});
    const int next_line = now().line;
    if (take_name("elif")) {
      all.otherwise.push_back(parse_if(next_line));  // takes the endif
      return all;
    }
    if (take_name("else")) {
      end_block();
      all.otherwise = parse_block({"endif"});
    }
    end_of("endif");
    return all;
  }

  Statement parse_for(int line) {
    Statement all{.kind = Statement::Kind::kFor, .line = line};
    do all.names.push_back(expect_name());
    while (take_operator(","));
    if (!take_name("in")) refuse("expected 'in', not ", shown(now()));
    all.expression = parse_tuple(false);
    if (take_name("if")) all.condition = parse_expression();
    if (is_name("recursive")) refuse("recursive loops are not supported");
    end_block();
    ++loops_;
    all.body = parse_block({"else", "endfor"});
    --loops_;
    if (take_name("else")) {
      end_block();
      all.otherwise = parse_block({"endfor"});
    }
    end_of("endfor");
    return all;
  }

  Statement parse_set(int line) {
    Statement all{.kind = Statement::Kind::kSet, .line = line};
    all.names.push_back(expect_name());
    if (take_operator(".")) {
      all.kind = Statement::Kind::kSetMember;
      all.names.push_back(expect_name());
    } else {
      while (take_operator(",")) all.names.push_back(expect_name());
    }
    if (take_operator("=")) {
      all.expression = parse_tuple();
      end_block();
      return all;
    }
    if (all.kind != Statement::Kind::kSet || all.names.size() != 1) {
      refuse("expected '=', not ", shown(now()));
    }
    if (is_operator("|")) refuse("{% set %} with a body and a filter is not supported");
    end_block();
    all.kind = Statement::Kind::kSetBlock;
    all.body = parse_block({"endset"});
    end_of("endset");
    return all;
  }

  Statement parse_macro(int line) {
    Statement all{.kind = Statement::Kind::kMacro, .line = line, .text = expect_name()};
    expect_operator("(");
    while (!take_operator(")")) {
      if (!all.names.empty()) expect_operator(",");
      all.names.push_back(expect_name());
      if (take_operator("=")) {
        all.defaults.push_back(parse_expression());
      } else if (!all.defaults.empty()) {
        refuse("a parameter without a default is behind one that has one");
      }
    }
    end_block();
    const int outside = loops_;
    loops_ = 0;
    all.body = parse_block({"endmacro"});
    loops_ = outside;
    end_of("endmacro");
    return all;
  }

  ExpressionPtr make(Kind kind, int line, std::string text = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = line;
    expression->text = std::move(text);
    return expression;
  }
  template <typename... Operands>
  ExpressionPtr make_of(Kind kind, int line, std::string text, Operands... operands) const {
    ExpressionPtr all = make(kind, line, std::move(text));
    (all->operands.push_back(std::move(operands)), ...);
    return all;
  }

  /// "a, b" without parentheses.
  ExpressionPtr parse_tuple(bool conditional = true) {
    const int line = now().line;
    ExpressionPtr first = conditional ? parse_expression() : parse_or();
    if (!is_operator(",")) return first;
    ExpressionPtr all = make_of(Kind::kTuple, line, "", std::move(first));
    while (take_operator(",")) {
      if (now().kind == Token::Kind::kBlockEnd || now().kind == Token::Kind::kOutputEnd ||
          is_operator(")")) {
        break;
      }
      all->operands.push_back(conditional ? parse_expression() : parse_or());
    }
    return all;
  }

  ExpressionPtr parse_expression() {
    if (++depth_ > kDeepest) refuse("expressions are nested deeper than ", kDeepest, " levels");
    const int line = now().line;
    ExpressionPtr value = parse_or();
    while (take_name("if")) {
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = take_name("else") ? parse_expression() : nullptr;
      value = make_of(Kind::kConditional, line, "", std::move(value), std::move(condition),
                      std::move(otherwise));
    }
    --depth_;
    return value;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    for (int line = now().line; take_name("or"); line = now().line) {
      left = make_of(Kind::kBinary, line, "or", std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    for (int line = now().line; take_name("and"); line = now().line) {
      left = make_of(Kind::kBinary, line, "and", std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr parse_not() {
    const int line = now().line;
    if (take_name("not")) return make_of(Kind::kUnary, line, "not", parse_not());
    return parse_comparison();
  }

  /// "" if none is next.
  std::string take_comparison() {
    for (const char* const text : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (take_operator(text)) return text;
    }
    if (take_name("in")) return "in";
    if (is_name("not") && next().kind == Token::Kind::kName && next().text == "in") {
      at_ += 2;
      return "not in";
    }
    return "";
  }

  ExpressionPtr parse_comparison() {
    const int line = now().line;
    ExpressionPtr left = parse_binary(0);
    std::string comparison = take_comparison();
    if (comparison.empty()) return left;
    ExpressionPtr all = make_of(Kind::kCompare, line, "", std::move(left));
    for (; !comparison.empty(); comparison = take_comparison()) {
      all->comparisons.push_back(comparison);
      all->operands.push_back(parse_binary(0));
    }
    return all;
  }

  /// Levels that bind ever more tightly, as Jinja2 has them.
  ExpressionPtr parse_binary(std::size_t level) {
    static const std::vector<std::vector<std::string>> kLevels{
        {"+", "-"}, {"~"}, {"*", "//", "/", "%"}, {"**"}};
    if (level == kLevels.size()) return parse_unary(true);
    ExpressionPtr left = parse_binary(level + 1);
    while (now().kind == Token::Kind::kOperator) {
      const auto found = std::ranges::find(kLevels[level], now().text);
      if (found == kLevels[level].end()) break;
      const int line = tokens_[at_++].line;
      left = make_of(Kind::kBinary, line, *found, std::move(left), parse_binary(level + 1));
    }
    return left;
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const int line = now().line;
    ExpressionPtr value;
    for (const char* const sign : {"-", "+"}) {
      if (value == nullptr && take_operator(sign)) {
        value = make_of(Kind::kUnary, line, sign, parse_unary(false));
      }
    }
    if (value == nullptr) value = parse_primary();
    value = parse_postfix(std::move(value));
    return with_filters ? parse_filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr literal(Value value) {
    ExpressionPtr all = make(Kind::kLiteral, now().line);
    all->value = std::move(value);
    ++at_;
    return all;
  }

  ExpressionPtr parse_primary() {
    const Token& token = now();
    switch (token.kind) {
      case Token::Kind::kName:
        return parse_name();
      case Token::Kind::kString: {
        std::string text = token.text;
        while (next().kind == Token::Kind::kString) text += tokens_[++at_].text;
        return literal(Value(std::move(text)));
      }
      case Token::Kind::kInteger: {
        std::int64_t number = 0;
        const char* const end = token.text.data() + token.text.size();
        const auto [at, error] = std::from_chars(token.text.data(), end, number);
        if (error != std::errc() || at != end) refuse("the number ", token.text, " is too large");
        return literal(Value(number));
      }
      case Token::Kind::kReal:
        return literal(Value(std::strtod(token.text.c_str(), nullptr)));
      default:
        break;
    }
    if (is_operator("(")) return parse_parentheses();
    if (is_operator("[")) return parse_list();
    if (is_operator("{")) return parse_dict();
    refuse("unexpected ", shown(token));
  }

  ExpressionPtr parse_name() {
    const std::string& text = now().text;
    if (text == "true" || text == "True") return literal(Value(true));
    if (text == "false" || text == "False") return literal(Value(false));
    if (text == "none" || text == "None") return literal(Value::none());
    ExpressionPtr all = make(Kind::kName, now().line, text);
    ++at_;
    return all;
  }

  ExpressionPtr parse_parentheses() {
    const int line = now().line;
    expect_operator("(");
    if (take_operator(")")) return make(Kind::kTuple, line);
    ExpressionPtr inside = parse_tuple();
    expect_operator(")");
    return inside;
  }

  ExpressionPtr parse_list() {
    ExpressionPtr all = make(Kind::kList, now().line);
    expect_operator("[");
    while (!take_operator("]")) {
      if (!all->operands.empty()) expect_operator(",");
      if (take_operator("]")) break;
      all->operands.push_back(parse_expression());
    }
    return all;
  }

  ExpressionPtr parse_dict() {
    ExpressionPtr all = make(Kind::kDict, now().line);
    expect_operator("{");
    while (!take_operator("}")) {
      if (!all->operands.empty()) expect_operator(",");
      if (take_operator("}")) break;
      all->operands.push_back(parse_expression());
      expect_operator(":");
      all->operands.push_back(parse_expression());
    }
    return all;
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
    while (true) {
      const int line = now().line;
      if (take_operator(".")) {
        if (now().kind == Token::Kind::kInteger) {
          value = make_of(Kind::kItem, line, "", std::move(value), parse_primary());
        } else {
          value = make_of(Kind::kAttribute, line, expect_name(), std::move(value));
        }
      } else if (take_operator("[")) {
        value = parse_subscript(std::move(value), line);
      } else if (is_operator("(")) {
        ExpressionPtr call = make_of(Kind::kCall, line, "", std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr value, int line) {
    ExpressionPtr parts[3];
    std::size_t colons = 0;
    while (!is_operator("]")) {
      if (take_operator(":")) {
        if (++colons > 2) refuse("a slice has at most two colons");
      } else {
        if (parts[colons] != nullptr) refuse("expected ']', not ", shown(now()));
        parts[colons] = parse_expression();
      }
    }
    expect_operator("]");
    if (colons > 0) {
      return make_of(Kind::kSlice, line, "", std::move(value), std::move(parts[0]),
                     std::move(parts[1]), std::move(parts[2]));
    }
    if (parts[0] == nullptr) refuse("[] has no index");
    return make_of(Kind::kItem, line, "", std::move(value), std::move(parts[0]));
  }

  void parse_arguments(Expression& call) {
    expect_operator("(");
    for (bool first = true; !take_operator(")"); first = false) {
      if (!first) expect_operator(",");
      if (take_operator(")")) break;
      if (is_operator("*") || is_operator("**")) refuse("arguments by * and ** are not supported");
      const bool is_named = now().kind == Token::Kind::kName &&
                            next().kind == Token::Kind::kOperator && next().text == "=";
      if (is_named) {
        std::string name = expect_name();
        ++at_;
        call.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!call.named.empty()) refuse("an argument without a name is behind one that has one");
        call.operands.push_back(parse_expression());
      }
    }
  }

  ExpressionPtr parse_filters(ExpressionPtr value) {
    while (true) {
      const int line = now().line;
      if (take_operator("|")) {
        value = make_of(Kind::kFilter, line, expect_name(), std::move(value));
        if (is_operator("(")) parse_arguments(*value);
      } else if (take_name("is")) {
        value = parse_test(std::move(value), line);
      } else if (is_operator("(")) {
        ExpressionPtr call = make_of(Kind::kCall, line, "", std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_test(ExpressionPtr value, int line) {
    const bool negated = take_name("not");
    ExpressionPtr test = make_of(Kind::kTest, line, expect_name(), std::move(value));
    const auto begins_argument = [&] {
      const Token::Kind kind = now().kind;
      if (kind == Token::Kind::kName) {
        constexpr std::string_view kNone[] = {"else", "or", "and", "is", "if", "not", "in"};
        return std::ranges::find(kNone, now().text) == std::end(kNone);
      }
      return kind == Token::Kind::kString || kind == Token::Kind::kInteger ||
             kind == Token::Kind::kReal || is_operator("[") || is_operator("{");
    };
    if (is_operator("(")) {
      parse_arguments(*test);
    } else if (begins_argument()) {
      test->operands.push_back(parse_postfix(parse_primary()));
    }
    return negated ? make_of(Kind::kUnary, line, "not", std::move(test)) : std::move(test);
  }

  int loops_ = 0;  ///< around this place
  int depth_ = 0;
};

}  // namespace parser

Block parse(std::string_view source, const std::string& name) {
  return parser::Parser(tokens_of(source, name), name).run();
}

}  // namespace tessera::jinja
