#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/collectives/process_group.h"
#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/device.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/strategies.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// Checks that are told as they are made, a line each: "ok  name: result".
class CheckList {
 public:
  /// `silent`: another process tells of the same checks.
  explicit CheckList(bool silent = false) : silent_(silent) {}

  /// `test` returns what went well, or throws what did not, which is kept. True if it went well.
  bool check(const std::string& name, const std::function<std::string()>& test);
  /// Tells of one that is not made.
  void skip(const std::string& name, const std::string& reason) const;

  int failures() const { return failures_; }
  /// "name: message" of the first that failed.
  const std::string& first_failure() const { return first_failure_; }

 private:
  bool silent_;
  int failures_ = 0;
  std::string first_failure_;
};

/// All-gathers, reduce-scatters and all-reduces numbers whose sums depend on their order, up to
/// 10,007 of them per rank, and compares every bit with the sum in rank order. A group over NCCL
/// must be a deterministic one. Every rank must call it.
/// Throws Error{kInternal} that names the collective, the element and both numbers.
void check_collectives(ProcessGroup& group, Device& device);

/// The result of a check that has thrown nothing.
inline constexpr const char* kCollectivesAreRight =
    "all-gather, reduce-scatter and all-reduce give the right bits";

/// The results that a strategy must not change.
struct TrainingOutcome {
  std::vector<double> losses{}, norms{};  ///< of every step; empty but in the first process
  double first_loss = 0.0, last_loss = 0.0;
  std::string parameters_sha256{};
  std::uint64_t sums = 0;       ///< of the plan: how gradients are added up
  std::int64_t peak_bytes = 0;  ///< of one rank: what strategies differ in
};

/// A very small training that any machine can do in a moment.
class SelfTestTraining {
 public:
  /// `options` name the device, never kAuto.
  explicit SelfTestTraining(TrainerOptions options);

  /// Trains with no_shard, which must learn; what others must equal. Returns it in words.
  std::string run_reference();
  /// Trains and compares. Returns in words what is equal.
  /// Throws Error{kInternal} if anything differs from no_shard, or from the plan.
  std::string run(const Strategy& strategy) const;

 private:
  TrainingOutcome train(const Strategy& strategy) const;

  TrainerOptions options_;
  GptConfig config_;
  Model model_;
  TrainingOutcome reference_;
};

/// Tests that the processes a launcher has started can train together, before hours are spent on
/// it: that all are reached, run the same program with the same settings, how fast machines answer
/// each other, that collectives give the right bits, and that sharding over all of them changes
/// nothing. Rank 0 tells; whatever fails names the process. Returns the exit code, the same in all
/// processes. Throws what failed in processes without rank 0.
int run_preflight(Config& config, TrainerOptions options, const Launcher& launcher);

}  // namespace tessera::cli
