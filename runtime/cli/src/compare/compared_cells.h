#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "run/interrupt.h"
#include "settings/sweep.h"
#include "tessera/compat/config.h"
#include "tessera/lab/comparison.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// The value of --simulate for which a comparison measures the profile itself, and its name.
inline constexpr const char* kMeasuredProfile = "measured";

/// The command line of `tessera compare`.
struct CompareRequest {
  Config config;  ///< of the runs, but for the axes
  std::vector<Swept> axes{};
  std::string folder{};
  bool resumes = false;
  bool only_simulates = false;
  std::optional<HardwareProfile> profile{};
  bool measures_profile = false;       ///< `profile` is then known when all repeats are over
  std::string profile_source{};        ///< in words
  std::vector<std::string> command{};  ///< the program's arguments
};

/// The settings of one combination of the axes.
Config cell_config(const CompareRequest& request, const std::vector<std::string>& values);

/// Every cell planned, without running: those that cannot be planned, or do not fit the memory of
/// this machine (if nothing runs, of the profile's), are impossible and say why. A note says why a
/// cell that can run has no predicted time. Throws Error if the data cannot be read.
Comparison plan_matrix(const CompareRequest& request);

/// Adds the times that the request's profile predicts to the cells of plan_matrix() that can run.
void predict_times(const CompareRequest& request, Comparison& planned);

/// The flags of `tessera train` that run a cell.
std::vector<std::string> train_flags(const ComparedCell& cell);

/// Says why results of `earlier` are no part of the comparison that is `planned` now, in words that
/// go on after the path of its file: another version, machine or matrix. "": they are.
std::string difference(const Comparison& earlier, const Comparison& planned);

/// The `planned` comparison with the results of `earlier`; failed cells are to run again. Whether a
/// cell is impossible is planned anew, since it depends on the memory that is free.
Comparison gone_on(const Comparison& earlier, Comparison planned);

/// The outcome of a child.
struct ChildResult {
  bool trained = false;  ///< it has ended well
  std::string why{};     ///< it has failed; "": it was interrupted
};

/// Runs this program with `flags`; what it prints goes to the file `printed`. A signal that
/// `interrupt` has seen ends it, and it dies with this process. Throws Error{kUnavailable} if no
/// process can be started, and Error{kIo}.
ChildResult run_child(std::vector<std::string> flags, const std::string& printed,
                      const InterruptGuard& interrupt);

/// A row for each cell that can run, in 80 columns, what its numbers are, and why cells are
/// missing.
void print_table(std::ostream& out, const Comparison& results);

}  // namespace tessera::cli
