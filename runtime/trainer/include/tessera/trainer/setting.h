#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
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

/// "--micro-batch" for "micro_batch".
std::string flag_name(std::string_view setting);
/// The reverse, and '-' to '_' in a key.
std::string setting_name(std::string_view flag);

/// "unknown <kind> '<word>'; did you mean '<nearest>'?", or without a suggestion if none is near.
std::string unknown_name(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates);

}  // namespace tessera
