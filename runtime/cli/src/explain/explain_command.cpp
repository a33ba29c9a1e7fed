#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include "commands.h"
#include "explain/explain_report.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "settings/command_line.h"
#include "settings/gpt_choice.h"
#include "settings/gpt_settings.h"
#include "tessera/compat/aliases.h"
#include "tessera/core/error.h"
#include "tessera/core/mesh.h"
#include "tessera/sharding/strategies.h"
#include "tessera/trainer/same_bits.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// The command line of `tessera explain`.
struct ExplainRequest {
  std::string path{};
  bool all = false;
  bool json = false;
  std::string fixed_path{};
  bool tables = false;
};

void print_file(std::ostream& out, const ConfigTranslation& translation, bool all) {
  print_verdict(out, translation);
  if (all) {
    print_keys(out, translation);
  } else {
    print_findings(out, translation);
  }
}

void print_hint(std::ostream& out, const std::string& path) {
  print_wrapped(out, concat("'tessera explain ", path, " --all' tells of every key and setting"),
                0);
}

/// Its keys, of which no settings follow.
void print_refused(std::ostream& out, const ConfigTranslation& translation,
                   const ExplainRequest& request) {
  if (request.json) {
    const nlohmann::ordered_json object{
        {"kind", "explain"},
        {"files", nlohmann::ordered_json::array({cli::json_of(translation)})},
        {"settings", nullptr}};
    return write_json(out, object);
  }
  print_file(out, translation, request.all);
  if (request.all) return;
  out << "\n";
  print_hint(out, translation.path);
}

/// Explains the strategy of --strategy, without a file.
int explain_strategy(const Config& config, const ExplainRequest& request) {
  const Strategy& strategy = find_strategy(config.get<std::string>("strategy"));
  const Placement& placement = strategy.placement;
  const auto where = [](AxisSet axes) {
    return axes.empty() ? std::string("whole on every rank")
                        : concat("sharded over ", to_string(axes));
  };
  const char* const after = placement.parameter.empty()      ? "nothing was gathered"
                            : strategy.reshard_after_forward ? "given back, gathered again"
                                                             : "kept until backward is done";
  if (request.json) {
    write_json(std::cout, {{"kind", "explain"},
                           {"strategy", strategy.name},
                           {"summary", strategy.summary},
                           {"parameters", to_string(placement.parameter)},
                           {"gradients", to_string(placement.gradient)},
                           {"optimizer", to_string(placement.optimizer)},
                           {"reshard_after_forward", strategy.reshard_after_forward}});
    return kExitGood;
  }
  print_wrapped(std::cout, concat(strategy.name, ": ", strategy.summary), 0);
  std::cout << "  parameters        " << where(placement.parameter) << "\n"
            << "  after forward     " << after << "\n"
            << "  gradients         " << where(placement.gradient) << "\n"
            << "  optimizer states  " << where(placement.optimizer) << "\n\n";
  print_wrapped(std::cout,
                concat("'tessera plan --strategy ", strategy.name,
                       " --ranks N' has its schedule, memory and traffic"),
                0);
  return kExitGood;
}

/// `fixed`: of a file that was just written, else null.
int run_explain(Config config, const ExplainRequest& request,
                const nlohmann::ordered_json& fixed = nullptr) {
  const bool is_strategy = config.translations().empty() && config.is_typed("strategy");
  if (is_strategy) return explain_strategy(config, request);
  require(!config.translations().empty(), ErrorCode::kConfig,
          "nothing to explain: give the path of a config file, or --strategy NAME");
  const Model model = make_model(choose_gpt(config));
  const TrainerOptions options = trainer_options(config);
  const std::string note = strategy_note(options);
  if (!note.empty()) print_note(note);
  set_effective(config, options);
  if (request.json) {
    nlohmann::ordered_json object = explanation_of(config);
    if (!fixed.is_null()) object["fixed"] = fixed;
    write_json(std::cout, object);
    return kExitGood;
  }
  for (const ConfigTranslation& translation : config.translations()) {
    print_file(std::cout, translation, request.all);
  }
  const std::string bits = concat("Switching between these strategies keeps the same bits: ",
                                  tessera::joined(compare_bits(model, options).same), ".");
  if (request.all) {
    print_settings(std::cout, config);
  } else {
    print_given_settings(std::cout, config);
  }
  std::cout << "\n";
  print_wrapped(std::cout, bits, 0);
  if (!request.all) {
    std::cout << "\n";
    print_hint(std::cout, config.translations().back().path);
  }
  return kExitGood;
}

/// The file that a command line without its path stands for.
std::string path_of(const SettingsCommand& command, const ExplainRequest& request) {
  if (!command.config_path().empty()) return command.config_path();
  if (!request.path.empty()) return request.path;
  const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
  const auto path =
      command.takes_default_config() ? default_accelerate_config(environment) : std::nullopt;
  require(path.has_value(), ErrorCode::kConfig, "nothing to fix: give the path of a config file");
  return *path;
}

void write_fixed(const std::string& path, const std::string& text) {
  std::error_code error;
  require(!std::filesystem::exists(path, error), ErrorCode::kConfig, "--fix ", path,
          ": is there already; give the path of a new file");
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  require(!file.fail(), ErrorCode::kIo, "--fix ", path,
          ": cannot be written; give a path in a folder that can be written to");
}

/// Writes the file and explains it. One that cannot be used after all is taken away again.
int run_fix(const SettingsCommand& command, const ExplainRequest& request) {
  const std::string path = path_of(command, request);
  Config flags = command.flags();
  flags.set_launch(kForAnyMachine);
  const FixedConfig fixed = flags.fixed_file(path);
  write_fixed(request.fixed_path, fixed.text);
  if (fixed.changes.empty()) {
    if (!request.json) {
      std::cout << path << " needs no change; " << request.fixed_path << " is a copy of it\n\n";
    }
    return run_explain(command.config(kForAnyMachine, path), request);
  }
  try {
    Config config = command.flags();
    config.set_launch(kForAnyMachine);
    config.read_file(request.fixed_path);
    if (!request.json) {
      std::cout << request.fixed_path << ": written, with "
                << counted(std::ssize(fixed.changes), "change") << "\n";
      for (const std::string& change : fixed.changes) print_wrapped(std::cout, change, 2);
      if (fixed.comments_lost) std::cout << "  the comments of " << path << " are lost\n";
      std::cout << "\n";
    }
    return run_explain(std::move(config), request,
                       {{"path", request.fixed_path},
                        {"changes", fixed.changes},
                        {"comments_lost", fixed.comments_lost}});
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(request.fixed_path, ignored);
    throw;
  }
}

}  // namespace

void print_settings(std::ostream& out, const Config& config) {
  out << "\neffective settings\n";
  TextTable table;
  for (const auto& [name, value] : config.values().items()) {
    table.add({"  " + name, value == "\n" ? "\\n" : plain_text(value), config.source(name)});
  }
  table.print(out);
}

std::function<int()> add_explain(CLI::App& app) {
  const auto command = std::make_shared<SettingsCommand>(
      app, joined({model_settings(), trainer_settings(), train_only_settings()}),
      plan_only_settings());
  const auto request = std::make_shared<ExplainRequest>();
  app.add_option("FILE", request->path, "a config file of Tessera, Accelerate or DeepSpeed");
  app.add_flag("--all", request->all,
               "tell of every key and every setting, not only of those that differ");
  app.add_flag("--json", request->json, "print one JSON object, of all");
  app.add_option("--fix", request->fixed_path,
                 "write the nearest file that runs here, with refused keys changed or left out")
      ->type_name("FILE");
  app.add_flag("--tables", request->tables,
               "print the tables of keys and flags of other programs and ours, in Markdown");
  return [command, request] {
    if (request->tables) {
      std::cout << habit_tables();
      return kExitGood;
    }
    try {
      if (!request->fixed_path.empty()) return run_fix(*command, *request);
      return run_explain(command->config(kForAnyMachine, request->path), *request);
    } catch (const ConfigRefused& refused) {
      print_refused(std::cout, refused.translation(), *request);
      throw;
    }
  };
}

}  // namespace tessera::cli
