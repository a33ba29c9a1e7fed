#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/plan_options.h"

namespace tessera::cli {

/// The command line of `tessera estimate-memory`.
struct MemoryRequest {
  MemoryRequest();

  std::vector<std::string> dtypes{"float32", "bfloat16", "float16", "int8", "int4"};
  std::vector<std::string> ranks{"8"};
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{"bf16"};
  Config config;  ///< with a micro-batch of 1
};

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

/// A row of Accelerate's table. Its training column is the largest of model, gradients, optimizer
/// and step: 4 times the model in fp32, and as many bytes as 2 fp32 models in 16 bits.
struct LoadRow {
  std::string dtype;
  std::int64_t largest = 0, total = 0;
  std::int64_t training = 0;  ///< 0: not trainable
};

/// The needs of one rank of a pipeline rank, from the plan.
struct PlanRow {
  std::string strategy, precision;
  int ranks = 1;
  int pipeline_rank = 0;
  std::array<MemoryPeak, kRecomputes.size()> peaks{};
  std::array<std::int64_t, kRecomputes.size()> device_bytes{};
};

/// A strategy that the ranks cannot form: it would be another one.
struct Impossible {
  std::string strategy;
  int ranks = 1;
  int of_stage = 1;  ///< ranks of one

  std::string why() const {
    return concat(strategy, " needs several replicas of several ranks each, which ", of_stage,
                  of_stage == 1 ? " rank" : " ranks", of_stage < ranks ? " of a stage" : "",
                  of_stage == 1 ? " does" : " do", " not make");
  }
};

struct PlanRows {
  std::vector<PlanRow> rows{};
  std::vector<Impossible> impossible{};
};

struct MemoryEstimate {
  std::string model{};  ///< as it was asked for, or its sizes
  std::int64_t sequence_length = 0;
  std::vector<LoadRow> loads{};
  PlanRows plans{};
};

/// The pipeline ranks of a config.
int stages_of(const Config& config);

/// Plans every combination of ranks, strategies, precisions and recomputation. Throws
/// Error{kConfig} if none can be planned.
MemoryEstimate estimate_memory(const MemoryRequest& request);

/// An estimate as `tessera estimate-memory --json` prints it.
nlohmann::ordered_json to_json(const MemoryRequest& request, const MemoryEstimate& estimate);

}  // namespace tessera::cli
