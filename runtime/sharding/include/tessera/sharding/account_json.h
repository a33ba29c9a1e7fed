#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"

// Memory and traffic as logs and results have them.
namespace tessera {

/// {"total": …, "parameters": …, …}: bytes by category.
nlohmann::ordered_json to_json(const MemoryPeak& peak);
/// {"all_gather": …, …}: bytes sent by kind of collective.
nlohmann::ordered_json sent_bytes_to_json(const Traffic& traffic);
/// {"all_gather": …, …}: calls by kind of collective.
nlohmann::ordered_json calls_to_json(const Traffic& traffic);

/// By direction: "device_to_host" and "host_to_device".
nlohmann::ordered_json tier_copies_to_json(const Traffic& traffic);
/// Bytes copied between the disk and the host: "host_to_disk", "disk_to_host".
nlohmann::ordered_json disk_copies_to_json(const Traffic& traffic);

}  // namespace tessera
