#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// A variable that Accelerate's launcher exports, and the key of its file that it comes from.
struct Variable {
  std::string name;        ///< "FSDP_SHARDING_STRATEGY"
  std::string section;     ///< "fsdp_config"; "" at the top
  std::string key;         ///< "fsdp_sharding_strategy"
  bool is_switch = false;  ///< off says no more than its absence

  /// "fsdp_config.fsdp_sharding_strategy", as a translation names the key.
  std::string path() const { return section.empty() ? key : section + "." + key; }
};

/// All of them: what is read from the environment, and what is exported for a file.
const std::vector<Variable>& variables();

/// A section, and the variable that says whether those of its keys count.
struct SectionSwitch {
  const char* section;
  const char* variable;
  const char* type = nullptr;  ///< of `distributed_type` that has the section; null: FSDP, if there
};
const std::vector<SectionSwitch>& section_switches();

/// The path of a key as it is in the tables, however a file or a variable spells it:
/// "fsdp_config.fsdp_version" for "fsdp_config.version" and "FSDP_VERSION".
std::string full_path(const std::string& spelt);

/// Variables of Accelerate, by their whole names, on which no training depends.
const std::vector<std::string_view>& variables_without_effect();

/// True if the name begins as Accelerate's variables do.
bool is_accelerates(std::string_view name);

inline constexpr const char* kDeepSpeedFile = "ACCELERATE_DEEPSPEED_CONFIG_FILE";

/// The value of a variable; empty if it is not set.
inline std::string text_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

}  // namespace tessera::compat
