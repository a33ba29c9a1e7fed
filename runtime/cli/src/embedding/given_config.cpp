#include "embedding/given_config.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "commands.h"
#include "settings/gpt_settings.h"
#include "settings/option_names.h"
#include "tessera/cli/given_settings.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// Settings of `tessera train` for what it prints, and for what follows its last step.
constexpr std::string_view kOfTheProgram[]{
    "sample_tokens", "prompt",          "temperature", "top_k",   "top_p", "export",
    "export_dtype",  "state_dict_type", "grace",       "verbose", "quiet"};

bool is_of_the_program(std::string_view name) {
  return std::ranges::find(kOfTheProgram, name) != std::ranges::end(kOfTheProgram);
}

std::vector<std::string> names_of(const std::vector<Setting>& table) {
  std::vector<std::string> names;
  for (const Setting& setting : table) names.push_back(setting.name);
  return names;
}

const std::set<std::string, std::less<>>& all_names() {
  static const auto names =
      names_in(joined({train_settings(), plan_settings(), simulate_settings()}));
  return names;
}

}  // namespace

std::vector<Setting> settings_of(SettingsOf program) {
  std::vector<Setting> table;
  switch (program) {
    case SettingsOf::kSession:
      table = train_settings();
      std::erase_if(table, [](const Setting& setting) { return is_of_the_program(setting.name); });
      return table;
    case SettingsOf::kPlan:
      table = plan_settings();
      break;
    case SettingsOf::kSimulation:
      table = simulate_settings();
      break;
    case SettingsOf::kMemoryEstimate:
      return joined({model_settings(), trainer_settings()});
  }
  // How the answer is printed.
  constexpr std::string_view kOfThePrinted[]{"format", "after",        "actions", "sums",
                                             "sweep",  "show_profile", "check"};
  std::erase_if(table, [&](const Setting& setting) {
    return std::ranges::find(kOfThePrinted, setting.name) != std::ranges::end(kOfThePrinted);
  });
  return table;
}

Config config_of(SettingsOf program, const GivenSettings& given, const LaunchFacts& launch,
                 const std::vector<Setting>& others) {
  const std::vector<Setting> table = settings_of(program);
  const std::vector<std::string> names = names_of(table);
  std::vector<Setting> all = table;
  for (const Setting& other : others) {
    if (std::ranges::find(names, other.name) == names.end()) all.push_back(other);
  }
  Config config(std::move(all));
  for (const auto& [name, text] : given.values) {
    if (std::ranges::find(names, name) == names.end()) {
      require(
          !is_of_the_program(name), ErrorCode::kConfig, "'", name,
          "' is for what the program tessera prints or writes after its last step; leave it out");
      const std::string nearest = nearest_name(name, names);
      fail(ErrorCode::kConfig, "unknown setting '", name, "'",
           nearest.empty() ? "" : concat("; did you mean '", nearest, "'?"));
    }
    config.set_text(name, text);
  }
  config.set_launch(launch);
  if (!given.config_file.empty()) config.read_file(given.config_file);
  return config;
}

std::string with_keywords(std::string_view message) {
  const std::string text = with_flags(message);
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const bool begins = text.compare(at, 2, "--") == 0 && (at == 0 || text[at - 1] != '-');
    std::size_t end = at + 2;
    while (begins && end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '-' ||
            text[end] == '_')) {
      ++end;
    }
    const std::string name = begins ? setting_name(text.substr(at, end - at)) : "";
    if (begins && all_names().contains(name)) {
      result += name;
      at = end;
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace tessera::cli
