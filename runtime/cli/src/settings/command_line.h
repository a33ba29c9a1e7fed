#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/compat/aliases.h"
#include "tessera/compat/config.h"
#include "tessera/core/error.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// How --help looks: at most 80 columns wide, unless a word is longer.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* command) const override;
  std::string make_footer(const CLI::App* command) const override;
};

/// A subcommand whose flags are a table of settings, with --config beside them.
class SettingsCommand {
 public:
  /// Adds its flags to `app`. `flags`: settings that are flags of this command. `keys_only`:
  /// settings of other commands, accepted in a config file so that commands can share one.
  SettingsCommand(CLI::App& app, std::vector<Setting> flags, std::vector<Setting> keys_only = {});

  // The command line's own words, after parsing.
  const std::string& config_path() const { return config_path_; }  ///< empty: it names none
  bool takes_default_config() const { return !no_default_config_; }
  /// Its settings; all others have their defaults. Throws Error{kConfig}.
  Config flags() const;

  /// The values after parsing: flag, else config file, else what a launcher exported, else default.
  /// `path` is the config file if --config names none. Without either, Accelerate's own default
  /// file is taken, and a note says so; --no-default-config forbids it.
  /// `launch`: who starts the processes that the settings are for.
  /// Throws Error{kConfig}.
  Config config(const LaunchFacts& launch, const std::string& path = "") const;

 private:
  void add_flag(const Setting& setting);
  void reject_extras() const;

  CLI::App* command_;
  std::vector<Setting> flags_;
  std::vector<Setting> keys_only_;
  std::string config_path_;
  bool no_default_config_ = false;
  std::map<std::string, std::string> texts_;  // what the command line gave, by setting
};

/// The text behind a setting's flag in --help: "N", "TEXT", its choices.
std::string type_name(const Setting& setting);

/// The value of a flag's text, in the limits and the words of `table`'s settings: commands
/// without a SettingsCommand take their numbers by it, since CLI11 reads 010 as 8, an empty text as
/// 0, and says of any other no more than that it could not convert it. Throws Error{kConfig}.
template <typename T>
T value_of(std::vector<Setting> table, std::string_view name, const std::string& text) {
  Config config(std::move(table));
  config.set_text(name, text);
  return config.get<T>(name);
}

/// Calls `read`, which reads a config file. If that is Accelerate's default file, which nobody has
/// named, its errors say so, and what leaves it aside: `remedy`, "--no-default-config".
template <typename Read>
auto read_maybe_default(bool by_default, const std::string& remedy, const Read& read) {
  const std::string more = concat(
      "; that is Accelerate's default file, which is read where no --config is given: change it, "
      "or give ",
      remedy);
  try {
    return read();
  } catch (const ConfigRefused& refused) {
    if (!by_default) throw;
    throw ConfigRefused(refused.translation(), more);
  } catch (const Error& error) {
    if (!by_default) throw;
    fail(error.code(), error.what(), more);
  }
}

/// Prints what was translated of foreign files, a line for each key, and the keys without effect.
void print_announcements(const Config& config);

/// Lets a command take the aliases of the flags that it has, unseen in its --help. To be called
/// when it has all its flags.
void accept_aliases(CLI::App& command);

/// Hands flags on that stand before the command that is launched, as `accelerate launch` takes
/// them: from `words`, which are `launch` and its arguments, behind the first of `launched`. Those
/// without effect are taken out, with a note.
void hand_on_flags(const CLI::App& launch, std::vector<std::string>& words,
                   std::vector<std::string>& launched);

/// The flags that its --help shows.
std::vector<std::string> shown_flags(const CLI::App& command);

}  // namespace tessera::cli
