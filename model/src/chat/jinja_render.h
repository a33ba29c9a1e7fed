#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja_ast.h"

namespace tessera::jinja {

struct Rendering {
  std::string text;
  /// The bytes that each {% generation %} wrote: [first, second).
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// Runs a template as transformers does, with its raise_exception and strftime_now, the latter at
/// `time`. `name`: of the template. Throws Error{kConfig} that names the line.
Rendering render(const Block& block, const std::string& name, const Dict& variables,
                 const std::tm& time);

}  // namespace tessera::jinja
