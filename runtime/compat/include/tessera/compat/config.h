#pragma once

#include <string>
#include <vector>

#include "tessera/compat/config_file.h"
#include "tessera/compat/config_sources.h"
#include "tessera/trainer/settings.h"

namespace tessera {

/// Settings that files and a launcher's environment give as well: the command line counts most,
/// then a file, then the environment, in whatever order they are told.
class Config : public Settings {
 public:
  using Settings::Settings;

  /// Tells who starts the processes of the run, before anything is read. The ranks of our
  /// own launcher count as the command line does.
  void set_launch(LaunchFacts launch);
  /// Takes the settings of a file: ours (keys as in the table, '-' and '_' alike), Accelerate's or
  /// DeepSpeed's, in JSON with comments or in YAML. A key that is unknown or appears twice is an
  /// error that names the nearest. Give the command line's settings first: sizes that a file
  /// computes depend on them.
  void read_file(const std::string& path);
  /// The nearest file that is accepted; see fix_config. Reads no settings.
  FixedConfig fixed_file(const std::string& path) const { return fix_config(path, context()); }
  /// Takes what a launcher exported, if one did. `names`: see translate_environment.
  void read_environment(const Environment& environment, const std::vector<std::string>& names);

  /// The files and environments that were read, in that order.
  const std::vector<ConfigTranslation>& translations() const { return translations_; }
  /// The lines that a run prints about them. Where a file and the environment say the same, as they
  /// do if our own launcher has exported the file, the file's line is kept, since the file counts.
  std::vector<std::string> announcements() const;

 private:
  void take(ConfigTranslation translation, Giver giver);
  TranslationContext context() const;

  std::vector<ConfigTranslation> translations_;
  LaunchFacts launch_;
};

}  // namespace tessera
