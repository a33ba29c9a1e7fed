#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/plan_options.h"
#include "tessera/trainer/fit.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {

/// A run of a GPT that is planned without its data.
struct PlannedRun {
  /// Changes the options of a config before the run is planned.
  using Adapt = std::function<void(TrainerOptions& options, const RunInputs& inputs)>;

  /// Plans the settings of `config`, and writes the model's back into it; see choose_gpt().
  PlannedRun(Config& config, const Adapt& adapt);
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const GptChoice choice;
  const Model model;
  const TokenShapes shapes;
  const TrainingPlan plan;
};

/// Settings of `train` and `plan` by which they choose others.
std::vector<Setting> fit_settings();

/// A request by the settings: the budget of --fit; without one --memory-limit; without either what
/// this machine has if `runs_here`, as all processes of the run agree, else the memory of the
/// profile's device.
FitRequest fit_request(const Config& config, const TrainerOptions& options, bool runs_here);

/// Writes the best combination into `config` and `options`. What process 0
/// has found holds for all processes of options.world, each of which must call it.
FitChoice apply_fit(Config& config, TrainerOptions& options, const RunInputs& inputs,
                    const FitRequest& request);

/// A table of the choice, the next ones and the nearest that do not fit.
void print_fit(std::ostream& out, const FitChoice& choice, const FitRequest& request);
/// All candidates.
nlohmann::ordered_json to_json(const FitChoice& choice, const FitRequest& request);

/// The run that settings describe, with the combination that --fit has chosen, if it is given.
struct FittedPlan {
  std::unique_ptr<const PlannedRun> run{};
  std::optional<FitRequest> request{};
  std::optional<FitChoice> choice{};
};

/// Plans for any machine: with --fit, and without --device, for the device of its profile. Writes
/// what was chosen, and what the settings have come to be, into `config`.
FittedPlan plan_fitted(Config& config);

/// A plan as `tessera plan --format json` prints it.
nlohmann::ordered_json to_json(const Config& config, const FittedPlan& plan);

/// The command line of `tessera estimate-memory`.
struct MemoryRequest {
  MemoryRequest();

  std::vector<std::string> dtypes{"float32", "bfloat16", "float16", "int8", "int4"};
  std::vector<std::string> ranks{"8"};
  std::vector<std::string> strategies{};
  std::vector<std::string> precisions{"bf16"};
  std::vector<NamedText> of_fp8{};  ///< settings of precision fp8, which others do not have
  Config config;                    ///< with a micro-batch of 1
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
