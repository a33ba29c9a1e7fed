#include "tessera/core/device.h"

namespace tessera {

std::string_view to_string(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kSim:
      return "sim";
  }
  return "unknown";
}

}  // namespace tessera
