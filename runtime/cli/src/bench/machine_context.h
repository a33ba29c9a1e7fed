#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::bench {

/// Begins the keys of a benchmark's context that two results must share to be compared.
inline constexpr const char* kMachineKey = "machine.";

/// The share of a repetition's cores that neither other programs nor the hypervisor had.
inline constexpr const char* kFreeCounter = "free";

/// The machine, in words, by key: "machine.processor", "machine.cores", "machine.gpus", ... The
/// same on each run of the same machine. Values are never empty.
std::vector<std::pair<std::string, std::string>> machine_context();

/// Facts that a result names and that may differ between comparable ones: "host", "tessera",
/// "built_by", "onednn", "nccl".
std::vector<std::pair<std::string, std::string>> build_context();

}  // namespace tessera::bench
