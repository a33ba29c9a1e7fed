#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "document.h"
#include "key_table.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

const std::vector<KeyTable>& accelerate_key_tables();  ///< of its file and the file's sections
const std::vector<KeyTable>& deepspeed_key_tables();
/// The table of one section.
const KeyTable& table_of(std::string_view section);

/// A value of `distributed_type`.
struct DistributedType {
  const char* name;
  const char* strategy;  ///< ours; null: its section tells, or it is refused
  const char* refusal;   ///< null, or why we cannot
};
const std::vector<DistributedType>& distributed_types();

struct Recognition {
  ConfigDialect dialect = ConfigDialect::kTessera;
  std::string by{};  ///< the key that told; empty if there is none
};

/// Whose keys the file has. A file with none that is known is taken for ours.
/// Throws Error{kConfig} if it has keys of two dialects, or one that is unknown to all but near
/// one.
Recognition recognise(const Document& document, const std::vector<Setting>& table);

}  // namespace tessera::compat
