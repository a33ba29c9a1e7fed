#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>

namespace tessera::cli {

/// On several lines. Bytes that are no UTF-8, which names of files and the environment may have,
/// become U+FFFD.
void write_json(std::ostream& out, const nlohmann::ordered_json& value);

}  // namespace tessera::cli
