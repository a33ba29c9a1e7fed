#include "tessera/trainer/config.h"

#include <algorithm>

#include "config_values.h"
#include "foreign/key_table.h"
#include "foreign/variables.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"

namespace tessera {
namespace {

/// A message in which a text that is long stands with its beginning only.
std::string with_short(std::string message, const nlohmann::json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const std::string shown = foreign::shortened(text);
  if (shown == text) return message;
  for (std::size_t at = message.find(text); at != message.npos; at = message.find(text, at + 1)) {
    message.replace(at, text.size(), shown);
  }
  return message;
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
      store(setting, setting.fallback, "default of " + setting.name, {});
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

bool Config::given(std::string_view name) const {
  const auto found = origins_.find(setting(name).name);
  return found != origins_.end() && found->second.giver != Giver::kDefault;
}

bool Config::is_typed(std::string_view name) const {
  const auto found = origins_.find(setting(name).name);
  return found != origins_.end() && found->second.giver == Giver::kCommandLine;
}

void Config::store(const Setting& setting, const nlohmann::json& value, const std::string& label,
                   Origin origin) {
  nlohmann::json checked;
  try {
    checked = checked_value(setting, value);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, label, ": ", with_short(error.what(), value));
  }
  Origin& before = origins_[setting.name];
  if (origin.giver < before.giver) return;
  values_[setting.name] = std::move(checked);
  before = std::move(origin);
}

TranslationContext Config::context() const {
  TranslationContext context{
      .table = table_, .overrides = nlohmann::ordered_json::object(), .launch = launch_};
  for (const auto& [name, origin] : origins_) {
    if (origin.giver == Giver::kCommandLine) context.overrides[name] = values_.at(name);
  }
  return context;
}

void Config::take(ConfigTranslation translation, Giver giver) {
  for (const ConfigEntry& entry : translation.entries) {
    const bool derived = entry.outcome == KeyOutcome::kDerived;
    for (const auto& [name, value] : entry.settings.items()) {
      const Setting& wanted = setting(name);
      const std::string label = concat(entry.where(), ": ", entry.key);
      store(wanted, value, label, {giver, derived ? entry.where() + " (derived)" : entry.where()});
    }
  }
  translations_.push_back(std::move(translation));
}

void Config::set_launch(LaunchFacts launch) {
  launch_ = std::move(launch);
  if (launch_.launcher != kOwnLauncher || launch_.ranks == 0) return;
  if (origins_["ranks"].giver == Giver::kCommandLine) return;
  store(setting("ranks"), launch_.ranks, launch_.launcher, {Giver::kCommandLine, kOwnLauncher});
}

void Config::read_file(const std::string& path) {
  take(ConfigFile(path).translate(context()), Giver::kFile);
}

FixedConfig Config::fixed_file(const std::string& path) const {
  return fix_config(path, context());
}

void Config::read_environment(const Environment& environment,
                              const std::vector<std::string>& names) {
  auto translation = translate_environment(environment, names, context());
  if (translation) take(std::move(*translation), Giver::kEnvironment);
}

void Config::set_text(std::string_view name, const std::string& text) {
  const Setting& wanted = setting(name);
  nlohmann::json parsed;
  try {
    parsed = parse_value(wanted, text);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, flag_name(name), ": ", error.what());
  }
  store(wanted, parsed, flag_name(name), {Giver::kCommandLine, "command line"});
}

std::vector<std::string> Config::announcements() const {
  std::map<std::string, bool> of_files;  // and whether they have an effect there
  for (const ConfigTranslation& translation : translations_) {
    if (translation.path == kEnvironmentPath) continue;
    for (const ConfigEntry& entry : translation.entries) {
      of_files[foreign::full_path(entry.key)] = entry.outcome != KeyOutcome::kNoEffect;
    }
  }
  const auto is_repeated = [&](const ConfigEntry& entry) {
    const auto found = of_files.find(foreign::full_path(entry.key));
    return found != of_files.end() && (found->second || entry.outcome == KeyOutcome::kNoEffect);
  };
  std::vector<std::string> lines;
  for (ConfigTranslation told : translations_) {
    if (told.path == kEnvironmentPath) std::erase_if(told.entries, is_repeated);
    for (std::string& line : told.announcements()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string Config::source(std::string_view name) const {
  const auto found = origins_.find(setting(name).name);
  return found == origins_.end() ? "default" : found->second.text;
}

void Config::set_effective(std::string_view name, nlohmann::json value) {
  nlohmann::ordered_json& stored = values_[setting(name).name];
  if (stored == value) return;
  stored = std::move(value);
  Origin& origin = origins_[setting(name).name];
  if (origin.giver == Giver::kDefault) origin.text = "derived";
}

}  // namespace tessera
