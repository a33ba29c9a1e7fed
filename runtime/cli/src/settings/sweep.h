#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/trainer/setting.h"

namespace tessera::cli {

/// A setting and the values that it takes in turn.
struct Swept {
  std::string name;
  std::vector<std::string> values;
};

/// The parts of a text that are not empty.
std::vector<std::string> split(const std::string& text, char at);

/// "ranks=8,64 strategy=zero2,full_shard". Throws Error{kConfig} if a setting is not one of
/// `table`, that of `command`, or has no values.
std::vector<Swept> parse_sweep(const std::string& text, const std::vector<Setting>& table,
                               std::string_view command);

/// Every combination of values, one of each; those of the last setting change first. Of no
/// settings: one, which is empty.
std::vector<std::vector<std::string>> combinations(const std::vector<Swept>& sweep);

}  // namespace tessera::cli
