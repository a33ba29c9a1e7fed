#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera::cli {

/// Settings as a program hands them over that is not ours: texts by name, as flags would have them,
/// and a config file, which counts less. Files and environments that nobody has named are not read.
struct GivenSettings {
  std::vector<std::pair<std::string, std::string>> values{};
  std::string config_file{};  ///< "": none
};

/// The programs of a run, each with settings of its own.
enum class SettingsOf { kSession, kPlan, kSimulation, kMemoryEstimate };
/// The settings that such a program can be given.
std::vector<Setting> settings_of(SettingsOf program);

/// A text of the library or of a command for a program whose settings are keywords: both
/// `micro_batch` and --micro-batch become micro_batch.
std::string with_keywords(std::string_view text);

}  // namespace tessera::cli
