#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/plan_options.h"

// The policy of a schedule in words, for its text and its JSON.
namespace tessera {

/// One option of a policy. Words of names are quoted as in the text of a schedule.
struct PolicyRow {
  std::string_view name;
  std::function<std::string(const PlanOptions&)> write;  ///< words between blanks
  /// Throws Error{kConfig} for words that it does not understand.
  std::function<void(PlanOptions&, std::span<const std::string_view> words)> read;
  bool always = true;  ///< it is written even where it is the default
};

std::span<const PolicyRow> policy_rows();

/// Whether a row is written: always, or since it says something.
bool is_written(const PolicyRow& row, const PlanOptions& options);

/// Throws Error{kConfig} for a name that no row has.
void read_policy(PlanOptions& options, std::string_view name,
                 std::span<const std::string_view> words);

}  // namespace tessera
