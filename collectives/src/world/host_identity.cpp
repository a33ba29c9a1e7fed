#include "world/host_identity.h"

#include <fstream>
#include <system_error>

#include "tessera/core/error.h"

namespace tessera {

std::string host_identity(int process, bool apart, const std::filesystem::path& proc) {
  std::string boot;
  std::ifstream(proc / "sys/kernel/random/boot_id") >> boot;
  // Its number alone is that of the first namespace on every machine.
  std::error_code unread;
  const std::string pids = std::filesystem::read_symlink(proc / "self/ns/pid", unread).string();
  const bool known = !boot.empty() && !pids.empty();
  return concat(boot, "/", pids, apart || !known ? concat("#", process) : "");
}

}  // namespace tessera
