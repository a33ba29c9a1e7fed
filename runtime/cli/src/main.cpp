#include <algorithm>
#include <exception>
#include <iostream>
#include <new>

#include "command_line.h"
#include "commands.h"
#include "explain_command.h"
#include "gpt_settings.h"
#include "terminal.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

std::vector<Setting> joined(std::initializer_list<std::vector<Setting>> tables) {
  std::vector<Setting> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

int fail_with(const std::string& what, int exit_code) {
  std::cout << std::flush;
  std::cerr << "tessera: " << paint(inspect(stderr), Colour::kRed, "error:") << " " << what << "\n";
  return exit_code;
}

int exit_code_of(const Error& error) {
  const bool users = error.code() == ErrorCode::kConfig || error.code() == ErrorCode::kNotFound;
  return users ? kExitUsage : kExitRunTime;
}

/// CLI11 would only say that a subcommand is required.
void check_command(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  require(argc > 1, ErrorCode::kConfig, "no command; try 'tessera train --data FOLDER' or ",
          "'tessera --help'");
  const std::string word = argv[1];
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  require(known || word.rfind('-', 0) == 0, ErrorCode::kConfig,
          unknown_name("command", word, names));
}

int run(int argc, const char* const* argv) {
  CLI::App app("Trains models with sharded data parallelism, and tells beforehand what it costs.",
               "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(40);
  const SettingsCommand train(
      app, "train", "Train a GPT on text or tokens on this machine",
      joined({model_settings(), trainer_settings(), train_only_settings()}));
  const SettingsCommand plan(
      app, "plan", "Print a run's schedule, memory and traffic without running it",
      joined({model_settings(), trainer_settings(), plan_only_settings()}), train_only_settings());
  SettingsCommand explain(app, "explain", "Tell what a config file means here, key by key",
                          joined({model_settings(), trainer_settings(), train_only_settings()}),
                          plan_only_settings());
  ExplainRequest request;
  explain.command().add_option("FILE", request.path,
                               "a config file of Tessera, Accelerate or DeepSpeed");
  explain.command().add_flag("--json", request.json, "print one JSON object");
  check_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return fail_with(std::string(error.what()) + "; see tessera --help", kExitUsage);
  }
  if (explain.parsed()) return run_explain(explain.config(std::cerr, request.path), request);
  Config config = train.parsed() ? train.config(std::cerr) : plan.config(std::cerr);
  const bool quiet = train.parsed() && config.get<bool>("quiet");
  if (!quiet) print_announcements(std::cerr, config);
  return train.parsed() ? run_train(std::move(config)) : run_plan(std::move(config));
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  using namespace tessera;
  try {
    return cli::run(argc, argv);
  } catch (const Error& error) {
    return cli::fail_with(error.what(), cli::exit_code_of(error));
  } catch (const std::bad_alloc&) {
    return cli::fail_with(
        "out of memory; use fewer ranks, a smaller model or a smaller micro-batch",
        cli::kExitRunTime);
  } catch (const std::exception& error) {
    return cli::fail_with(error.what(), cli::kExitRunTime);
  }
}
