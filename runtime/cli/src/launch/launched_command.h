#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "settings/command_line.h"

namespace tessera::cli {

/// Whether the command can run in several processes.
inline bool can_be_launched(const std::string& name) {
  return name == "train" || name == "evaluate" || name == "generate" || name == "test" ||
         name == "bench";
}
/// Behind the name of one that cannot.
inline constexpr const char* kCannotBeLaunched =
    "' cannot be launched; 'train', 'evaluate', 'generate', 'test' and 'bench collectives' can, "
    "after the launcher's own flags and --";

/// `train`, `evaluate`, `generate`, `test` or `bench collectives` with its flags, parsed as each of
/// the processes will parse it. The last one takes no config file.
class LaunchedCommand {
 public:
  /// `words`: the arguments of the program. Throws Error{kConfig} on what cannot be launched, and
  /// on what the command would refuse.
  explicit LaunchedCommand(std::vector<std::string> words);

  const std::vector<std::string>& words() const { return words_; }
  const std::string& name() const { return words_.front(); }
  /// The text of --help; empty if it is not there.
  const std::string& help() const { return help_; }
  const std::string& config_path() const { return config_path_; }
  bool takes_default_config() const {
    return settings_ != nullptr && settings_->takes_default_config();
  }
  /// The settings that are given, by name.
  const nlohmann::ordered_json& given() const { return given_; }
  /// One that is an integer; 0 if it is not given.
  int number(const char* name) const { return given_.value(name, 0); }

 private:
  std::vector<std::string> words_;
  std::unique_ptr<CLI::App> program_;
  std::shared_ptr<SettingsCommand> settings_;  // null: bench
  std::string config_path_;
  std::string help_;
  nlohmann::ordered_json given_ = nlohmann::ordered_json::object();
};

}  // namespace tessera::cli
