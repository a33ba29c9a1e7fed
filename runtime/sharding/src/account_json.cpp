#include "tessera/sharding/account_json.h"

#include <nlohmann/json.hpp>

namespace tessera {
namespace {

template <typename Values>
nlohmann::ordered_json by_collective(const Values& values) {
  auto result = nlohmann::ordered_json::object();
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    result[std::string(to_string(kind))] = values[static_cast<std::size_t>(i)];
  }
  return result;
}

}  // namespace

nlohmann::ordered_json to_json(const MemoryPeak& peak) {
  nlohmann::ordered_json result{{"total", peak.total}};
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    result[std::string(to_string(category))] = peak.by_category[category];
  }
  return result;
}

nlohmann::ordered_json sent_bytes_to_json(const Traffic& traffic) {
  return by_collective(traffic.sent_bytes);
}

nlohmann::ordered_json tier_copies_to_json(const Traffic& traffic) {
  return {{"device_to_host", traffic.to_host_bytes}, {"host_to_device", traffic.to_device_bytes}};
}

nlohmann::ordered_json disk_copies_to_json(const Traffic& traffic) {
  return {{"host_to_disk", traffic.to_disk_bytes}, {"disk_to_host", traffic.from_disk_bytes}};
}

nlohmann::ordered_json calls_to_json(const Traffic& traffic) {
  return by_collective(traffic.calls);
}

}  // namespace tessera
