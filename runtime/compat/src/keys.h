#pragma once

#include <string_view>
#include <vector>

#include "key_table.h"

namespace tessera::compat {

const std::vector<KeyTable>& accelerate_key_tables();  ///< of its file and the file's sections
const std::vector<KeyTable>& deepspeed_key_tables();
/// That of one section.
const KeyTable& table_of(std::string_view section);

/// A value of `distributed_type`.
struct DistributedType {
  const char* name;
  const char* strategy;  ///< ours; null: its section tells, or it is refused
  const char* refusal;   ///< null, or why we cannot
};
const std::vector<DistributedType>& distributed_types();

}  // namespace tessera::compat
