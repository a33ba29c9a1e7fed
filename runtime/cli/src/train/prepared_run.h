#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/host_work.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/model/data_mixture.h"
#include "tessera/model/dataset.h"
#include "tessera/trainer/trainer.h"
#include "train/model_export.h"

namespace tessera::cli {

/// Samples that are not in files.
struct HostData {
  std::unique_ptr<const BatchSource> source{};
  std::int64_t samples = 0;  ///< to evaluate on; 0 of training data, which has no end
};
/// They are made once the model, and so their length, is known.
using MakeData = std::function<HostData(const GptChoice&)>;

/// The part of a run that its program decides, not its settings.
struct RunHost {
  std::shared_ptr<DumpRequests> dump_requests{};
  std::shared_ptr<HostWork> host_work{};
  MakeData make_data{};        ///< in place of --data
  MakeData make_evaluation{};  ///< in place of --eval-data
  /// `tessera train`: --export and a text of the model follow the last step. Other programs have
  /// loops of their own, and may save anywhere.
  bool is_train_command = true;
};

/// A planned run. Everything that can be wrong is found here, before a file is written.
struct PreparedRun {
  PreparedRun(Config settings, const RunHost& host);
  const TrainingPlan& plan() const { return trainer.plan(); }

  const Launcher launcher;
  Config config;
  const GptChoice choice;
  const Model model;
  const ExportSource source;
  const std::optional<DataMixture> dataset;  ///< none: `given`
  const std::optional<TokenDataset> evaluation;
  const HostData given;
  const HostData given_evaluation;
  const Trainer trainer;

 private:
  TrainerOptions complete_options(const RunHost& host);
  RunInputs inputs() const;
};

}  // namespace tessera::cli
