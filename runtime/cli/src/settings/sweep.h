#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "settings/option_names.h"
#include "tessera/compat/config.h"
#include "tessera/core/error.h"

namespace tessera::cli {

/// A setting and the values that it takes in turn.
struct Swept {
  std::string name;
  std::vector<std::string> values;
  bool of_pipeline = false;  ///< varied only where there are several stages
  bool of_fp8 = false;       ///< varied only with precision fp8
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

/// A combination that cannot be planned, and why.
struct LeftOut {
  std::vector<std::string> values;
  std::string why;
};

/// Calls `use` with each combination and `config` with its values; returns those on which it threw
/// Error{kConfig}. Of no settings, there is no other combination: the error comes out of here.
template <typename Use>
std::vector<LeftOut> each_combination(const Config& config, const std::vector<Swept>& sweep,
                                      const Use& use) {
  std::vector<LeftOut> left_out;
  for (const auto& values : combinations(sweep)) {
    try {
      Config own = config;
      for (std::size_t i = 0; i < sweep.size(); ++i) own.set_text(sweep[i].name, values[i]);
      use(own, values);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfig || sweep.empty()) throw;
      left_out.push_back({values, with_flags(error.what())});
    }
  }
  return left_out;
}

/// Says which combinations are left out, on stderr, a line for each reason. Throws Error{kConfig}
/// if all are; `done`: "simulated".
void note_left_out(const std::vector<LeftOut>& left_out, bool all, std::string_view done);

}  // namespace tessera::cli
