#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

std::string_view to_string(DeviceChoice choice) {
  switch (choice) {
    case DeviceChoice::kAuto:
      return "auto";
    case DeviceChoice::kCpu:
      return "cpu";
    case DeviceChoice::kCuda:
      return "cuda";
  }
  return "unknown";
}

std::string_view to_string(GroupChoice choice) {
  switch (choice) {
    case GroupChoice::kAuto:
      return "auto";
    case GroupChoice::kThread:
      return "thread";
    case GroupChoice::kNccl:
      return "nccl";
  }
  return "unknown";
}

std::string_view to_string(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kAuto:
      return "auto";
    case AttentionBackend::kOwn:
      return "own";
    case AttentionBackend::kCudnn:
      return "cudnn";
  }
  return "unknown";
}

DeviceChoice parse_device(std::string_view name) {
  for (const auto choice : {DeviceChoice::kAuto, DeviceChoice::kCpu, DeviceChoice::kCuda}) {
    if (name == to_string(choice)) return choice;
  }
  fail(ErrorCode::kConfig, "'", name, "' is not a device; choose auto, cpu or cuda");
}

}  // namespace tessera
