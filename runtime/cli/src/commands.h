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

/// What the process ends with.
inline constexpr int kExitGood = 0;
inline constexpr int kExitRunTime = 1;   ///< the run failed
inline constexpr int kExitUsage = 2;     ///< the settings or the data cannot work
inline constexpr int kExitSignal = 128;  ///< plus the signal that ended training early

/// Settings that only `train` has, and only `plan`.
std::vector<Setting> train_only_settings();
std::vector<Setting> plan_only_settings();

/// One table of several.
std::vector<Setting> joined(std::initializer_list<std::vector<Setting>> tables);

/// Every setting with its value and where that is from.
void print_settings(std::ostream& out, const Config& config);

/// What is told of a file without running it holds under `tessera launch` as well.
inline const LaunchFacts kForAnyMachine{.launcher = kOwnLauncher};

/// A subcommand of the program and what it does: `run` is called if `app` was parsed, and returns
/// the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

class SettingsCommand;

// The flags of the commands that can be launched.
std::shared_ptr<SettingsCommand> add_train_flags(CLI::App& program);
std::shared_ptr<SettingsCommand> add_evaluate_flags(CLI::App& program);
std::shared_ptr<SettingsCommand> add_generate_flags(CLI::App& program);
std::shared_ptr<SettingsCommand> add_self_test_flags(CLI::App& program);

// Each adds one to the program; <name>_command.cpp has it.
Command add_train(CLI::App& program);       ///< trains
Command add_evaluate(CLI::App& program);    ///< computes the loss on given data
Command add_plan(CLI::App& program);        ///< prints a schedule and its cost
Command add_simulate(CLI::App& program);    ///< predicts the time of a step
Command add_compare(CLI::App& program);     ///< runs a matrix of settings, with a report
Command add_generate(CLI::App& program);    ///< continues a text with a trained model
Command add_checkpoint(CLI::App& program);  ///< looks at checkpoints, writes them in other formats
Command add_calibrate(CLI::App& program);   ///< times this machine
Command add_tokenize(CLI::App& program);    ///< writes text as token ids
Command add_explain(CLI::App& program);     ///< tells what a config file means here
Command add_estimate_memory(CLI::App& program);  ///< prints what strategies would need
Command add_inspect_dump(CLI::App& program);     ///< tells from dumps which rank others waited for
Command add_env(CLI::App& program);              ///< describes this machine and this build
Command add_gpu_info(CLI::App& program);         ///< lists the GPUs
Command add_config(CLI::App& program);           ///< asks how to train and writes a config file
Command add_self_test(CLI::App& program);        ///< tests every strategy on this machine
Command add_bench(CLI::App& program);  ///< times collectives and kernels, compares results

}  // namespace tessera::cli
