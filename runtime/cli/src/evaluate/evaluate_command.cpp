#include <cstdlib>
#include <memory>
#include <optional>

#include "commands.h"
#include "evaluate/evaluation.h"
#include "launch/same_run.h"
#include "output/run_report.h"
#include "run/watchers.h"
#include "settings/command_line.h"
#include "settings/data_choice.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// A data set to evaluate on: --eval-data, or --data for whoever gives that.
TokenDataset open_data(Config& config, const GptChoice& choice) {
  if (config.is_null("eval_data") && !config.is_null("data")) {
    config.set_effective("eval_data", config.value("data"));
  }
  std::optional<TokenDataset> dataset = open_evaluation(config, choice);
  require(
      dataset.has_value(), ErrorCode::kConfig,
      "nothing to evaluate on: give --eval-data a text file, a folder of texts or .bin files of "
      "tokens");
  return *std::move(dataset);
}

int run_evaluate(Config config, const Launcher& launcher) {
  check_log(config);
  if (config.get<std::string>("task") == "multiple-choice") {
    return run_multiple_choice(std::move(config), launcher);
  }
  require(config.is_null("questions"), ErrorCode::kConfig,
          "--questions counts those of --task multiple-choice; give --eval-tokens for a loss");
  const GptChoice choice = choose_gpt(config);
  require(!choice.config.labels.empty() || config.get<std::string>("task") != "classification",
          ErrorCode::kConfig,
          "--task classification needs a model or adapter with labels; give --init one that was "
          "trained with --task classification");
  const TokenDataset data = open_data(config, choice);
  const Model model = make_model(choice);
  const DumpWatch dumps;
  TrainerOptions options = trainer_options(config);
  options.dump_requests = dumps.requests();
  const std::vector<NamedText> initial = adopt_parameters(choice, options);
  options.evaluation_samples = evaluation_samples(config, data);
  options.checkpoints = {};  // of the training that a file of settings is for
  options.stop_after = 0;
  options.trace.of_evaluation = true;
  join_world(launcher, config, options);
  require_same_run(config, options, initial);
  Session session(model, data, options, &data);
  const EvaluationRecord record = session.evaluate();
  if (launcher.process != 0) return kExitGood;
  constexpr int kDecimals = 6;  // the result, not one of many
  std::vector<std::string> lines = describe_data(data, choice);
  lines.push_back(describe_evaluation(record, kDecimals, choice.config.labels));
  if (const std::string note = describe_trace(options, session.traced_steps()); !note.empty()) {
    lines.push_back(note);
  }
  const nlohmann::ordered_json line = to_json(record);
  nlohmann::ordered_json json = line;
  if (record.macro_f1()) json["accuracy"] = *record.token_accuracy();
  for (std::size_t label = 0; label < record.classes.size(); ++label) {
    json["f1_by_label"][choice.config.labels.at(label)] = record.classes[label].f1();
  }
  tell_evaluation(config, choice, parameter_count(model), line, json, lines);
  return kExitGood;
}

}  // namespace

std::shared_ptr<SettingsCommand> add_evaluate_flags(CLI::App& app) {
  const Setting format{.name = "format",
                       .fallback = "text",
                       .help = "text, or the record that a log has, as json",
                       .choices = {"text", "json"}};
  std::vector<Setting> flags =
      joined({without(model_settings(), "task"), data_settings(), choice_settings(),
              in_group("Output", MustAgree::kNone, {format})});
  std::vector<Setting> other;
  for (Setting& setting : trainer_settings()) {
    (setting.group == "Checkpoints" ? other : flags).push_back(std::move(setting));
  }
  for (Setting& setting : train_only_settings()) {
    if (setting.name == "log") {
      setting.help = "append the run and its evaluation here, each as a JSON object on a line";
      flags.push_back(setting);
    } else if (setting.group != "Data" && setting.group != "Evaluation") {
      other.push_back(setting);
    }
  }
  return std::make_shared<SettingsCommand>(app, flags, other);
}

std::function<int()> add_evaluate(CLI::App& app) {
  const auto command = add_evaluate_flags(app);
  return [command] {
    const Launcher launcher = find_launcher(std::getenv);
    Config config = command->config(facts_of(launcher));
    choose_dump_folder(config);
    adopt_launcher(launcher, config);
    return run_evaluate(std::move(config), launcher);
  };
}

}  // namespace tessera::cli
