#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/sharding/executor.h"
#include "tessera/sharding/timeline.h"
#include "tessera/trainer/records.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// A finished run. Everything predicted stands beside what was measured.
struct TrainingSummary {
  std::int64_t steps = 0;          ///< of this run
  std::int64_t skipped_steps = 0;  ///< of those, by loss scaling
  std::int64_t last_step = 0;      ///< of all runs since the first step
  std::int64_t saves = 0, failed_saves = 0;
  std::int64_t traced_steps = 0;  ///< see Session::traced_steps
  double first_loss = 0.0;
  double last_loss = 0.0;
  double seconds = 0.0;            ///< of the steps, without planning and initialisation
  double tokens_per_second = 0.0;  ///< without the first step, which warms up, if there are three
  double positions_per_second = 0.0;  ///< the same of StepRecord::positions
  MemoryPeak predicted_memory;        ///< of one rank; of several stages the largest one's
  MemoryPeak measured_memory;         ///< the highest over ranks, of the total and by category
  MemoryPeak predicted_host_memory;   ///< the same of offloaded state in the host's memory
  MemoryPeak measured_host_memory;
  std::int64_t predicted_disk_bytes = 0;  ///< of one rank's file on disk; 0: there is none
  std::int64_t measured_disk_bytes = 0;   ///< the largest
  Traffic predicted_traffic;              ///< of one rank, in all steps
  std::vector<Traffic> counted_traffic;   ///< by rank, of the largest stage
  /// The memory of a stage's ranks, and the bytes that they sent.
  struct Stage {
    MemoryPeak predicted_memory, measured_memory;
    Traffic predicted_traffic, counted_traffic;
  };
  std::vector<Stage> stages;  ///< of a run with several; the above are of the largest one
  std::optional<EvaluationRecord> evaluation;  ///< the last one
  bool stopped_early = false;                  ///< by TrainerOptions::patience
  std::optional<TimelineSummary> timeline;  ///< of rank 0, mean over steps; if options.time_actions
  std::string parameters_sha256;            ///< see parameters_sha256(); "" without hash_parameters
  std::vector<FullParameter> parameters;    ///< if options.gather_parameters
};

/// Returns false to stop after the step it was told of.
using OnStep = std::function<bool(const StepRecord&)>;
/// Told notes for the user on how the run goes, a sentence each, before the first step: the
/// plan's notes, and what rank 0 has found.
using OnNote = std::function<void(const std::string&)>;

using OnEvaluation = std::function<void(const EvaluationRecord&)>;
using OnSave = std::function<void(const SaveRecord&)>;
/// Told each trained parameter, one after the other; in several processes all must give one.
using OnParameter = std::function<void(const FullParameter&)>;

/// Those who hear of a run; each may be empty.
struct LoopListeners {
  OnStep on_step{};
  OnNote on_note{};
  OnEvaluation on_evaluation{};
  OnSave on_save{};
  OnParameter on_parameter{};
};

/// How the steps of a loop follow each other.
enum class LoopSteps : std::uint8_t {
  kOverlapping,  ///< as TrainerOptions::overlap_steps says: see Session::step_ahead
  kSeparate,     ///< between two of them anything may be asked of the session
};

/// The steps of a session one by one, each with what TrainerOptions want after it: evaluations,
/// checkpoints, the end of patience. If a step or a listener throws, the session is aborted.
class TrainingLoop {
 public:
  /// The session outlives the loop.
  TrainingLoop(Session& session, LoopListeners listeners,
               LoopSteps steps = LoopSteps::kOverlapping);
  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Tells the session's notes, but for the first `known` ones.
  void tell_notes(std::size_t known);
  /// One step and what follows it; nothing when the run is over.
  std::optional<StepRecord> next();
  /// The last evaluation and the last checkpoint, unless the last step had them; then the
  /// parameters, and what the run came to. To be called once, whether the run is over or ended
  /// before.
  TrainingSummary finish();

 private:
  struct Totals;

  bool tells() const;
  bool evaluates_after(std::int64_t step) const;
  bool saves_after(std::int64_t step) const;
  bool evaluate();
  template <typename Call>
  void end_of_save(const Call& call);
  void save(bool wait);
  std::optional<StepRecord> step();
  template <typename Body>
  auto guarded(const Body& body);

  Session& session_;
  const TrainingPlan& plan_;
  const LoopListeners listeners_;
  const LoopSteps steps_;
  const std::unique_ptr<Totals> totals_;
  TrainingSummary summary_;
  std::optional<EvaluationRecord> evaluation_;
  std::int64_t saved_step_ = -1;
  std::int64_t last_ = 0;  ///< step
};

}  // namespace tessera
