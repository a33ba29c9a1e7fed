#pragma once

#include <string>

namespace tessera {

/// This machine's name, for messages and the names of files: what `hostname` prints, or "unknown"
/// if the system does not tell. Two machines may have the same one.
std::string host_name();

}  // namespace tessera
