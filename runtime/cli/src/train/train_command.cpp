#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "commands.h"
#include "generate/sample.h"
#include "launch/same_run.h"
#include "output/run_report.h"
#include "output/terminal.h"
#include "plan/planned_run.h"
#include "run/interrupt.h"
#include "run/progress.h"
#include "run/watchers.h"
#include "settings/command_line.h"
#include "settings/data_choice.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/trainer/auto_batch.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/metrics.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer.h"
#include "tessera/trainer/trainer_settings.h"
#include "train/loss_plot.h"
#include "train/model_export.h"
#include "train/prepared_run.h"
#include "train/run_outputs.h"

namespace tessera::cli {
namespace {

void print_header(const Config& config, const GptChoice& choice, const DataMixture& dataset,
                  const TrainingPlan& plan) {
  const TrainerOptions& options = plan.options;
  const bool has_examples = std::ranges::any_of(
      dataset.sources(), [](const auto& source) { return source.kind() == DataKind::kExamples; });
  const std::int64_t positions_per_step =
      sample_division(options).samples_per_step() * config.get<std::int64_t>("sequence_length");
  std::cout << describe_model(plan) << "\n"
            << wrapped(describe_ranks(options), kColumns, 2) << "\n"
            << "binding: " << describe(*options.binding) << "\n"
            << "data: " << describe_tokens(dataset) << " from "
            << counted(std::ssize(dataset.files()), "file") << ", "
            << with_commas(positions_per_step) << (has_examples ? " positions" : "")
            << " per step\n"
            << "predicted: peak " << format_bytes(plan.memory.total) << " per rank\n";
  if (plan.checkpoint_bytes > 0) {
    std::cout << "checkpoints: " << format_bytes(plan.checkpoint_bytes) << " per rank, and "
              << format_bytes(plan.snapshot_bytes) << " of host memory for the copy\n";
  }
  std::vector<std::string> lines;
  if (choice.pretrained && plan.resume == nullptr) {
    const std::string decoding =
        describe_decoding(choice.config, *choice.pretrained, config.get<std::string>("precision"));
    lines.push_back(concat("initial parameters: '", choice.pretrained->path(), "' is ",
                           choice.pretrained->format(), decoding.empty() ? "" : "; ", decoding));
  }
  std::ranges::move(describe_data(dataset, choice), std::back_inserter(lines));
  std::vector<std::string> notes;
  for (const TokenDataset& source : dataset.sources()) {
    notes.insert(notes.end(), source.notes().begin(), source.notes().end());
  }
  notes.push_back(epochs_note(config, dataset));
  notes.push_back(unread_labels_note(config, choice.config));
  notes.push_back(device_note(config, options));
  std::ranges::move(learning_rate_notes(config, options.learning_rate), std::back_inserter(notes));
  for (const std::string& note : notes) {
    if (!note.empty()) lines.push_back("note: " + note);
  }
  for (const std::string& line : lines) print_line(stdout, line, 2);
  std::cout << std::flush;
}

std::map<std::string, std::vector<float>> by_name(std::vector<FullParameter> parameters) {
  std::map<std::string, std::vector<float>> values;
  for (FullParameter& parameter : parameters) {
    values[parameter.name] = std::move(parameter.values);
  }
  return values;
}

/// The FLOPs per second of all ranks. The ranks of this machine stand for those of others, and this
/// process for its neighbours, which are idle now: on CPUs with as many ranks, since they share the
/// cores, on GPUs with its own.
double machine_flops(TrainerOptions options) {
  const bool on_gpus = options.world != nullptr && options.device == DeviceChoice::kCuda;
  const int measured = on_gpus ? options.world->local_ranks() : ranks_on_host(options);
  const double times = static_cast<double>(options.ranks) / measured;
  if (on_gpus) options.group = measured > 1 ? GroupChoice::kNccl : GroupChoice::kThread;
  if (options.world != nullptr) options.binding = nullptr;  // that of other processes, too
  options.world = nullptr;
  options.ranks = measured;
  return times * measure_matmul_flops(options);
}

/// How many samples of each of the data a step's end has seen, for the log; unset for one of them.
RunOutputs::SamplesBySource samples_by_source(const PreparedRun& run) {
  if (run.dataset->sources().size() == 1) return {};
  return [&run](std::int64_t step) {
    return run.dataset->samples_by_source(step *
                                          sample_division(run.plan().options).samples_per_step());
  };
}

/// Trains to the end or to a signal, and tells and writes every step.
TrainingSummary train(const PreparedRun& run, RunOutputs& outputs, LossPlot& losses,
                      double peak_flops, const InterruptGuard& interrupt, ModelExport& exported) {
  Progress progress(run.plan().options.steps, run.plan().options.patience,
                    run.config.get<bool>("quiet"), run.config.get<bool>("verbose"));
  std::optional<WorkWatch> watch;
  const bool shows = run.launcher.process == 0 && !run.config.get<bool>("quiet");
  if (shows) watch.emplace(*run.plan().options.host_work, progress);
  return run.trainer.train(
      [&](const StepRecord& record) {
        outputs.step(record, peak_flops);
        exported.reached(record.step);
        losses.add(record.step, record.loss);
        progress.show(record);
        return interrupt.signal() == 0;
      },
      [&](const std::string& note) {
        outputs.note(note);
        progress.note(with_flags(note));
      },
      [&](const EvaluationRecord& record) {
        outputs.evaluation(record);
        progress.evaluation(record);
      },
      [&](const SaveRecord& record) {
        outputs.checkpoint(record);
        progress.checkpoint(record);
      },
      exported.on_parameter());
}

/// Reports the run beside its prediction, and a text of the model.
void finish(const PreparedRun& run, RunOutputs& outputs, TrainingSummary summary,
            const LossPlot& losses, double peak_flops, const InterruptGuard& interrupt) {
  const bool interrupted = interrupt.signal() != 0;
  const TrainingPlan& plan = run.plan();
  const RunUtilisation utilisation =
      utilisation_of_run(run.model, summary.tokens_per_second, peak_flops,
                         [&] { return machine_flops(plan.options); });
  const RunMeasurements measurements{.matmul_flops_per_second = utilisation.peak_flops_per_second,
                                     .mfu = utilisation.mfu};
  if (!utilisation.note.empty()) outputs.note(utilisation.note);
  outputs.end(plan, summary, measurements);
  if (run.config.get<bool>("quiet")) return;
  if (summary.stopped_early) {
    const BestEvaluation& best = *summary.evaluation->best;
    std::cout << "stopped after step " << summary.last_step << " of " << plan.options.steps
              << ": no better "
              << (plan.options.min_improvement > 0.0 ? "by more than --min-improvement " : "")
              << "for " << counted(best.without_improvement, "evaluation")
              << "; the best is of step " << best.step << "\n";
  } else if (summary.last_step < plan.options.steps) {
    std::cout << "stopped after step " << summary.last_step << " of " << plan.options.steps << "\n";
  }
  if (const std::string note = describe_trace(plan.options, summary.traced_steps); !note.empty()) {
    std::cout << note << "\n";
  }
  std::cout << "\n";
  losses.print(std::cout, inspect(stdout).columns, is_utf8_locale(std::getenv));
  print_summary(std::cout, plan, summary, measurements);
  if (!utilisation.note.empty()) std::cout << "note: " << utilisation.note << "\n";
  if (!plan.options.gather_parameters || interrupted) return;
  if (const std::string why = why_no_sample(run.config, run.choice, summary.last_loss);
      !why.empty()) {
    std::cout << "\nsample    " << why << "\n";
    return;
  }
  const int threads = plan.options.threads_per_rank * ranks_on_host(plan.options);
  std::cout << "\nsample\n"
            << make_sample(run.config, run.choice, threads, by_name(std::move(summary.parameters)),
                           [&] { return interrupt.signal() == 0; })
            << "\n";
}

/// The checkpoint of the last step, or of that at which --patience has stopped the run, if --resume
/// auto finds it: nothing is left to train. "" else.
std::string finished_run(const Config& config) {
  if (config.is_null("save") || config.text("resume") != "auto") return "";
  std::string newest = find_whole_checkpoint(config.get<std::string>("save")).path;
  if (newest.empty()) return "";
  const Manifest manifest = read_manifest(newest);
  const auto patience = config.get<std::int64_t>("patience");
  const bool has_stopped =
      patience > 0 && manifest.best && manifest.best->without_improvement >= patience;
  return has_stopped || manifest.step >= config.get<std::int64_t>("steps") ? newest : "";
}

/// Says so if a run keeps its best checkpoint and has exported another; "" if it is the same.
std::string better_than_exported(const TrainingPlan& plan, const TrainingSummary& summary) {
  const CheckpointOptions& saves = plan.options.checkpoints;
  if (!saves.save_best || !summary.evaluation || !summary.evaluation->best) return "";
  const std::int64_t best = summary.evaluation->best->step;
  if (best == summary.last_step) return "";
  return concat("          That is of step ", summary.last_step, "; the best is of step ", best,
                ": tessera checkpoint convert ", saves.folder, "/best FOLDER");
}

/// Our launcher ends the processes that it has started.
GraceOfRun grace_of(const PreparedRun& run) {
  constexpr std::chrono::seconds kDefault{30};
  GraceOfRun limit{.saves = !run.plan().options.checkpoints.folder.empty()};
  if (!run.config.is_null("grace")) {
    limit.grace = std::chrono::seconds(run.config.get<std::int64_t>("grace"));
  } else if (run.launcher.meeting < 0) {
    limit.grace = kDefault;
  }
  return limit;
}

int run_train(Config config) {
  if (const std::string last = finished_run(config); !last.empty()) {
    if (!config.get<bool>("quiet")) {
      std::cout << "the run is complete: " << last << " is of its last step\n";
    }
    return kExitGood;
  }
  const DumpWatch dumps;
  const PreparedRun run(std::move(config),
                        {.dump_requests = dumps.requests(), .host_work = interruptible_work()});
  RunOutputs outputs(run.config, run.model, samples_by_source(run));
  if (!run.config.get<bool>("quiet")) {
    print_header(run.config, run.choice, *run.dataset, run.plan());
  }
  if (run.config.get<bool>("verbose")) print_settings(std::cout, run.config);

  const bool reports = run.launcher.process == 0;
  const double peak_flops = reports ? machine_flops(run.plan().options) : 0.0;
  const InterruptGuard interrupt;
  std::optional<InterruptWatch> watch(std::in_place, interrupt, run.plan().options.world.get(),
                                      grace_of(run));
  LossPlot losses(run.plan().options.steps);
  ModelExport exported(run.config, run.choice.config, run.source);
  TrainingSummary summary;
  try {
    summary = train(run, outputs, losses, peak_flops, interrupt, exported);
  } catch (const Error& error) {
    if (!is_ended_start(error, *run.plan().options.host_work)) throw;
    if (reports && !run.config.get<bool>("quiet")) std::cout << "stopped before the first step\n";
    return kExitSignal + interrupt.signal();
  }
  watch.reset();
  const std::vector<std::string> folders = exported.finish();
  // Schedulers ask so for a run to end early, and take what follows for a failure or not.
  const bool saved = !run.plan().options.checkpoints.folder.empty() && summary.failed_saves == 0;
  const std::string better = folders.empty() ? "" : better_than_exported(run.plan(), summary);
  if (reports) finish(run, outputs, std::move(summary), losses, peak_flops, interrupt);
  if (!run.config.get<bool>("quiet")) {
    for (const std::string& folder : folders) {
      std::cout << "\n";
      print_line(stdout, concat("exported  ", folder, exported.description()), 10);
    }
    if (!better.empty()) print_line(stdout, better, 10);
  }
  if (interrupt.signal() == 0 || (saved && interrupt.signal() != SIGINT)) return kExitGood;
  return kExitSignal + interrupt.signal();
}

}  // namespace

std::vector<Setting> train_only_settings() {
  const Setting auto_batch = flag_setting(
      "auto_batch",
      "raise the micro-batch to the largest that fits the memory, and accumulate less: micro-batch "
      "times accumulation stays as given");
  const Setting grace{
      .name = "grace",
      .type = SettingType::kInteger,
      .help =
          "seconds that the step and a last checkpoint may take after Ctrl-C, SIGTERM or "
          "SIGUSR1 [30, which Slurm and Kubernetes wait before they kill; under `tessera "
          "launch` its --grace]",
      .minimum = 0,
      .maximum = 1e6};
  return joined(
      {data_settings(),
       sample_settings(),
       output_settings(),
       fit_settings(),
       export_settings(),
       {state_dict_setting()},
       in_group("Step", {auto_batch}),
       in_group("Checkpoints", MustAgree::kNone, {grace}),
       in_group(
           "Output", MustAgree::kNone,
           {flag_setting("append",
                         "append to --log, --csv and --tensorboard files of an earlier run"),
            flag_setting("overwrite",
                         "replace those of an earlier run; without either, the run is refused"),
            flag_setting("verbose",
                         "tell every setting and where it is from, and a line for every step"),
            flag_setting("quiet", "print nothing but errors")})});
}

std::vector<Setting> without(std::vector<Setting> settings, std::string_view name) {
  std::erase_if(settings, [&](const Setting& setting) { return setting.name == name; });
  return settings;
}

std::vector<Setting> joined(std::initializer_list<std::vector<Setting>> tables) {
  std::vector<Setting> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

std::vector<Setting> train_settings() {
  return joined({model_settings(), trainer_settings(), train_only_settings()});
}

std::vector<Setting> all_settings() { return joined({train_settings(), plan_only_settings()}); }

std::shared_ptr<SettingsCommand> add_train_flags(CLI::App& app) {
  return std::make_shared<SettingsCommand>(app, train_settings());
}

std::function<int()> add_train(CLI::App& app) {
  const auto command = add_train_flags(app);
  return [command] {
    const Launcher launcher = find_launcher(std::getenv);
    Config config = command->config(facts_of(launcher));
    choose_dump_folder(config);
    adopt_launcher(launcher, config);
    if (!config.get<bool>("quiet")) print_announcements(config);
    return run_train(std::move(config));
  };
}

}  // namespace tessera::cli
