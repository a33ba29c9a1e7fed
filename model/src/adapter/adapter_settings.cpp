#include "adapter/adapter_settings.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"

namespace tessera::adapter {
namespace {

using Values = std::vector<std::string>;

/// A part without '=' goes on with the list of the one before it.
std::vector<std::pair<std::string, Values>> split_settings(std::string_view text,
                                                           std::string_view kind) {
  std::vector<std::pair<std::string, Values>> settings;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t equals = part.find('=');
    require(equals != std::string_view::npos || !settings.empty(), ErrorCode::kConfig, "'", part,
            "' has no '='; give ", kind, " settings such as key=value,key=value");
    if (equals == std::string_view::npos) {
      settings.back().second.emplace_back(part);
    } else {
      settings.emplace_back(part.substr(0, equals), Values{std::string(part.substr(equals + 1))});
    }
  }
  return settings;
}

template <typename T>
SettingKey parsed_key(std::string name, const char* what, T& to) {
  const std::string key = name;
  return {std::move(name), [key, what, &to](const Values& values) {
            const std::string& text = values.front();
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
            require(error == std::errc() && end == text.data() + text.size(), ErrorCode::kConfig,
                    key, "=", text, " is no ", what);
          }};
}

}  // namespace

void read_settings(std::string_view text, std::string_view kind,
                   const std::vector<SettingKey>& keys) {
  std::vector<std::string> names;
  for (const SettingKey& key : keys) names.push_back(key.name);
  std::set<std::string> given;
  for (const auto& [name, values] : split_settings(text, kind)) {
    require(given.insert(name).second, ErrorCode::kConfig, name, " is given twice to ", kind,
            "; give it once");
    const auto key = std::ranges::find(keys, name, &SettingKey::name);
    if (key == keys.end()) {
      const std::string near = nearest_name(name, names);
      std::string all;
      for (const std::string& one : names) all += (all.empty() ? "" : ", ") + one;
      fail(ErrorCode::kConfig, "'", name, "' is no setting of ", kind,
           near.empty() ? "" : concat("; did you mean '", near, "'?"), "; there are ", all);
    }
    require(key->is_list || values.size() == 1, ErrorCode::kConfig, name,
            " takes one value; what follows it needs an '='");
    key->set(values);
  }
}

SettingKey number_key(std::string name, double& to) {
  return parsed_key(std::move(name), "number", to);
}

SettingKey integer_key(std::string name, std::int64_t& to) {
  return parsed_key(std::move(name), "integer", to);
}

SettingKey list_key(std::string name, std::vector<std::string>& to) {
  return {std::move(name), [&to](const Values& values) { to = values; }, true};
}

SettingKey choice_key(std::string name, std::string no, std::string yes, bool& to) {
  const std::string key = name;
  return {std::move(name), [key, no, yes, &to](const Values& values) {
            const std::string& value = values.front();
            require(value == no || value == yes, ErrorCode::kConfig, key, "=", value, "; it is ",
                    no, " or ", yes);
            to = value == yes;
          }};
}

std::vector<SettingKey> target_keys(AdapterConfig& adapter) {
  const auto targets = [&adapter](const Values& values) {
    const bool all = values == Values{"all-linear"};
    adapter.targets = all ? Values() : values;
    if (all) adapter.target_pattern = values.front();
  };
  const auto pattern = [&adapter](const Values& values) {
    adapter.target_pattern = values.front();
  };
  return {{"targets", targets, true},
          {"pattern", pattern},
          list_key("exclude", adapter.excluded),
          list_key("save", adapter.saved_modules)};
}

}  // namespace tessera::adapter
