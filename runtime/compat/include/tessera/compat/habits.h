#pragma once

#include <string>

namespace tessera {

/// "You used ... here it is": tables in Markdown of every key and flag of other programs that is
/// known here, made from those by which they are read. README.md of this module has them.
std::string habit_tables();

}  // namespace tessera
