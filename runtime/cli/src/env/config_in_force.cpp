#include "env/reports.h"

#include <cstdlib>

#include "commands.h"
#include "settings/option_names.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

const char* variable(const char* name) { return std::getenv(name); }

/// Reads the file as a run would. Throws as a run does.
Config read(const std::string& path) {
  Config config(all_settings());
  config.set_launch(kForAnyMachine);
  config.read_environment(variable, environment_names());
  config.read_file(path);
  set_effective(config, trainer_options(config));
  return config;
}

/// "settings of Accelerate: strategy zero2 on 4 ranks, bf16".
std::string in_words(const nlohmann::ordered_json& fields) {
  const int ranks = fields["ranks"].get<int>();
  return concat("settings of ", fields["dialect"].get<std::string>(), ": strategy ",
                fields["strategy"].get<std::string>(), " on ", ranks,
                ranks == 1 ? " rank, " : " ranks, ", fields["precision"].get<std::string>());
}

}  // namespace

ConfigInForce config_in_force(const std::string& given) {
  const std::string path = given.empty() ? default_accelerate_config(variable).value_or("") : given;
  const bool by_default = given.empty() && !path.empty();
  nlohmann::ordered_json fields{{"file", or_null(path)}, {"default", by_default}};
  for (const char* key : {"dialect", "strategy", "ranks", "precision", "problem"}) {
    fields[key] = nullptr;
  }
  std::string text = "none in force";
  if (!path.empty()) {
    text = by_default ? path + " (Accelerate's default)" : path;
    try {
      const Config config = read(path);
      fields["dialect"] = to_string(config.translations().back().dialect);
      for (const char* key : {"strategy", "ranks", "precision"}) fields[key] = config.values()[key];
      text += concat(", ", in_words(fields), "; see tessera explain ", path);
    } catch (const Error& error) {
      fields["problem"] = with_flags(error.what());
      text += concat(", which no run can use: ", with_flags(error.what()));
    }
  }
  return {.report = {.rows = {{"config", text}}, .fields = {{"config", fields}}},
          .readable = fields["problem"].is_null()};
}

}  // namespace tessera::cli
