#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja_value.h"

namespace tessera::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// An expression: what its operands are depends on the kind.
struct Expression {
  enum class Kind {
    kLiteral,      ///< value
    kName,         ///< text
    kList,         ///< operands
    kTuple,        ///< operands
    kDict,         ///< operands: key, value, key, value ...
    kAttribute,    ///< operands[0].text
    kItem,         ///< operands[0][operands[1]]
    kSlice,        ///< operands[0][operands[1]:operands[2]:operands[3]], null where left out
    kCall,         ///< operands[0](the others, and named)
    kFilter,       ///< operands[0] | text(the others, and named)
    kTest,         ///< operands[0] is text(the others)
    kUnary,        ///< text: "not", "-", "+"
    kBinary,       ///< text: "and", "or", "+", "-", "*", "/", "//", "%", "**", "~"
    kCompare,      ///< operands[0] comparisons[0] operands[1] comparisons[1] operands[2] ...
    kConditional,  ///< operands[0] if operands[1] else operands[2], null if left out
  };
  Kind kind;
  int line;
  std::string text{};
  Value value{};
  std::vector<ExpressionPtr> operands{};
  std::vector<std::pair<std::string, ExpressionPtr>> named{};
  std::vector<std::string> comparisons{};
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,        ///< text
    kOutput,      ///< expression
    kIf,          ///< expression, body, otherwise
    kFor,         ///< names in expression if condition: body, else otherwise
    kSet,         ///< names = expression
    kSetMember,   ///< names[0].names[1] = expression
    kSetBlock,    ///< names[0] = what body writes
    kMacro,       ///< text(names, their defaults): body
    kGeneration,  ///< body: what an assistant has written
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text{};
  std::vector<std::string> names{};
  ExpressionPtr expression{};
  ExpressionPtr condition{};
  std::vector<ExpressionPtr> defaults{};  ///< of the last names
  Block body{};
  Block otherwise{};
};

}  // namespace tessera::jinja
