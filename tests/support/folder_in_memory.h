#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

namespace tessera::test {

/// Where files lie that a test writes often and reads soon: in memory, unless there is little of
/// it, as in a container, whose /dev/shm has 64 MiB.
inline std::filesystem::path folder_in_memory() {
  constexpr std::uintmax_t kEnough = std::uintmax_t{256} << 20;
  const std::filesystem::path memory = "/dev/shm";
  std::error_code none;
  const std::filesystem::space_info space = std::filesystem::space(memory, none);
  const bool fits = !none && space.available >= kEnough && access(memory.c_str(), W_OK) == 0;
  return fits ? memory : std::filesystem::temp_directory_path();
}

}  // namespace tessera::test
