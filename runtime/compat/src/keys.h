#pragma once

#include <string_view>
#include <vector>

#include "key_table.h"

namespace tessera::compat {

/// The keys of a section, and what we do with each. README.md has all of them.
struct KeyTable {
  const char* section;
  std::vector<KeyRule> rules;
};
const std::vector<KeyTable>& accelerate_key_tables();  ///< of its file and the file's sections
const std::vector<KeyTable>& deepspeed_key_tables();
/// Those of one section, "accelerate" or "deepspeed" at the top.
const std::vector<KeyRule>& rules_of(std::string_view section);

/// A value of `distributed_type`.
struct DistributedType {
  const char* name;
  const char* strategy;  ///< ours; null: its section tells, or it is refused
  const char* refusal;   ///< null, or why we cannot
};
const std::vector<DistributedType>& distributed_types();

}  // namespace tessera::compat
