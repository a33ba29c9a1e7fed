#include "resume.h"

#include <algorithm>
#include <filesystem>

#include "best_evaluation.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"
#include "tessera/kernels/numerics.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/setting.h"

namespace tessera {
namespace {

std::vector<NamedText> identity_of_optimizer(const TrainerOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  const std::vector<NamedText> all = identity_of_options(options);
  std::vector<NamedText> own{{"optimizer", optimizer.name}};
  std::vector<std::string> names{"weight_decay", "learning_rate_groups", "clip_norm",
                                 "stochastic_rounding"};
  const std::vector<double> values = hyperparameter_values(optimizer);
  const auto& rows = find_optimizer(optimizer.name).hyperparameters;
  for (std::size_t i = 0; i < values.size(); ++i) {
    own.push_back({std::string(rows[i].name), concat(values[i])});
  }
  for (const NamedText& value : all) {
    const bool is_left_out = value.name == "learning_rate_groups" && optimizer.groups.empty();
    if (!is_left_out && std::ranges::find(names, value.name) != names.end()) own.push_back(value);
  }
  return own;
}

/// The other settings that decide the bits of steps to come, or who computes them.
std::vector<NamedText> describe_options(const TrainerOptions& options) {
  const std::vector<std::string> names{"ranks",
                                       "strategy",
                                       "replicas",
                                       "micro_batch",
                                       "accumulate",
                                       "steps",
                                       "learning_rate",
                                       "minimum_learning_rate",
                                       "precision",
                                       "reduce_dtype",
                                       "warmup_steps",
                                       "learning_rate_schedule",
                                       "decay_steps",
                                       "reduction_order",
                                       "loss_scale",
                                       "loss_scale_dialect",
                                       "pipeline",
                                       "tied_apart",
                                       "fp8_recipe",
                                       "fp8_format",
                                       "fp8_scales",
                                       "fp8_history",
                                       "fp8_history_rule",
                                       "fp8_margin",
                                       "fp8_products",
                                       "fp8_bf16_blocks",
                                       "fp8_fast_accumulation",
                                       "gemm_table"};
  std::vector<NamedText> own;
  for (const NamedText& value : identity_of_options(options)) {
    // Checkpoints without stages or a table of GEMMs do not name them, nor those in other
    // precisions fp8.
    const bool is_usual = (value.name == "pipeline" && value.value == "1") ||
                          (value.name == "tied_apart" && value.value == "false") ||
                          (value.name == "gemm_table" && value.value == "none") ||
                          (value.name == "fp8_fast_accumulation" && value.value == "false") ||
                          (value.name.starts_with("fp8_") && !options.fp8.enabled) ||
                          (value.name.starts_with("fp8_history") && !options.fp8.is_delayed()) ||
                          (value.name == "fp8_margin" && !options.fp8.is_delayed());
    if (is_usual) continue;
    if (std::ranges::find(names, value.name) != names.end()) own.push_back(value);
  }
  return own;
}

constexpr const char* kNumerics = "numerics";

/// Removes the version of the numerics from what describes a run.
std::string take_numerics(std::vector<NamedText>& run) {
  const auto found = std::ranges::find(run, kNumerics, &NamedText::name);
  if (found == run.end()) return "1";
  std::string version = std::move(found->value);
  run.erase(found);
  return version;
}

/// The samples themselves, where a source has no identity: as many whatever the ranks are.
std::vector<NamedText> identity_of(const BatchSource& source, const TrainerOptions& options) {
  TrainerOptions one;
  one.micro_batch = 1;
  std::vector<NamedText> identity = identity_of_data(source, one);
  identity.push_back({"seed", concat(options.seed)});
  return identity;
}

/// "learning_rate was 0.1 and is 0.2; ..."; "" if all are equal.
std::string differences(const std::vector<NamedText>& saved, const std::vector<NamedText>& now) {
  std::string text;
  const auto value_in = [](const std::vector<NamedText>& values, const std::string& name) {
    const auto found = std::ranges::find(values, name, &NamedText::name);
    return found == values.end() ? std::string("not there") : found->value;
  };
  const auto add = [&](const std::string& name) {
    const std::string before = value_in(saved, name), after = value_in(now, name);
    if (before == after) return;
    text += concat(text.empty() ? "" : "; ", name, " was ", before, " and is ", after);
  };
  for (const NamedText& value : saved) add(value.name);
  for (const NamedText& value : now) {
    if (std::ranges::find(saved, value.name, &NamedText::name) == saved.end()) add(value.name);
  }
  return text;
}

/// Says how the loss scaler goes on; "" where there is none.
std::string scaler_note(const Manifest& saved, const TrainerOptions& options) {
  const std::optional<LossScaling> now = loss_scaling(options.loss_scale);
  if (now && !saved.loss_scaler) {
    return concat("the checkpoint has no loss scaler: it begins at ", now->initial_scale);
  }
  if (!now && saved.loss_scaler) {
    return concat("the checkpoint's loss scale of ", saved.loss_scaler->scale,
                  " is left behind: `loss_scale.choice` is none");
  }
  return "";
}

/// Says how the histories of delayed scaling go on; "" where they go on as they were.
std::string history_note(const Manifest& saved, const TrainerOptions& options) {
  if (options.fp8.is_delayed() && saved.fp8_histories.empty()) {
    return "the checkpoint has no histories of delayed scaling: they begin anew, with scales of 1";
  }
  if (!options.fp8.is_delayed() && !saved.fp8_histories.empty()) {
    return "the checkpoint's histories of delayed scaling are left behind: `fp8_recipe` is not "
           "delayed";
  }
  return "";
}

/// The checkpoint to go on from; none if there is none and none is needed.
WholeCheckpoint find_resumed(const CheckpointOptions& options,
                             const std::vector<DamagedCheckpoint>& unreadable) {
  const bool best = options.resume == "best";
  const bool newest = options.resume == "latest" || options.resume == "auto";
  if (options.resume.empty()) return {};
  require((!newest && !best) || !options.folder.empty(), ErrorCode::kConfig,
          "`checkpoints.resume` ", options.resume, " is the ", best ? "best" : "newest",
          " checkpoint in the folder of `checkpoints.folder`, which is not given");
  const std::string folder = best     ? options.folder + "/best"
                             : newest ? options.folder
                                      : options.resume;
  WholeCheckpoint found = find_whole_checkpoint(folder, unreadable);
  require(!found.path.empty() || found.damages.empty(), ErrorCode::kConfig, "`checkpoints.resume` ",
          options.resume, ": no checkpoint in '", folder,
          "' is whole: ", joined(found.damages, "; "),
          "; put back what is missing, or name another checkpoint by `checkpoints.resume` FOLDER, "
          "or a new "
          "folder by `checkpoints.folder` to begin at step 0");
  require(!found.path.empty() || options.resume == "auto", ErrorCode::kNotFound,
          "`checkpoints.resume` ", options.resume, ": there is no checkpoint in '", folder, "'");
  return found;
}

/// A new run must not mix its checkpoints with those of another.
void require_no_checkpoints(const CheckpointOptions& options) {
  if (options.folder.empty()) return;
  const std::string there = find_checkpoint(options.folder);
  require(there.empty(), ErrorCode::kConfig, "`checkpoints.folder` ", options.folder,
          " has checkpoints already, the newest being '", there,
          "'; go on from it with `checkpoints.resume` latest, or name another folder");
}

}  // namespace

Manifest describe_run(const TrainingPlan& plan) {
  Manifest manifest;
  manifest.model = plan.inputs.model.configuration;
  manifest.model.push_back(identity_of_model(plan.inputs.model));
  manifest.data = identity_of(plan.inputs.source, plan.options);
  manifest.optimizer = identity_of_optimizer(plan.options);
  manifest.run = describe_options(plan.options);
  manifest.run.push_back({kNumerics, concat(kNumericsVersion)});
  manifest.parameters = saved_parameters(plan.layout, plan_options(plan.options).state(),
                                         plan.options.optimizer.stochastic_rounding);
  return manifest;
}

ResumeChoice find_resume_point(const TrainingPlan& plan,
                               const std::vector<DamagedCheckpoint>& unreadable) {
  const CheckpointOptions& options = plan.options.checkpoints;
  const WholeCheckpoint found = find_resumed(options, unreadable);
  const std::string& path = found.path;
  ResumeChoice choice;
  if (path.empty()) {
    require_no_checkpoints(options);
    return choice;
  }
  if (!found.damages.empty()) {
    choice.notes.push_back(concat("WARNING: the run goes on from the older checkpoint '", path,
                                  "', for newer ones are damaged: ", joined(found.damages, "; ")));
  }
  auto point = std::make_shared<ResumePoint>();
  point->path = path;
  point->is_named = std::filesystem::exists(std::filesystem::path(options.resume) /
                                            std::filesystem::path(kManifestName));
  point->manifest = read_manifest(path);
  const Manifest& saved = point->manifest;
  Manifest now = describe_run(plan);
  const auto compare = [&](const char* what, const char* flag, bool allowed, const auto& member) {
    if ((saved.*member).empty()) return;  // of no run: see ParameterCheckpoint
    const std::string text = differences(saved.*member, now.*member);
    if (text.empty()) return;
    require(allowed, ErrorCode::kConfig, "'", path, "' is of a run with another ", what, ": ", text,
            "; give ", flag, " to resume it all the same");
    choice.notes.push_back(concat("resumed with another ", what, ": ", text));
  };
  compare("model", "`checkpoints.allow_other_model`", options.allow_other_model, &Manifest::model);
  compare("optimizer", "`checkpoints.allow_other_optimizer`", options.allow_other_optimizer,
          &Manifest::optimizer);
  compare("data", "`checkpoints.allow_other_data`", options.allow_other_data, &Manifest::data);
  require_same_parameters(saved, plan.layout, path);
  require(saved.step < plan.options.steps, ErrorCode::kConfig, "'", path, "' is of step ",
          saved.step, ", and the run has ", plan.options.steps,
          " steps: there is nothing left to train; raise `steps`");
  require(!has_lost_patience(plan.options, saved.best), ErrorCode::kConfig, "'", path,
          "' is of step ", saved.step,
          ", where the run has stopped: ", saved.best ? saved.best->without_improvement : 0,
          " evaluations were no better than that of step ", saved.best ? saved.best->step : 0,
          "; raise `patience` to go on, or leave it out");
  std::string taken = concat("resumed from '", path, "' at step ", saved.step, ", sample ",
                             saved.samples, ": parameters");
  for (const OptimizerTensor& kept : optimizer_tensors(plan.options.optimizer)) {
    const auto has = [&](const SavedParameter& parameter) {
      return std::ranges::find(parameter.states, kept.name, &SavedState::name) !=
             parameter.states.end();
    };
    taken += concat(", ", kept.name,
                    std::ranges::any_of(saved.parameters, has) ? "" : " (not there: from zero)");
  }
  choice.notes.push_back(std::move(taken));
  if (std::string note = scaler_note(saved, plan.options); !note.empty()) {
    choice.notes.push_back(std::move(note));
  }
  if (std::string note = history_note(saved, plan.options); !note.empty()) {
    choice.notes.push_back(std::move(note));
  }
  choice.point = point;
  if (saved.run.empty()) return choice;
  std::vector<NamedText> saved_run = saved.run;
  const std::string numerics = take_numerics(saved_run), own = take_numerics(now.run);
  if (numerics != own) {
    choice.notes.push_back(concat("the checkpoint is of version ", numerics,
                                  " of the numerics, and this program has version ", own,
                                  ": the bits of further steps are not those of the run so far"));
  }
  if (const std::string changed = differences(saved_run, now.run); !changed.empty()) {
    choice.notes.push_back("since the checkpoint: " + changed);
  }
  return choice;
}

void agree_on_resume_point(const TrainerOptions& options, const ResumePoint* point) {
  if (options.world == nullptr || options.checkpoints.resume.empty()) return;
  require_agreement(*options.world,
                    {{"the checkpoint to resume",
                      point == nullptr ? "none"
                                       : concat("of step ", point->manifest.step, " (hash ",
                                                hash_of(to_text(point->manifest)), ")")}});
}

std::string checkpoint_before(const ResumePoint& point) {
  const auto all = list_checkpoints(std::filesystem::path(point.path + "/..").lexically_normal());
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (it->step < point.manifest.step && damage_of(it->path).empty()) return it->path;
  }
  return "";
}

}  // namespace tessera
