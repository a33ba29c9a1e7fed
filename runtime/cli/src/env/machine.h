#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

/// The machine as Linux describes it; empty or 0 where it says nothing.
struct Machine {
  std::string system{};  ///< "Debian GNU/Linux 12 (bookworm)"
  std::string kernel{};  ///< "Linux 6.1.0 x86_64"
  std::string host{};
  std::string processor{};
  int logical_cores = 0;                    ///< that this process may use
  int physical_cores = 0;                   ///< of the whole machine
  std::vector<std::string> numa_nodes{};    ///< cores of each, "0-7,16-23"
  std::vector<std::string> vector_units{};  ///< "avx2", "avx512f", "avx512_bf16", "amx_bf16"
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;
};

Machine probe_machine();

}  // namespace tessera::cli
