#pragma once

#include <string>
#include <string_view>

#include "chat/jinja_ast.h"

namespace tessera::jinja {

/// Parses a template of Jinja2 with the extensions that transformers has: break and continue, and
/// {% generation %}. Statements that chat templates have no use for (include, extends, block, call,
/// filter, with, raw, ...) are refused by name. Throws Error{kConfig} that names the line.
Block parse(std::string_view source, const std::string& name);

}  // namespace tessera::jinja
