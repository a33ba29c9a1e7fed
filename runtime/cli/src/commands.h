#pragma once

#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/compat/config_sources.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// The exit codes of the process.
inline constexpr int kExitGood = 0;
inline constexpr int kExitRunTime = 1;   ///< the run failed
inline constexpr int kExitUsage = 2;     ///< the settings or the data cannot work
inline constexpr int kExitSignal = 128;  ///< plus the signal that ended training early

/// Settings that only `train` has, and only `plan`.
std::vector<Setting> train_only_settings();
std::vector<Setting> plan_only_settings();
/// All that `train`, `plan` and `simulate` take.
std::vector<Setting> train_settings();
std::vector<Setting> plan_settings();
std::vector<Setting> simulate_settings();
/// All that a config file may have.
std::vector<Setting> all_settings();

/// One table of several.
std::vector<Setting> joined(std::initializer_list<std::vector<Setting>> tables);
/// `settings` but for the one of that name, where a command has its own.
std::vector<Setting> without(std::vector<Setting> settings, std::string_view name);

/// Every setting with its value and where that is from.
void print_settings(std::ostream& out, const Config& config);

/// For commands that run nothing: their report of a file holds under `tessera launch` as well.
inline const LaunchFacts kForAnyMachine{.launcher = kOwnLauncher};

class SettingsCommand;

// Each adds the flags of a command that can be launched to `app`.
std::shared_ptr<SettingsCommand> add_train_flags(CLI::App& app);
std::shared_ptr<SettingsCommand> add_evaluate_flags(CLI::App& app);
std::shared_ptr<SettingsCommand> add_generate_flags(CLI::App& app);
std::shared_ptr<SettingsCommand> add_self_test_flags(CLI::App& app);

// Each adds the flags of a command to `app`, and returns the function that runs the command after
// parsing and gives the exit code. <name>_command.cpp defines it.
std::function<int()> add_train(CLI::App& app);
std::function<int()> add_evaluate(CLI::App& app);
std::function<int()> add_plan(CLI::App& app);
std::function<int()> add_simulate(CLI::App& app);
std::function<int()> add_compare(CLI::App& app);
std::function<int()> add_generate(CLI::App& app);
std::function<int()> add_checkpoint(CLI::App& app);
std::function<int()> add_tokenize(CLI::App& app);
std::function<int()> add_calibrate(CLI::App& app);
std::function<int()> add_explain(CLI::App& app);
std::function<int()> add_estimate_memory(CLI::App& app);
std::function<int()> add_inspect_dump(CLI::App& app);
std::function<int()> add_env(CLI::App& app);
std::function<int()> add_gpu_info(CLI::App& app);
std::function<int()> add_config(CLI::App& app);
std::function<int()> add_self_test(CLI::App& app);
std::function<int()> add_bench(CLI::App& app);

/// A subcommand of the program.
struct CommandRow {
  const char* name;
  const char* summary;
  std::function<int()> (*add)(CLI::App& app);
};
inline constexpr const char* kLaunch = "launch";
/// The subcommands in the order of --help.
inline constexpr CommandRow kCommands[]{
    {"train", "Train a GPT on text or tokens", add_train},
    {"evaluate", "Compute a model's loss on text or tokens", add_evaluate},
    {"plan", "Print a run's schedule, memory and traffic without running it", add_plan},
    {"simulate", "Predict a step's time on a machine that need not be here", add_simulate},
    {"compare", "Run or predict a matrix of strategies, ranks and more, with a report",
     add_compare},
    {"generate", "Continue a text with a trained model", add_generate},
    {"checkpoint", "Look at checkpoints, check them, write them in other formats", add_checkpoint},
    {"tokenize", "Write text as a file of token ids, which `train --data` reads", add_tokenize},
    {"calibrate",
     "Time this machine: a profile of it to simulate with, or how its GPU runs a model's GEMMs",
     add_calibrate},
    {"explain", "Tell what a config file means here, key by key", add_explain},
    {"estimate-memory", "Print what loading and training a model would need, by strategy",
     add_estimate_memory},
    {"inspect-dump", "Say from the dumps of a run which rank others waited for", add_inspect_dump},
    {"env", "Describe this machine and this build, to paste into a report", add_env},
    {"gpu-info", "List the GPUs, their memory and which reach which", add_gpu_info},
    {"config", "Ask how to train on this machine and write a config file, as Accelerate does",
     add_config},
    {"test",
     "Test that every strategy works here, or that the processes of a launcher work together",
     add_self_test},
    {"bench", "Time collectives and kernels against this machine's limits; compare two results",
     add_bench},
    // main.cpp adds its flags: those of the command that it launches may stand among them.
    {kLaunch, "Start the processes of a run on this machine: launch FLAGS -- train FLAGS", nullptr},
};

}  // namespace tessera::cli
