#include "world/host_identity.h"

#include <fstream>
#include <system_error>

#include "tessera/core/error.h"

namespace tessera {

std::string host_identity(int process, bool apart, const std::filesystem::path& proc) {
  std::string boot;
  std::ifstream(proc / "sys/kernel/random/boot_id") >> boot;
  // A namespace's number alone is that of the first one on every machine.
  std::error_code unread;
  const std::string pids = std::filesystem::read_symlink(proc / "self/ns/pid", unread).string();
  const std::string net = std::filesystem::read_symlink(proc / "self/ns/net", unread).string();
  const bool known = !boot.empty() && !pids.empty() && !net.empty();
  return concat(boot, "/", pids, "/", net, apart || !known ? concat("#", process) : "");
}

}  // namespace tessera
