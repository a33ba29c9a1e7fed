#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "document.h"
#include "known_settings.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// The values that Accelerate puts in place of "auto": its launcher's variables say them, if they
/// are there.
struct AutoValues {
  std::optional<std::int64_t> stage;
  std::optional<std::int64_t> accumulate;
  std::optional<double> clip_norm;
  std::string precision{};  ///< "no", "bf16", "fp16" or "fp8"
  std::string offload_optimizer{};
  std::string offload_path{};  ///< where that is nvme
  std::string offload_parameters{};
  std::string parameters_path{};      ///< where that is nvme
  std::optional<bool> whole_model{};  ///< whether to gather it to save it
};

/// Accelerate's additions to a file of DeepSpeed's that it names.
struct ThroughAccelerate {
  std::int64_t ranks;  ///< DeepSpeed's own files do not say
  const AutoValues& autos;
};

/// Adds what DeepSpeed's keys in `document` mean here. `accelerate`: nothing if the file stands
/// alone.
void translate_deepspeed(const Document& document, std::optional<ThroughAccelerate> accelerate,
                         const KnownSettings& known, ConfigTranslation& translation);

/// Our strategy for a ZeRO stage from 0 to 3.
const char* strategy_of_stage(std::int64_t stage);

}  // namespace tessera::compat
