#pragma once

#include <filesystem>
#include <string>

namespace tessera {

/// Equal for processes that can give each other their memory: those of one boot of one machine, in
/// one namespace of process ids and one of the network, to which the names of sockets belong. If
/// the system does not tell all three, two machines might look like one, so every process counts as
/// a machine of its own, as it does if `apart`. `process`: its number in the run. Holds no blanks.
std::string host_identity(int process, bool apart, const std::filesystem::path& proc = "/proc");

}  // namespace tessera
