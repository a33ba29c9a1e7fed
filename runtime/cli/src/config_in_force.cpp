#include "config_in_force.h"

#include <cstdlib>

#include "commands.h"
#include "gpt_settings.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// "settings of Accelerate: strategy zero2 on 4 ranks, bf16". Throws as a run would.
std::string in_words(const std::string& path, const Environment& environment) {
  Config config(
      joined({model_settings(), trainer_settings(), train_only_settings(), plan_only_settings()}));
  config.set_launch(kForAnyMachine);
  config.read_environment(environment, environment_names());
  config.read_file(path);
  set_effective(config, trainer_options(config));
  const int ranks = config.get<int>("ranks");
  return concat("settings of ", to_string(config.translations().back().dialect), ": strategy ",
                config.get<std::string>("strategy"), " on ", ranks,
                ranks == 1 ? " rank, " : " ranks, ", config.get<std::string>("precision"));
}

}  // namespace

ConfigInForce config_in_force(const std::string& given) {
  const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
  const std::string path =
      given.empty() ? default_accelerate_config(environment).value_or("") : given;
  if (path.empty()) return {.description = "none in force"};
  const std::string name = given.empty() ? path + " (Accelerate's default)" : path;
  try {
    return {.description =
                concat(name, ", ", in_words(path, environment), "; see tessera explain ", path)};
  } catch (const Error& error) {
    return {.description = concat(name, ", which no run can use: ", error.what()),
            .readable = false};
  }
}

}  // namespace tessera::cli
