#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model/adapter_config.h"

// The values of settings such as --lora: "key=value" parts, separated by commas.
namespace tessera::adapter {

struct SettingKey {
  std::string name;
  /// Takes the values between this key and the next. One that is no list has a single one.
  std::function<void(const std::vector<std::string>& values)> set;
  bool is_list = false;
};

/// Calls `set` of the keys that are given. `kind`: for errors. Throws Error{kConfig} that lists the
/// keys.
void read_settings(std::string_view text, std::string_view kind,
                   const std::vector<SettingKey>& keys);

SettingKey number_key(std::string name, double& to);
SettingKey integer_key(std::string name, std::int64_t& to);
SettingKey list_key(std::string name, std::vector<std::string>& to);
/// One of two words, the first of which is false.
SettingKey choice_key(std::string name, std::string no, std::string yes, bool& to);

/// targets, pattern, exclude and save.
std::vector<SettingKey> target_keys(AdapterConfig& adapter);

}  // namespace tessera::adapter
