#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aliases.h"
#include "commands.h"
#include "help_format.h"
#include "launch/launch_command.h"
#include "terminal.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/model/generate.h"

namespace tessera::cli {
namespace {

int fail_with(const std::string& what, int exit_code) {
  std::cout << std::flush;
  const Terminal terminal = inspect(stderr);
  constexpr std::size_t kBegin = std::string_view("tessera: error:").size();
  const std::string text =
      for_reader(terminal, "tessera: error: " + printable(to_byte_tokens(what)));
  std::cerr << "tessera: " << paint(terminal, Colour::kRed, "error:") << text.substr(kBegin)
            << "\n";
  return exit_code;
}

/// What a command ends with: not well if what it has printed is lost, as on a full disk.
int after_output(int exit_code) {
  std::cout.flush();
  if (std::cout || exit_code != kExitGood) return exit_code;
  return fail_with(
      "standard output cannot be written; is the disk full? Make room, or send it elsewhere",
      kExitRunTime);
}

int exit_code_of(const Error& error) {
  const bool users = error.code() == ErrorCode::kConfig || error.code() == ErrorCode::kNotFound;
  return users ? kExitUsage : kExitRunTime;
}

struct CommandRow {
  const char* name;
  Command (*add)(CLI::App& program);
};
constexpr const char* kLaunch = "launch";  // which is added in a way of its own, as the last
constexpr std::array kCommands{
    CommandRow{"train", add_train},
    CommandRow{"evaluate", add_evaluate},
    CommandRow{"plan", add_plan},
    CommandRow{"simulate", add_simulate},
    CommandRow{"compare", add_compare},
    CommandRow{"generate", add_generate},
    CommandRow{"checkpoint", add_checkpoint},
    CommandRow{"tokenize", add_tokenize},
    CommandRow{"calibrate", add_calibrate},
    CommandRow{"explain", add_explain},
    CommandRow{"estimate-memory", add_estimate_memory},
    CommandRow{"inspect-dump", add_inspect_dump},
    CommandRow{"env", add_env},
    CommandRow{"gpu-info", add_gpu_info},
    CommandRow{"config", add_config},
    CommandRow{"test", add_self_test},
    CommandRow{"bench", add_bench},
};

/// The first word of the command line. CLI11 would only say that a subcommand is required.
std::string command_word(int argc, const char* const* argv) {
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) names.emplace_back(row.name);
  names.emplace_back(kLaunch);
  require(argc > 1, ErrorCode::kConfig, "no command; try 'tessera train --data FOLDER' or ",
          "'tessera --help'");
  std::string word = argv[1];
  const std::string foreign = about_foreign_command(word);
  require(foreign.empty(), ErrorCode::kConfig, foreign);
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  require(known || word.rfind('-', 0) == 0, ErrorCode::kConfig,
          unknown_name("command", word, names));
  return word;
}

int run(int argc, const char* const* argv) {
  CLI::App app("Trains models with sharded data parallelism, and tells beforehand what it costs.",
               "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormat>());
  // Of all commands only --help tells: CLI11 compares each flag with all others, which takes longer
  // than many a command.
  const std::string word = command_word(argc, argv);
  const bool all = word.starts_with('-') && word != "--version";
  std::vector<Command> commands;
  for (const CommandRow& row : kCommands) {
    if (all || word == row.name) commands.push_back(row.add(app));
  }
  std::optional<LaunchCommand> launch;
  if (all || word == kLaunch) launch.emplace(app);
  std::vector<std::string> launched = take_launched(argc, argv);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (launch) hand_on_flags(*app.get_subcommand(kLaunch), words, launched, std::cerr);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return fail_with(std::string(error.what()) + "; see tessera --help", kExitUsage);
  }
  if (launch && launch->parsed()) return run_launch(launch->request(launched));
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  fail(ErrorCode::kInternal, "no command was parsed");
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  using namespace tessera;
  // A file at its limit (ulimit -f) is an error of the write, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::vector<std::string> arguments = spelt_as_ours({argv, argv + argc});
    std::vector<const char*> words;
    for (const std::string& argument : arguments) words.push_back(argument.c_str());
    return cli::after_output(cli::run(argc, words.data()));
  } catch (const Error& error) {
    const bool late = error.code() == ErrorCode::kTimeout;
    const char* const remedy = late ? "; if they are only slow, raise --timeout" : "";
    return cli::fail_with(std::string(error.what()) + remedy, cli::exit_code_of(error));
  } catch (const std::bad_alloc&) {
    return cli::fail_with(
        "out of memory; use fewer ranks, a smaller model or a smaller micro-batch",
        cli::kExitRunTime);
  } catch (const std::exception& error) {
    return cli::fail_with(error.what(), cli::kExitRunTime);
  }
}
