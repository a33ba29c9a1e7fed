#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "compare/compared_cells.h"
#include "tessera/lab/comparison.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// The profile that a comparison measures itself (--simulate measured), so that runs and what
/// predicts them see the same machine: kernels alone and collectives, again in each repeat while
/// others disturb that, and in each repeat the kernels inside of each kind of step that its cells
/// need. Every calibration is a child, as each run of a cell is.
class MeasuredProfile {
 public:
  /// Runs a child with these flags; what it prints goes to the file `printed`.
  using RunCalibration = std::function<ChildResult(
      const std::string& label, std::vector<std::string> flags, const std::string& printed)>;

  /// Keeps what the folder of the request has of it: with --resume the kernels and collectives, and
  /// the steps too if it `goes_on` with earlier results. Throws Error{kConfig} if a profile is
  /// there without --resume.
  MeasuredProfile(const CompareRequest& request, const Comparison& planned, bool goes_on);

  /// Kinds of steps.
  std::size_t kinds() const { return kinds_.size(); }

  bool has_kernels() const { return has_kernels_; }
  bool has_steps(std::size_t kind, std::int64_t repeat) const {
    return kinds_[kind].timed.contains(repeat);
  }
  /// Whether kernels alone and collectives should be timed before this repeat: they never were, or
  /// were disturbed and this repeat is to come.
  bool needs_kernels(std::int64_t repeat) const;
  /// Times kernels alone and collectives; what there is stays where it is faster.
  ChildResult time_kernels(const RunCalibration& run);
  /// Times the kernels inside of the steps of a kind.
  ChildResult time_steps(std::size_t kind, std::int64_t repeat, const RunCalibration& run);

  /// Joins the steps of all repeats (joined_repeats()) and writes the profile. Returns it as
  /// `tessera simulate` reads it.
  HardwareProfile write() const;

 private:
  struct StepKind {
    std::vector<std::string> flags;  ///< of `tessera calibrate`
    std::string label, file;
    std::set<std::int64_t> timed{};  ///< repeats
  };

  std::string file_of(const StepKind& kind, std::int64_t repeat) const;
  HardwareProfile without_steps() const;

  const std::string path_;  ///< of the profile
  const std::string runs_;  ///< the folder of all that children write
  const std::int64_t repeats_;
  std::vector<std::string> of_all_;      ///< flags of every calibration
  std::vector<std::string> of_kernels_;  ///< of that of kernels alone
  std::vector<StepKind> kinds_;
  bool has_kernels_ = false;
};

}  // namespace tessera::cli
