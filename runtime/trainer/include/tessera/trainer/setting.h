#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

enum class SettingType : std::uint8_t {
  kInteger,
  kNumber,
  kFlag,  ///< true or false
  kText,
  kBytes,  ///< an integer, or a text such as "4GiB"; see parse_bytes
};

/// Which processes of one run must have the same value.
enum class MustAgree : std::uint8_t {
  kAll,
  kOnCpus,  ///< all, if they compute on CPUs
  kNone,    ///< it says where something lies, what is shown, or what a machine has
};

/// One thing that a user can set: a flag of the program and a key of its config files at once.
struct Setting {
  std::string name{};  ///< the key, "micro_batch"; the flag is "--micro-batch"
  SettingType type = SettingType::kText;
  nlohmann::json fallback{};  ///< default value; null if unset means something of its own
  std::string help{};
  std::string group{};                                        ///< heading in --help
  std::vector<std::string> choices{};                         ///< allowed texts; empty: any
  double minimum = -std::numeric_limits<double>::infinity();  ///< numbers: inclusive
  double maximum = std::numeric_limits<double>::infinity();   ///< numbers: inclusive
  /// Checks that the other fields cannot express; throws Error{kConfig}.
  std::function<void(const nlohmann::json&)> check{};
  MustAgree must_agree = MustAgree::kAll;
  /// Other programs' spellings of choices, and which ones they are.
  std::vector<std::pair<std::string, std::string>> other_spellings{};
};

/// A setting that is true or false.
Setting flag_setting(std::string name, std::string help, bool fallback = false);
/// Settings under a heading of --help; those of a table, or a part of it, that processes may have
/// otherwise.
std::vector<Setting> in_group(const std::string& group, std::vector<Setting> settings);
std::vector<Setting> in_group(const std::string& group, MustAgree agree,
                              std::vector<Setting> settings);
/// For Setting::check of a path: it must not be empty.
void check_path(const nlohmann::json& value);
/// The setting of that name; null if the table has none.
const Setting* find_setting(const std::vector<Setting>& table, std::string_view name);
std::vector<std::string> names_of(const std::vector<Setting>& table);

/// `value` as its setting keeps it. Throws Error{kConfig} with the value and what is allowed.
nlohmann::json checked_value(const Setting& setting, const nlohmann::json& value);

/// "--micro-batch" for "micro_batch".
std::string flag_name(std::string_view setting);
/// The reverse, and '-' to '_' in a key.
std::string setting_name(std::string_view flag);

/// "unknown <kind> '<word>'; did you mean '<nearest>'?", or without a suggestion if none is near.
std::string unknown_name(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates);

/// "unknown value 'x'; did you mean 'y'? allowed: y, z"; without the question if `nearest` is "".
std::string unknown_value(const std::string& word, const std::string& nearest,
                          const std::vector<std::string>& allowed);

/// A text of a user's, the beginning of it if it is long.
std::string shortened(const std::string& text, std::size_t longest = 100);
/// A value as a person writes it: a text without quotes.
template <typename Json>
std::string plain_text(const Json& value) {
  return value.is_string() ? value.template get<std::string>() : value.dump();
}
/// "a, b, c"
std::string joined(const std::vector<std::string>& words, std::string_view between = ", ");

/// "010" is 8 to Accelerate, which reads YAML 1.1, and 10 to others: here it is no number.
bool has_leading_zero(std::string_view text);
inline constexpr const char* kLeadingZeroRemedy =
    "; leave out the leading zero, which can mean octal";

}  // namespace tessera
