#pragma once

#include <string>

#include "document.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

struct Recognition {
  ConfigDialect dialect = ConfigDialect::kTessera;
  std::string by{};  ///< the key that told; empty if there is none
};

/// Whose keys the file has. A file with none that is known is taken for ours.
/// Throws Error{kConfig} if it has keys of two dialects, or one that is unknown to all but near
/// one.
Recognition recognise(const Document& document, const std::vector<Setting>& table);

}  // namespace tessera::compat
