#include "tessera/trainer/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config_values.h"
#include "tessera/core/error.h"
#include "tessera/sharding/placement.h"

namespace tessera {
namespace {

std::vector<std::string> names_of(const std::vector<Setting>& table) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const Setting& setting : table) names.push_back(setting.name);
  return names;
}

std::string read_text(const std::string& path) {
  require(!std::filesystem::is_directory(path), ErrorCode::kConfig, path,
          ": is a folder; give the path of a JSON file");
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorCode::kConfig, path,
          ": cannot be opened; give the path of a JSON file");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  require(!file.bad(), ErrorCode::kIo, path, ": cannot be read; is it a folder?");
  return text;
}

/// Parses one object; nlohmann keeps the last of equal keys, which would hide a mistake.
nlohmann::ordered_json parse_object(const std::string& path, const std::string& text) {
  std::set<std::string> keys;
  const auto reject_repeated = [&](int depth, nlohmann::ordered_json::parse_event_t event,
                                   nlohmann::ordered_json& parsed) {
    if (event == nlohmann::ordered_json::parse_event_t::key && depth == 1) {
      const std::string key = setting_name(parsed.get<std::string>());
      require(keys.insert(key).second, ErrorCode::kConfig, path, ": '", key,
              "' is there twice; keep one");
    }
    return true;
  };
  try {
    auto object = nlohmann::ordered_json::parse(text, reject_repeated, true, true);
    require(object.is_object(), ErrorCode::kConfig, path, ": expected one object, like {\"",
            "micro_batch\": 4}");
    return object;
  } catch (const nlohmann::json::parse_error& error) {
    // Its text begins with "[json.exception.parse_error.101] ".
    const std::string what = error.what();
    const std::size_t bracket = what.find("] ");
    fail(ErrorCode::kConfig, path,
         ": not valid JSON: ", bracket == std::string::npos ? what : what.substr(bracket + 2));
  }
}

}  // namespace

std::string flag_name(std::string_view setting) {
  std::string flag = "--" + std::string(setting);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string setting_name(std::string_view flag) {
  if (flag.substr(0, 2) == "--") flag.remove_prefix(2);
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string unknown_name(std::string_view kind, std::string_view word,
                         const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return concat(
      "unknown ", kind, " '", word, "'",
      nearest.empty() ? "; see --help for all of them" : concat("; did you mean '", nearest, "'?"));
}

Config::Config(std::vector<Setting> table) : table_(std::move(table)) {
  values_ = nlohmann::ordered_json::object();
  for (const Setting& setting : table_) {
    require(!values_.contains(setting.name), ErrorCode::kInternal, "the setting '", setting.name,
            "' is in the table twice");
    values_[setting.name] = nullptr;
    if (setting.fallback.is_null()) continue;
    try {
      store(setting, setting.fallback, "default of " + setting.name);
    } catch (const Error& error) {
      fail(ErrorCode::kInternal, error.what());
    }
  }
}

const Setting& Config::setting(std::string_view name) const {
  const auto found =
      std::find_if(table_.begin(), table_.end(), [&](const Setting& s) { return s.name == name; });
  require(found != table_.end(), ErrorCode::kInternal, "no setting is called '", name, "'");
  return *found;
}

const nlohmann::ordered_json& Config::value(std::string_view name) const {
  return values_.at(setting(name).name);
}

bool Config::given(std::string_view name) const { return given_.contains(setting(name).name); }

void Config::store(const Setting& setting, const nlohmann::json& value, const std::string& source) {
  try {
    values_[setting.name] = checked_value(setting, value);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, source, ": ", error.what());
  }
}

void Config::read_file(const std::string& path) {
  const nlohmann::ordered_json object = parse_object(path, read_text(path));
  for (const auto& [key, value] : object.items()) {
    const std::string name = setting_name(key);
    const bool known =
        std::any_of(table_.begin(), table_.end(), [&](const Setting& s) { return s.name == name; });
    require(known, ErrorCode::kConfig, path, ": ", unknown_name("key", key, names_of(table_)));
    store(setting(name), value, concat(path, ": ", key));
    given_.insert(name);
  }
}

void Config::set_text(std::string_view name, const std::string& text) {
  const Setting& wanted = setting(name);
  nlohmann::json parsed;
  try {
    parsed = parse_value(wanted, text);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, flag_name(name), ": ", error.what());
  }
  store(wanted, parsed, flag_name(name));
  given_.insert(wanted.name);
}

void Config::set_effective(std::string_view name, nlohmann::json value) {
  values_[setting(name).name] = std::move(value);
}

}  // namespace tessera
