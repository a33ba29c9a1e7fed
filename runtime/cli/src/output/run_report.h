#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The speed of a run per second: losses that count, and positions that are computed.
struct SpeedRates {
  double tokens = 0.0;
  double positions = 0.0;
  /// Or prompts, of which nothing is learnt.
  bool has_padding() const { return positions > tokens * (1.0 + 1e-6); }
};

/// "45.1 k tokens/s", or, where not every position has a target, "45.1 k positions/s, 16.7 k
/// targets/s".
std::string describe_speed(const SpeedRates& rates);

/// "full_shard on 4 ranks (1 replica of 4), fp32, 1 thread per rank".
std::string describe_ranks(const TrainerOptions& options);
/// "2 x 4": replicas, and ranks that share one; "3 x 2 x 4" with the stages in front.
std::string describe_mesh(const Mesh& mesh, bool with_stages);
/// Says so if a file asks for GPUs and the run is on the CPU because there is none; else "".
std::string device_note(const Config& config, const TrainerOptions& options);
/// One for each typed flag of the learning rate that its schedule has no use for. A file may hold
/// settings for several schedules, as that of an earlier run does: it is not told of.
std::vector<std::string> learning_rate_notes(const Config& config,
                                             const LearningRateSchedule& schedule);
/// "loss 3.1415, perplexity 23.14 on 4,096 tokens"; of a classifier "loss 0.4055, accuracy 87.50 %,
/// F1 88.89 % of 'positive', macro F1 87.30 %, on 8 texts". `labels`: the names of classes, if they
/// are known.
std::string describe_evaluation(const EvaluationRecord& record, int decimals = 4,
                                const std::vector<std::string>& labels = {});
/// "best so far (2.3410 at step 200)" or "the best is 2.3140 at step 300, no better for 1 of 3
/// evaluations"; "" where evaluations are not compared.
std::string describe_best(const EvaluationRecord& record, std::int64_t patience);
/// "trace     3 steps in FILE; ...", or why there is none; "" if none was asked for.
std::string describe_trace(const TrainerOptions& options, std::int64_t traced);
/// "58 actions per step (12 unshard, ...), 6 units, 2 parameter slots, 2 gradient slots".
std::string describe_shape(const Schedule& schedule);
/// "gpt2-tiny: 0.82 M parameters in 6 units".
std::string describe_model(const TrainingPlan& plan);

/// A line for each stage, if there are several: its layers, its memory, what it sends.
void print_stages(std::ostream& out, const TrainingPlan& plan);
/// Memory of one rank by category, as predicted, and what is offloaded.
void print_memory(std::ostream& out, const TrainingPlan& plan);
/// Prints the memory that a GPU holds beside that, by item with its source; nothing for a run on
/// the CPU.
void print_gpu_overhead(std::ostream& out, const TrainingPlan& plan);
/// Bytes and calls of one rank's step by kind of collective, as predicted, and copied bytes.
void print_traffic(std::ostream& out, const Traffic& traffic);

/// Prints the results of a finished run, each prediction beside its measurement.
void print_summary(std::ostream& out, const TrainingPlan& plan, const TrainingSummary& summary,
                   const RunMeasurements& measurements);

/// A line if the profile was measured on a busy machine: what it predicts is then too slow.
void note_noise(const HardwareProfile& profile);

}  // namespace tessera::cli
