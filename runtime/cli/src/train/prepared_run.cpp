#include "train/prepared_run.h"

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "generate/sample.h"
#include "launch/same_run.h"
#include "output/run_report.h"
#include "plan/planned_run.h"
#include "settings/data_choice.h"
#include "settings/gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/trainer/auto_batch.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"
#include "train/run_outputs.h"

namespace tessera::cli {
namespace {

/// Refuses to train what an encoder has made without the encoder.
void require_encoder(const AdapterConfig& adapter) {
  require(
      !adapter.is_encoded(), ErrorCode::kConfig, "the folder of --adapter has what the encoder of ",
      adapter.is_set() ? kind_of(adapter).name : "",
      " made, and not the encoder, which PEFT does not write; go on from a checkpoint of the run "
      "(--resume), or train it without the encoder: in adapter_config.json set ",
      adapter.prefix() != nullptr
          ? "prefix_projection to false"
          : "peft_type to PROMPT_TUNING, and leave out the keys that begin with encoder_");
}

/// The largest micro-batch that fits every process, and says so.
void choose_batch(Config& config, TrainerOptions& options, const RunInputs& inputs) {
  const std::int64_t given = agreed_bytes_per_rank(options);
  const BatchChoice choice = tessera::choose_batch({inputs.model, inputs.source}, options, given);
  options.micro_batch = choice.micro_batch;
  options.accumulate = choice.accumulate;
  config.set_effective("micro_batch", choice.micro_batch);
  config.set_effective("accumulate", choice.accumulate);
  if (config.get<bool>("quiet")) return;
  std::cerr << "auto-batch: micro-batch " << choice.micro_batch << ", " << choice.accumulate
            << " micro-steps: " << format_bytes(choice.predicted_bytes) << " per rank of "
            << format_bytes(given) << " less " << describe_room(choice);
  if (choice.next_micro_batch) {
    std::cerr << "; micro-batch " << *choice.next_micro_batch << " would need "
              << format_bytes(choice.next_bytes);
  }
  std::cerr << "\n";
}

/// Applies the choice of --fit, and says so.
void fit(Config& config, TrainerOptions& options, const RunInputs& inputs) {
  if (config.is_null("fit")) return;
  require(!config.get<bool>("auto_batch"), ErrorCode::kConfig,
          "--fit and --auto-batch both decide what fills the memory; give one of them");
  options.device = resolved_device(options.device);
  options.group = resolved_group(options);
  const FitRequest request = fit_request(config, options, true);
  if (!config.get<bool>("quiet")) note_noise(request.cluster.profile);
  const FitChoice choice = apply_fit(config, options, inputs, request);
  if (!config.get<bool>("quiet")) print_fit(std::cerr, choice, request);
}

HostData made(const MakeData& make, const GptChoice& choice) {
  return make ? make(choice) : HostData();
}

}  // namespace

RunInputs PreparedRun::inputs() const {
  const BatchSource* const other = evaluation ? &*evaluation : given_evaluation.source.get();
  if (dataset) return {model, *dataset, other};
  return {model, *given.source, other};
}

/// The options of the run, as far as the data, the other processes and memory decide them.
TrainerOptions PreparedRun::complete_options(const RunHost& host) {
  std::vector<std::string> read;
  if (dataset) read = dataset->files();
  if (!choice.text.path.empty()) read.push_back(choice.text.path);
  RunOutputs::check(config, read);
  if (host.is_train_command) ModelExport::check(config);
  if (dataset) {
    config.set_effective("data_kind", to_string(dataset->kind()));
    choose_steps(config, *dataset);
  }
  require_encoder(choice.config.adapter);
  TrainerOptions options = trainer_options(config);
  const std::vector<NamedText> initial = adopt_parameters(choice, options);
  options.checkpoints.companions = source.files;
  name_dtype(options.checkpoints.companions, source.dtype, NewKey::kAdded);
  options.dump_requests = host.dump_requests;
  options.host_work = host.host_work;
  if (host.is_train_command) {
    options.gather_parameters = sample_tokens(config, model, dataset->sources().front()) > 0;
  }
  if (evaluation) options.evaluation_samples = evaluation_samples(config, *evaluation);
  if (given_evaluation.source) options.evaluation_samples = given_evaluation.samples;
  join_world(launcher, config, options);
  require_same_run(config, options, initial);
  fit(config, options, inputs());
  if (config.get<bool>("auto_batch")) choose_batch(config, options, inputs());
  return options;
}

PreparedRun::PreparedRun(Config settings, const RunHost& host)
    : launcher(find_launcher(std::getenv)),
      config(std::move(settings)),
      choice(choose_gpt(config)),
      model(make_model(choice)),
      source(export_source(config, choice, !host.is_train_command)),
      dataset(host.make_data ? std::optional<DataMixture>() : open_dataset(config, choice)),
      evaluation(host.make_evaluation ? std::optional<TokenDataset>()
                                      : open_evaluation(config, choice)),
      given(made(host.make_data, choice)),
      given_evaluation(made(host.make_evaluation, choice)),
      trainer(model, inputs().source, complete_options(host), inputs().evaluation) {
  set_effective(config, plan().options);
}

}  // namespace tessera::cli
