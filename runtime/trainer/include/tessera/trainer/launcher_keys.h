#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera {

/// A value and who says it, for messages: "--nodes", or "x.yaml:3: num_machines".
template <typename T>
struct Stated {
  T value{};
  std::string name{};
};

/// What a file of Accelerate says to its launcher, besides num_processes, which is our `ranks`.
struct LauncherKeys {
  std::optional<Stated<int>> machines{};
  std::optional<Stated<int>> machine_rank{};
  std::optional<Stated<std::string>> address{};
  std::optional<Stated<int>> port{};
  std::optional<Stated<std::string>> gpu_ids{};
};

/// Reads them; nothing of a file that is not Accelerate's. Throws Error{kConfig} that names the
/// file, the line and the key.
LauncherKeys read_launcher_keys(const std::string& path, const std::vector<Setting>& table);

/// What is wrong with a list of GPUs, which is "all" or what CUDA_VISIBLE_DEVICES takes: different
/// numbers, or names such as GPU-4d2a. Empty if nothing is.
std::string problem_of_gpu_ids(const std::string& list);

}  // namespace tessera
