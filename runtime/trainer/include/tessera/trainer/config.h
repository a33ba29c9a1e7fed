#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class SettingType : std::uint8_t {
  kInteger,
  kNumber,
  kFlag,  ///< true or false
  kText,
  kBytes,  ///< an integer, or a text such as "4GiB"; see parse_bytes
};

/// One thing that a user can set: a flag of the program and a key of its config files at once.
struct Setting {
  std::string name;  ///< the key, "micro_batch"; the flag is "--micro-batch"
  SettingType type = SettingType::kText;
  nlohmann::json fallback{};  ///< default value; null if unset means something of its own
  std::string help{};
  std::string group{};                                        ///< heading in --help
  std::vector<std::string> choices{};                         ///< allowed texts; empty: any
  double minimum = -std::numeric_limits<double>::infinity();  ///< numbers: inclusive
  double maximum = std::numeric_limits<double>::infinity();   ///< numbers: inclusive
  /// What the other fields cannot say; throws Error{kConfig}.
  std::function<void(const nlohmann::json&)> check{};
};

/// The values of a table of settings: what the command line says, else what the config file says,
/// else the defaults. Every failure is Error{kConfig} that names the file or flag, the setting, the
/// value and what is allowed.
class Config {
 public:
  /// Throws Error{kInternal} if a name appears twice or a default breaks its own rule.
  explicit Config(std::vector<Setting> table);

  /// Takes the settings of a JSON file: one object, keys as in the table ('-' and '_' are alike),
  /// comments allowed. A key that is unknown or appears twice is an error that names the nearest.
  void read_file(const std::string& path);
  /// Takes one setting from the command line.
  void set_text(std::string_view name, const std::string& text);
  /// Records what a setting came to be, e.g. a default that depends on the model; checks nothing.
  void set_effective(std::string_view name, nlohmann::json value);

  const std::vector<Setting>& table() const { return table_; }
  /// True if a file or the command line gave it.
  bool given(std::string_view name) const;
  /// True if it has no value: not given, and the default is null.
  bool is_null(std::string_view name) const { return value(name).is_null(); }
  template <typename T>
  T get(std::string_view name) const {
    return value(name).get<T>();
  }
  /// All settings in the order of the table.
  const nlohmann::ordered_json& values() const { return values_; }

 private:
  const Setting& setting(std::string_view name) const;
  const nlohmann::ordered_json& value(std::string_view name) const;
  void store(const Setting& setting, const nlohmann::json& value, const std::string& source);

  std::vector<Setting> table_;
  nlohmann::ordered_json values_;
  std::set<std::string, std::less<>> given_;
};

/// "--micro-batch" for "micro_batch".
std::string flag_name(std::string_view setting);
/// The reverse, and '-' to '_' in a key.
std::string setting_name(std::string_view flag);

/// "unknown <kind> '<word>'; did you mean '<nearest>'?", or without a suggestion if none is near.
std::string unknown_name(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates);

}  // namespace tessera
