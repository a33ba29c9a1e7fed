#include "tessera/core/host_name.h"

#include <unistd.h>

#include <array>

namespace tessera {

std::string host_name() {
  std::array<char, 256> name{};  // the last byte stays 0: a name that is cut off need not end
  const bool told = gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return told ? name.data() : "unknown";
}

}  // namespace tessera
