#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "launch/launch_command.h"
#include "output/terminal.h"
#include "settings/command_line.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/cpu_list.h"
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

/// The exit code of a command: a failure if what it has printed is lost, as on a full disk.
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

/// Checks the first word of the command line. CLI11 would only say that a subcommand is required.
void check_command_word(int argc, const char* const* argv) {
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) names.emplace_back(row.name);
  require(argc > 1, ErrorCode::kConfig, "no command; try 'tessera train --data FOLDER' or ",
          "'tessera --help'");
  const std::string word = argv[1];
  const std::string foreign = about_foreign_command(word);
  require(foreign.empty(), ErrorCode::kConfig, foreign);
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  require(known || word.rfind('-', 0) == 0, ErrorCode::kConfig,
          unknown_name("command", word, names));
}

/// "tessera help COMMAND" as "tessera COMMAND --help".
std::vector<std::string> help_as_flag(std::vector<std::string> arguments) {
  if (arguments.size() < 2 || arguments[1] != "help") return arguments;
  arguments.erase(arguments.begin() + 1);
  arguments.emplace_back("--help");
  return arguments;
}

int run(int argc, const char* const* argv) {
  CLI::App app("Trains models with sharded data parallelism, and tells beforehand what it costs.",
               "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormat>());
  app.footer("'tessera help COMMAND' tells the flags of a command.");
  check_command_word(argc, argv);
  std::vector<std::string> launched = take_launched(argc, argv);
  std::vector<std::string> words(argv + 1, argv + argc);
  std::map<const CLI::App*, std::function<int()>> commands;
  for (const CommandRow& row : kCommands) {
    CLI::App* const command = app.add_subcommand(row.name, row.summary);
    // Only a command that is named gets its flags: CLI11 compares each with all others, which takes
    // longer than many a command.
    if (std::ranges::find(words, row.name) == words.end()) continue;
    if (row.add != nullptr) {
      commands[command] = row.add(*command);
      continue;
    }
    const auto launch = std::make_shared<LaunchCommand>(*command);
    hand_on_flags(*command, words, launched);
    commands[command] = [launch, launched] { return run_launch(launch->request(launched)); };
  }
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return fail_with(std::string(error.what()) + "; see tessera --help", kExitUsage);
  }
  return commands.at(app.get_subcommands().front())();
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  using namespace tessera;
  // A file at its limit (ulimit -f) is an error of the write, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    bind_thread(usable_cpus());
    const std::vector<std::string> arguments =
        spelt_as_ours(cli::help_as_flag({argv, argv + argc}));
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
