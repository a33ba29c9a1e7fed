#include <array>

#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {
namespace {

/// The names of an enumeration that counts from 0.
template <typename E, std::size_t kCount>
std::string_view name_of(E value, const std::array<std::string_view, kCount>& names) {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : "unknown";
}

}  // namespace

std::string_view to_string(DeviceChoice choice) {
  return name_of<DeviceChoice, 3>(choice, {"auto", "cpu", "cuda"});
}

std::string_view to_string(GroupChoice choice) {
  return name_of<GroupChoice, 3>(choice, {"auto", "thread", "nccl"});
}

std::string_view to_string(SaveFailures failures) {
  return name_of<SaveFailures, 2>(failures, {"fail", "tolerate"});
}

std::string_view to_string(AttentionBackend backend) {
  return name_of<AttentionBackend, 3>(backend, {"auto", "own", "cudnn"});
}

DeviceChoice parse_device(std::string_view name) {
  for (const auto choice : {DeviceChoice::kAuto, DeviceChoice::kCpu, DeviceChoice::kCuda}) {
    if (name == to_string(choice)) return choice;
  }
  fail(ErrorCode::kConfig, "'", name, "' is not a device; choose auto, cpu or cuda");
}

}  // namespace tessera
