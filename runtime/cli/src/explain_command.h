#pragma once

#include <string>

#include "tessera/trainer/config.h"

namespace tessera::cli {

/// What is asked of `tessera explain`.
struct ExplainRequest {
  std::string path{};
  bool json = false;
};

/// Prints what became of every key of a file, where every setting's value is from, and where a run
/// here differs from one under Accelerate or DeepSpeed; returns the exit code.
int run_explain(Config config, const ExplainRequest& request);

}  // namespace tessera::cli
