#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "output/text_output.h"
#include "tessera/core/cuda_device.h"
#include "tessera/trainer/setting.h"

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

/// A part of what `tessera env` reports, for people and for programs.
struct ReportPart {
  std::vector<std::pair<std::string, std::string>> rows{};  ///< names and sentences, in order
  /// Numbers as numbers, memory in bytes, null for what is not there.
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
};

inline nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

/// Where 0 stands for not known.
template <typename Number>
nlohmann::ordered_json known_or_null(Number number) {
  return number == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(number);
}

/// "a, b", or "none".
inline std::string listed(const std::vector<std::string>& items, const char* separator = ", ") {
  return items.empty() ? "none" : tessera::joined(items, separator);
}

/// System, processor and memory.
ReportPart machine_report();

/// The libraries that this build was made with and has found, and the GPUs.
ReportPart library_report(const CudaStatus& cuda);

/// A GPU for programs.
nlohmann::ordered_json gpu_fields(const CudaGpu& gpu);

/// Which GPU reaches the memory of which: a row and a column for each, "yes" or "no".
TextTable peer_matrix(const std::vector<CudaGpu>& gpus);

/// The launcher that has started this process, and the variables that change what a run does.
ReportPart launch_report();

/// The config file that a run would take, `given`, else the default file of Accelerate: whose keys
/// it has, and what a run would make of them.
struct ConfigInForce {
  ReportPart report{};
  bool readable = true;  ///< false if the file is missing or wrong; the report says how
};
ConfigInForce config_in_force(const std::string& given);

/// The flags `--ranks`, `--bind` and `--bind-core-list`; 0 ranks: nothing is asked.
struct BindingQuestion {
  int ranks = 0;
  std::string bind = "auto";
  std::string bind_core_list{};
};

/// The cores that ranks of one process started here would get.
struct BindingReport {
  ReportPart part{};
  std::optional<TextTable> map{};  ///< a row per rank, if it was asked for
};
BindingReport binding_report(const BindingQuestion& question, const CudaStatus& cuda);

}  // namespace tessera::cli
