#include "tessera/compat/config.h"

#include "tessera/core/error.h"
#include "variables.h"

namespace tessera {

TranslationContext Config::context() const {
  TranslationContext context{
      .table = table(), .overrides = nlohmann::ordered_json::object(), .launch = launch_};
  for (const Setting& setting : table()) {
    if (is_typed(setting.name)) context.overrides[setting.name] = value(setting.name);
  }
  return context;
}

void Config::take(ConfigTranslation translation, Giver giver) {
  for (const ConfigEntry& entry : translation.entries) {
    const bool derived = entry.outcome == KeyOutcome::kDerived;
    for (const auto& [name, value] : entry.settings.items()) {
      store(name, value, concat(entry.where(), ": ", entry.key),
            {giver, derived ? entry.where() + " (derived)" : entry.where()});
    }
  }
  translations_.push_back(std::move(translation));
}

void Config::set_launch(LaunchFacts launch) {
  launch_ = std::move(launch);
  if (launch_.launcher != kOwnLauncher || launch_.ranks == 0 || is_typed("ranks")) return;
  store("ranks", launch_.ranks, launch_.launcher, {Giver::kCommandLine, kOwnLauncher});
}

void Config::read_file(const std::string& path) {
  take(ConfigFile(path).translate(context()), Giver::kFile);
}

void Config::read_environment(const Environment& environment,
                              const std::vector<std::string>& names) {
  auto translation = translate_environment(environment, names, context());
  if (translation) take(std::move(*translation), Giver::kEnvironment);
}

std::vector<std::string> Config::announcements() const {
  std::map<std::string, bool> of_files;  // and whether they have an effect there
  for (const ConfigTranslation& translation : translations_) {
    if (translation.path == kEnvironmentPath) continue;
    for (const ConfigEntry& entry : translation.entries) {
      of_files[compat::full_path(entry.key)] = entry.outcome != KeyOutcome::kNoEffect;
    }
  }
  const auto is_repeated = [&](const ConfigEntry& entry) {
    const auto found = of_files.find(compat::full_path(entry.key));
    return found != of_files.end() && (found->second || entry.outcome == KeyOutcome::kNoEffect);
  };
  std::vector<std::string> lines;
  for (ConfigTranslation told : translations_) {
    if (told.path == kEnvironmentPath) std::erase_if(told.entries, is_repeated);
    for (std::string& line : told.announcements()) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera
