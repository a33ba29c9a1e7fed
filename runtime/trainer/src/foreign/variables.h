#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::foreign {

/// A variable that Accelerate's launcher exports, and the key of its file that it comes from.
struct Variable {
  std::string name;        ///< "FSDP_SHARDING_STRATEGY"
  std::string section;     ///< "fsdp_config"; "" at the top
  std::string key;         ///< "fsdp_sharding_strategy"
  bool is_switch = false;  ///< off says no more than its absence
};

/// All of them: what is read from the environment, and what is exported for a file.
const std::vector<Variable>& variables();

/// A section, and the variable that says whether those of its keys count.
struct SectionSwitch {
  const char* section;
  const char* variable;
  const char* prefix;          ///< keys may go without it in a file
  const char* type = nullptr;  ///< of `distributed_type` that has the section; null: FSDP, if there
};
const std::vector<SectionSwitch>& section_switches();

/// Variables of Accelerate, by their whole names, on which no training depends.
const std::vector<std::string_view>& variables_without_effect();

/// True if the name begins as Accelerate's variables do.
bool is_accelerates(std::string_view name);

}  // namespace tessera::foreign
