#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

struct Token {
  enum class Kind {
    kText,    ///< outside of tags
    kOutput,  ///< {{
    kOutputEnd,
    kBlock,  ///< {%
    kBlockEnd,
    kName,
    kString,  ///< its content
    kInteger,
    kReal,
    kOperator,
    kEnd,
  };
  Kind kind;
  int line;
  std::string text{};
};

/// A token in words, for errors.
std::string shown(const Token& token);

/// The tokens of a template, with the white space around tags that Jinja2 leaves with trim_blocks
/// and lstrip_blocks, which transformers sets. Comments are gone. `name`: of the template, for
/// errors. Throws Error{kConfig} that names the line.
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

}  // namespace tessera::jinja
