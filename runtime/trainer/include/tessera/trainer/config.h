#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/trainer/config_file.h"
#include "tessera/trainer/config_sources.h"
#include "tessera/trainer/setting.h"

namespace tessera {

/// The values of a table of settings: what the command line says, else what a file says, else what
/// the environment says, else the defaults, in whatever order they are told. Every failure is
/// Error{kConfig} that names the file and line, or the flag; the setting, the value and what is
/// allowed.
class Config {
 public:
  /// Throws Error{kInternal} if a name appears twice or a default breaks its own rule.
  explicit Config(std::vector<Setting> table);

  /// Tells who starts the processes of the run, before anything is read. What our own launcher says
  /// of ranks counts as the command line does.
  void set_launch(LaunchFacts launch);
  /// Takes the settings of a file: ours (keys as in the table, '-' and '_' alike), Accelerate's or
  /// DeepSpeed's, in JSON with comments or in YAML. A key that is unknown or appears twice is an
  /// error that names the nearest. Give the command line's settings first: sizes that a file
  /// computes depend on them.
  void read_file(const std::string& path);
  /// The nearest file that is accepted; see fix_config. Reads no settings.
  FixedConfig fixed_file(const std::string& path) const;
  /// Takes what a launcher exported, if one did. `names`: see translate_environment.
  void read_environment(const Environment& environment, const std::vector<std::string>& names);
  /// Takes one setting from the command line.
  void set_text(std::string_view name, const std::string& text);
  /// Records what a setting came to be, e.g. a default that depends on the model; checks nothing.
  void set_effective(std::string_view name, nlohmann::json value);

  const std::vector<Setting>& table() const { return table_; }
  /// True if a file, the environment or the command line gave it.
  bool given(std::string_view name) const;
  /// True if the command line gave it: somebody typed it for this run.
  bool is_typed(std::string_view name) const;
  /// True if it has no value: not given, and the default is null.
  bool is_null(std::string_view name) const { return value(name).is_null(); }
  template <typename T>
  T get(std::string_view name) const {
    return value(name).get<T>();
  }
  /// All settings in the order of the table.
  const nlohmann::ordered_json& values() const { return values_; }

  /// Where its value is from: "default", "derived", "command line", "configs/x.yaml:12",
  /// "configs/x.yaml (derived)", "environment: FSDP_VERSION".
  std::string source(std::string_view name) const;
  /// The files and environments that were read, in that order.
  const std::vector<ConfigTranslation>& translations() const { return translations_; }
  /// What a run prints about them, one line each. Of what a file and the environment both say, as
  /// they do where our own launcher has exported the file, the file tells, since it counts.
  std::vector<std::string> announcements() const;

 private:
  /// Who gave a value; the later wins.
  enum class Giver : std::uint8_t { kDefault, kEnvironment, kFile, kCommandLine };
  struct Origin {
    Giver giver = Giver::kDefault;
    std::string text = "default";
  };

  const Setting& setting(std::string_view name) const;
  const nlohmann::ordered_json& value(std::string_view name) const;
  void store(const Setting& setting, const nlohmann::json& value, const std::string& label,
             Origin origin);
  void take(ConfigTranslation translation, Giver giver);
  TranslationContext context() const;

  std::vector<Setting> table_;
  nlohmann::ordered_json values_;
  std::map<std::string, Origin, std::less<>> origins_;
  std::vector<ConfigTranslation> translations_;
  LaunchFacts launch_;
};

}  // namespace tessera
