#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera {

/// The values of a table of settings: what the command line says, else the defaults; a Config adds
/// files and environments. Every failure is Error{kConfig} that names the flag or the file and
/// line; the setting, the value and what is allowed.
class Settings {
 public:
  /// Throws Error{kInternal} if a name appears twice or a default breaks its own rule.
  explicit Settings(std::vector<Setting> table);

  /// Takes one setting from the command line.
  void set_text(std::string_view name, const std::string& text);
  /// Records what a setting came to be, e.g. a default that depends on the model; checks nothing.
  void set_effective(std::string_view name, nlohmann::json value);

  const std::vector<Setting>& table() const { return table_; }
  /// True if a file, the environment or the command line gave it.
  bool given(std::string_view name) const { return origin(name).giver != Giver::kDefault; }
  /// True if the command line gave it: somebody typed it for this run.
  bool is_typed(std::string_view name) const { return origin(name).giver == Giver::kCommandLine; }
  /// True if it has no value: not given, and the default is null.
  bool is_null(std::string_view name) const { return value(name).is_null(); }
  /// A text; "" if it has no value.
  std::string text(std::string_view name) const {
    return is_null(name) ? "" : get<std::string>(name);
  }
  template <typename T>
  T get(std::string_view name) const {
    return value(name).get<T>();
  }
  const nlohmann::ordered_json& value(std::string_view name) const;
  /// All settings in the order of the table.
  const nlohmann::ordered_json& values() const { return values_; }

  /// Where its value is from: "default", "derived", "command line", "configs/x.yaml:12",
  /// "configs/x.yaml (derived)", "environment: FSDP_VERSION".
  const std::string& source(std::string_view name) const { return origin(name).text; }

 protected:
  /// The giver of a value; the later wins.
  enum class Giver : std::uint8_t { kDefault, kEnvironment, kFile, kCommandLine };
  struct Origin {
    Giver giver = Giver::kDefault;
    std::string text = "default";
  };
  /// Checks the value, which `label` names in messages, and takes it unless a later giver spoke.
  void store(std::string_view name, const nlohmann::json& value, const std::string& label,
             Origin origin);

 private:
  const Setting& setting(std::string_view name) const;
  const Origin& origin(std::string_view name) const;

  std::vector<Setting> table_;
  nlohmann::ordered_json values_ = nlohmann::ordered_json::object();
  std::map<std::string, Origin, std::less<>> origins_;
};

}  // namespace tessera
